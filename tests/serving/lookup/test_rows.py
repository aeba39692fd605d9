"""Rows of raw ids: each feature once for each of its tables, whoever asks."""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from emberline.schema import LookupSpec, ModelSchema, Pooling, RawIdEncoder
from emberline.serving.lookup import Bags, RowFinder
from emberline.serving.remap import RemapIndex
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import INT64_MIN, Remap, make_lookup_model, sparse
from tests.serving.remap.oracle import by_kernel

REMAPS = {"t": Remap({100: 1, 200: 2}), "wide": Remap({100: 5}, {INT64_MIN: 0})}


class Counted:
    """An index that counts how often it is asked."""

    def __init__(self, name: str, index: RemapIndex, asked: Counter[str]) -> None:
        self.num_ids = index.num_ids
        self._name, self._index, self._asked = name, index, asked

    def __call__(self, raw_ids: Tensor) -> tuple[Tensor, Tensor]:
        self._asked[self._name] += 1
        return self._index(raw_ids)

    def reading(self, row: int) -> "Counted":
        return Counted(self._name, self._index.reading(row), self._asked)


def schema_of() -> ModelSchema:
    """Feature f reads table t twice and table wide once, feature g table t, feature h a table of its own without a remap."""
    reads = [("f@sum", "f", "t"), ("f@mean", "f", "t"), ("f@wide", "f", "wide"), ("g", "g", "t"), ("h", "h", "plain")]
    lookups = tuple(
        LookupSpec(key=key, feature=feature, table=table, pooling=Pooling.MEAN if "mean" in key else Pooling.SUM, dim=2)
        for key, feature, table in reads
    )
    tables = {name: torch.zeros(8, 2) for name in ("t", "wide", "plain")}
    return make_lookup_model(lookups, tuple(sparse(name, RawIdEncoder()) for name in "fgh"), tables, REMAPS).schema


def test_each_feature_is_looked_up_once_for_each_of_its_tables() -> None:
    schema, asked = schema_of(), Counter[str]()
    finder = RowFinder(schema, {name: Counted(name, by_kernel(remap), asked) for name, remap in REMAPS.items()})
    ids = np.array([100, 200, 7, 200, 3, 4], np.int64)
    request = PackedRequest(ids, np.array([3, 0, 1, 0, 2, 0], np.int32))
    rows = finder(Bags.cut(RequestValidator(schema).check(request), 3, torch.device("cpu")))
    assert rows.of(0, "t").tolist() == [1, 2, 7]
    assert rows.of(0, "wide").tolist() == [5, 0, 0]
    assert rows.of(1, "t").tolist() == [2]
    assert rows.of(2, "plain").tolist() == [3, 4]
    assert rows.known().tolist() == [True, False, False, True, True, True]
    assert asked == {"t": 2, "wide": 1}
