"""Every form of the id index over one dictionary, and the ids to ask for."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from emberline.serving.remap import FallbackRows, RemapIndex, SortedRemap, build_index
from tests.serving.conftest import INT64_MIN, Remap

Build = Callable[[Remap], RemapIndex]
IDS = st.one_of(
    st.integers(INT64_MIN, 2**63 - 1),
    st.integers(-3, 3),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, 2**63 - 2, 2**63 - 1, -1, 0]),
    st.builds(lambda exponent, number: number << exponent, st.integers(0, 56), st.integers(-64, 63)),
)
ASKED = st.one_of(IDS, st.just(2**63 - 1))


def long(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def fallback_of(remap: Remap) -> FallbackRows:
    starts = sorted(remap.fallbacks)
    return FallbackRows(long(starts), long([remap.fallbacks[start] for start in starts]))


def parts_of(remap: Remap) -> tuple[Tensor, Tensor, FallbackRows]:
    raw_ids = sorted(remap.rows)
    return long(raw_ids), long([remap.rows[raw_id] for raw_id in raw_ids]), fallback_of(remap)


def by_sorting(remap: Remap) -> RemapIndex:
    return SortedRemap(*parts_of(remap))


def by_kernel(remap: Remap) -> RemapIndex:
    return build_index(*parts_of(remap), num_rows=2**31 - 1)


def by_torch(remap: Remap) -> RemapIndex:
    return build_index(*parts_of(remap), num_rows=2**31 - 1, native=False)


FORMS: tuple[Build, ...] = (by_sorting, by_kernel, by_torch)


def check(index: RemapIndex, remap: Remap, asked: list[int]) -> None:
    """The index says of each id what the dictionary says."""
    rows, known = index(long(asked))
    assert (rows.dtype, known.dtype) == (torch.int64, torch.bool)
    assert rows.tolist() == [remap.row(raw_id) for raw_id in asked]
    assert known.tolist() == [raw_id in remap.rows for raw_id in asked]
