"""Models that others trained: TorchEasyRec's state dicts into our embedding group, and its whole checkpoints into ours.

`import_checkpoint` is the order of the work: `folder` finds the files, `stored` reads them, `parts`, `matching`, `name_map` and `selection`
decide which name goes where, `fill`, `id_maps` and `moments` put it there, `report` says what was done.
"""

from emberline.train.interop.torcheasyrec import load_torcheasyrec_state

__all__ = ["load_torcheasyrec_state"]
