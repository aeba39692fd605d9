"""Raw ids to rows: the part of a zero-collision (ZCH) or dynamic table that training keeps beside its vectors.

A trained id reads its own row. Any other id reads the fallback row of the range that it lies in: one range, one row, for each training shard.
"""

from emberline.serving.remap.files import read_remap, write_remap
from emberline.serving.remap.index import RemapIndex, SortedRemap

__all__ = ["RemapIndex", "SortedRemap", "read_remap", "write_remap"]
