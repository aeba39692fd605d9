"""The same tables on any device, in operators of PyTorch alone.

`index` finds keys, `keys` decides who has a row, `bank` has the rows, and `tables` is the kernel.
"""
