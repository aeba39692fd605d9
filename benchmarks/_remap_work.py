"""The work that `remap.py` measures: ids, queries, and the forms that answer them.

Letters: K ids of the index, N ids of a batch.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.compiled import library_folders, open_library
from emberline.serving.remap import FallbackRows, HashedRemap, build_index
from emberline.serving.remap.lines import home_of

BATCH = 100_000
KNOWN_SHARE = 0.9
AHEAD = (16, 32, 64)
PROBE = Path(__file__).with_name("_lines.c")
Rows = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Ids:
    """K random ids, ascending, and their rows: a permutation. Any other id reads row K."""

    raw_ids: Tensor
    rows: Tensor

    @property
    def num(self) -> int:
        """K."""
        return self.raw_ids.numel()

    @property
    def fallback(self) -> FallbackRows:
        """Row K, for all ids."""
        return FallbackRows(torch.tensor([-(2**63)]), torch.tensor([self.num]))


def make_ids(num: int) -> Ids:
    source = np.random.default_rng(num)
    raw_ids = np.unique(source.integers(-(2**63), 2**63 - 1, num))
    return Ids(torch.from_numpy(raw_ids), torch.from_numpy(source.permutation(raw_ids.size)))


def make_queries(ids: Ids, kind: str, num_batches: int) -> list[Tensor]:
    """Batches of 100,000 ids, nine in ten known: uniform, or Zipf (the r-th most frequent comes 1 / r times as often), scattered over the ids."""
    source = np.random.default_rng(7)
    ranks = source.permutation(ids.num) if kind == "Zipf" else None
    batches = []
    for _ in range(num_batches):
        places = source.integers(0, ids.num, BATCH) if ranks is None else ranks[(ids.num ** source.random(BATCH)).astype(np.int64) - 1]
        others = torch.from_numpy(source.integers(-(2**63), 2**63 - 1, BATCH))
        known = torch.from_numpy(source.random(BATCH) < KNOWN_SHARE)
        batches.append(torch.where(known, ids.raw_ids[torch.from_numpy(places)], others))
    return batches


@dataclass(frozen=True, eq=False)
class Form:
    """One way to find rows.

    Args:
        name: as the table shows it.
        rows_of: ids [N] -> rows [N].
        build_s: seconds to make it from sorted ids and rows.
        bytes_per_id: what it keeps in memory.
    """

    name: str
    rows_of: Rows
    build_s: float
    bytes_per_id: float


def make_forms(ids: Ids, *, with_dict: bool) -> list[Form]:
    """Every form, ours first."""
    forms = [_hashed(ids, native=True), _hashed(ids, native=False), _torchrec(ids), _searchsorted(ids)]
    return [*forms, _dictionary(ids)] if with_dict else forms


def _hashed(ids: Ids, *, native: bool) -> Form:
    start = time.perf_counter()
    index = build_index(ids.raw_ids, ids.rows, ids.fallback, num_rows=ids.num + 1, native=native)
    build_s = time.perf_counter() - start
    assert isinstance(index, HashedRemap)
    return Form("emberline" if native else "emberline, numpy and torch", lambda raw_ids: index(raw_ids)[0], build_s, index.num_bytes / ids.num)


def _torchrec(ids: Ids) -> Form:
    """TorchRec's module in eval mode, with the ids as if it had learned them."""
    start = time.perf_counter()
    size = ids.num + 1
    module = MCHManagedCollisionModule(
        zch_size=size, device=torch.device("cpu"), eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=1, output_segments=[0, size]
    )
    module._mch_sorted_raw_ids[:-1] = ids.raw_ids
    module._mch_remapped_ids_mapping[:-1] = ids.rows
    module._mch_remapped_ids_mapping[-1] = ids.num
    module.eval()
    build_s = time.perf_counter() - start
    num_bytes = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())

    def rows_of(raw_ids: Tensor) -> Tensor:
        features = {"f": JaggedTensor(values=raw_ids, lengths=torch.tensor([raw_ids.numel()]))}
        found: Tensor = module.remap(features)["f"].values()
        return found

    return Form("TorchRec, eval mode", rows_of, build_s, num_bytes / ids.num)


def _searchsorted(ids: Ids) -> Form:
    def rows_of(raw_ids: Tensor) -> Tensor:
        places = torch.searchsorted(ids.raw_ids, raw_ids).clamp_(max=ids.num - 1)
        return torch.where(ids.raw_ids[places] == raw_ids, ids.rows[places], ids.num)

    return Form("torch.searchsorted", rows_of, 0.0, 16.0)


def _dictionary(ids: Ids) -> Form:
    start = time.perf_counter()
    rows = dict(zip(ids.raw_ids.tolist(), ids.rows.tolist(), strict=True))
    build_s = time.perf_counter() - start
    other = ids.num

    def rows_of(raw_ids: Tensor) -> Tensor:
        return torch.tensor([rows.get(raw_id, other) for raw_id in raw_ids.tolist()])

    per_id = rows.__sizeof__() / ids.num + 32 + 32  # the table, and a number object for each id and row
    return Form("Python dict", rows_of, build_s, per_id)


def line_probes(ids: Ids, batches: list[Tensor]) -> list[Callable[[int], int]]:
    """Functions that read the home lines of a batch's ids, by its number, and nothing else; each asks for another number of lines ahead.

    No index that reads a line for each id can be faster.
    """
    index = build_index(ids.raw_ids, ids.rows, ids.fallback, num_rows=ids.num + 1)
    assert isinstance(index, HashedRemap)
    library, _ = open_library(PROBE, library_folders(PROBE))
    library.touch.argtypes, library.touch.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    places = [home_of(batch, index.num_homes, index.seed) for batch in batches]

    def probe(ahead: int) -> Callable[[int], int]:
        return lambda number: int(library.touch(places[number].data_ptr(), BATCH, index.lines.data_ptr(), ahead))

    return [probe(ahead) for ahead in AHEAD]
