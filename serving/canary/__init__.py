"""A version that is tried beside the one that is served: a share of the requests is asked of it too, and what it would have answered is compared.

`drift` compares answers, `mirror` asks the candidate in a thread of its own, `canaries` holds those of one server, `http` and `cli` are for people.
"""
