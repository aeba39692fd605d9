"""Pooled lookups: from the rows of each bag to one tensor [B, P], in the order of the schema's lookups.

`RowFinder` finds the rows of raw ids, once a batch. A backend is anything with the interface `LookupBackend`; all give the answers of torch's
EmbeddingBag.
"""

from emberline.serving.lookup.backend import LookupBackend
from emberline.serving.lookup.bags import Bags
from emberline.serving.lookup.choice import LOOKUPS, choose_finder, choose_lookup
from emberline.serving.lookup.direct import DirectReader
from emberline.serving.lookup.rows import BagRows, RowFinder
from emberline.serving.lookup.steps import StepCutter, Steps
from emberline.serving.lookup.torch_backend import TorchLookup

__all__ = [
    "LOOKUPS",
    "BagRows",
    "Bags",
    "DirectReader",
    "LookupBackend",
    "RowFinder",
    "StepCutter",
    "Steps",
    "TorchLookup",
    "choose_finder",
    "choose_lookup",
]
