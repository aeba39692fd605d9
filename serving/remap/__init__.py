"""Raw ids to rows: the part of a zero-collision (ZCH) or dynamic table that training keeps beside its vectors.

A trained id reads its own row. Any other id reads the fallback row of the range that it lies in: one range, one row, for each training shard.
`build_index` makes the index (`hashed`, whose memory `lines` lays out and whose compiled form `native` loads); `files` keeps it and its ids on disk.
"""

from emberline.serving.remap.fallback import FallbackRows
from emberline.serving.remap.files import LINES, RemapParts, read_remap, require_sound_values, write_remap
from emberline.serving.remap.hashed import HashedRemap, build_index
from emberline.serving.remap.index import RemapIndex, SortedRemap

__all__ = [
    "LINES",
    "FallbackRows",
    "HashedRemap",
    "RemapIndex",
    "RemapParts",
    "SortedRemap",
    "build_index",
    "read_remap",
    "require_sound_values",
    "write_remap",
]
