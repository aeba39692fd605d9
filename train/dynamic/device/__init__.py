"""The same tables on any device, in operators of PyTorch alone.

`index` finds keys, `keys` decides who has a row, `rows` and `bank` have the rows, `tiers` those that the host has, `ahead` copies these before they
are asked for, and `tables` is the kernel.
"""
