"""What one of several ranks does for `test_hash_rows`: `places_on_ranks.py FOLDER`, started with torchrun's variables. Not a test.

FOLDER gets `R-N.pt` of rank N of R: the bags that this rank sent, and what it got, for each case; ids as they are, and positions of vectors.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.routing import unmix
from emberline.train.sharding.hash_rows import PlacesDist
from emberline.train.sharding.process_group import Ranks, process_group

KEYS = ["f", "g", "h"]
EDGES = [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -(2**62), 2**63 - 2]
CASES = ("plain", "weighted", "one rank has none", "no rows", "other rows by key")


def sent(case: str, rank: int) -> KeyedJaggedTensor:
    """The bags that a rank has."""
    generator = torch.Generator().manual_seed(rank * 100 + CASES.index(case))
    rows = {"no rows": [0, 0, 0], "other rows by key": [2 + rank, 0, 3]}.get(case, [4 + rank] * 3)
    lengths = torch.randint(9, (sum(rows),), generator=generator)
    if case == "one rank has none" and rank == 0:
        lengths.zero_()
    count = int(lengths.sum())
    ids = torch.randint(-(2**62), 2**62, (count,), generator=generator) * torch.randint(1, 3, (count,), generator=generator)
    small = torch.rand(count, generator=generator) < 0.5
    ids[small] = torch.randint(-50, 50, (int(small.sum()),), generator=generator)
    ids[: len(EDGES)] = torch.tensor(EDGES)[:count]
    weights = torch.rand(count, generator=generator) if case == "weighted" else None
    strides = {"stride_per_key_per_rank": [[one] for one in rows]} if case == "other rows by key" else {"stride": rows[0]}
    return KeyedJaggedTensor(keys=KEYS, values=ids, lengths=lengths, weights=weights, **strides)


def told(features: KeyedJaggedTensor, ids: torch.Tensor) -> dict[str, Any]:
    """What can be saved of bags."""
    return {"ids": ids, "lengths": features.lengths(), "weights": features.weights_or_none(), "rows": features.stride_per_key()}


def run(ranks: Ranks, folder: Path) -> None:
    """Send each case, pooled and by position."""
    found = {}
    for case in CASES:
        for is_sequence in (False, True):
            places = PlacesDist(dist.group.WORLD, len(KEYS), torch.device("cpu"), is_sequence=is_sequence)
            features = sent(case, ranks.rank)
            got = places(features).wait().wait()
            ids = unmix(got.values()) if ranks.world_size > 1 else got.values()
            found[case, is_sequence] = (told(features, features.values()), told(got, ids), places.unbucketize_permute_tensor)
    torch.save(found, folder / f"{ranks.world_size}-{ranks.rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        run(group, Path(sys.argv[1]))
