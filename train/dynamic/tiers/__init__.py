"""Second tiers on a CPU: rows that a table has beyond its share of memory lie in a mapped file.

`memory` spreads a table over memory and the file, `cache` keeps in memory what was used last, by the rule of `recency`, `blocks` makes kernels of
all, `prefetch` reads ahead. On other devices the host's memory is the second tier: see `device.tiers`.
"""
