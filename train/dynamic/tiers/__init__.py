"""Second tiers on a CPU: rows that a table has beyond its share of memory lie in a mapped file.

`memory` spreads a table over memory and the file, `cache` keeps in memory what was used last, `blocks` makes kernels of both, `prefetch` reads ahead.
"""
