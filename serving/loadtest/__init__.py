"""`emberline loadtest`: load at a given rate, whatever the answers do, and what came of it.

`made_rows` and `requests` prepare what is sent, `senders` send it, `loops` decide when, `tally` counts, `report` and `chart` tell.
"""
