"""From a checkpoint to an artifact: tables, remaps and traced programs, checked against the trained model, published by one rename.

`export.py` is the whole order of work; `publish.py` the rules of versions and folders; `parity.py` the gate that nothing passes with a wrong answer.
"""
