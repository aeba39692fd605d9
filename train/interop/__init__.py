"""Models that others trained: TorchEasyRec's state dicts into our embedding group."""

from emberline.train.interop.torcheasyrec import load_torcheasyrec_state

__all__ = ["load_torcheasyrec_state"]
