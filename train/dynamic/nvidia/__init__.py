"""Tables that grow on the kernel of NVIDIA: `package` finds it, `options` and `sharding` put tables on it, `tables` guards it.

`files` carries what its tables hold between its files and our checkpoints. It is CUDA only.
"""
