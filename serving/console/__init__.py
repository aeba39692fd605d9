"""The console page at `/` of the embedded server: one page that shows models, traffic and tables, and tries a model by hand.

`page` serves it; the rest is what a browser loads: no build step, no library, no other host. It reads the server's public endpoints only.
"""
