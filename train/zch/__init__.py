"""Zero-collision hashing: raw 64-bit ids get rows of their own, learned in training.

Two kinds of id maps, alike in what `id_map` says: `module` sorts ids and scores them by `policies`; `hashed` has them lie near their hashes, in the
slots that `probing` gives them, in `buckets`. `resets` says what happens to a row that changes owner; `routing` which part of a table an id belongs
to, `exchange` sends it there, and `reshard` and `rehash` cut a map into other parts.

Under `DistributedModelParallel`, the sharder of managed-collision collections rebuilds each map for its rank (row_wise, FUSED kernel), and the
embedding group connects the maps with the kernels in its first forward. Sharding
makes empty maps, so load a state (`load_state_from_checkpoint`) after it.
"""

from emberline.train.zch.buckets import default_buckets, sharing_problem
from emberline.train.zch.build import build_map
from emberline.train.zch.exchange import MapSharder
from emberline.train.zch.hashed import HashedZchModule
from emberline.train.zch.id_map import FREE_ROW, IdMap, ZchCounters, remap_entries, zch_modules
from emberline.train.zch.module import ZchModule
from emberline.train.zch.numbers import zch_numbers
from emberline.train.zch.policies import build_policy
from emberline.train.zch.resets import KernelRowReset, RowResetCallback, install_row_resets, reset_vectors, zero_moments
from emberline.train.zch.reshard import FRESH, NewShard, WholeMap, cut_anew, numbers_of_all
from emberline.train.zch.routing import BY_RANGE, MIXED, ROUTINGS, owner_of

__all__ = [
    "BY_RANGE",
    "FREE_ROW",
    "FRESH",
    "MIXED",
    "ROUTINGS",
    "HashedZchModule",
    "IdMap",
    "KernelRowReset",
    "MapSharder",
    "NewShard",
    "RowResetCallback",
    "WholeMap",
    "ZchCounters",
    "ZchModule",
    "build_map",
    "build_policy",
    "cut_anew",
    "default_buckets",
    "install_row_resets",
    "numbers_of_all",
    "owner_of",
    "remap_entries",
    "reset_vectors",
    "sharing_problem",
    "zch_modules",
    "zch_numbers",
    "zero_moments",
]
