"""Tiled requests made of untiled ones: their users and rows, against lists of what each row holds."""

from typing import Any

import numpy as np
import pytest

from emberline.encoding import EncodedColumns
from emberline.export.cases import odd_cases
from emberline.export.tiling import rows_of_users, tiled_cases
from emberline.schema import ModelSchema
from emberline.serving.request import RequestValidator
from emberline.train.config import parse_config
from emberline.train.models import build_model, features_of
from tests.export.formats.conftest import EVERYTHING


@pytest.fixture(scope="module")
def schema() -> ModelSchema:
    config = parse_config(EVERYTHING)
    return build_model(config, features_of(config)).schema()


def rows_of(encoded: EncodedColumns, name: str) -> list[Any]:
    """What each row holds of a feature: pairs of id and weight, numbers, or steps of these."""
    if name in encoded.dense:
        return encoded.dense[name].tolist()  # type: ignore[no-any-return]
    if name in encoded.dense_sequences:
        steps = encoded.dense_sequences[name]
        return _cut(steps.values.tolist(), steps.lengths.tolist())
    bags = encoded.sparse[name] if name in encoded.sparse else encoded.sparse_sequences[name]
    weights = [1.0] * bags.values.size if bags.weights is None else bags.weights.tolist()
    items = list(zip(bags.values.tolist(), weights, strict=True))
    if name in encoded.sparse:
        return _cut(items, bags.lengths.tolist())
    return _cut(_cut(items, encoded.sparse_sequences[name].step_lengths.tolist()), bags.lengths.tolist())


def _cut(items: list[Any], lengths: list[int]) -> list[list[Any]]:
    found, start = [], 0
    for length in lengths:
        found.append(items[start : start + length])
        start += length
    assert start == len(items)
    return found


def test_a_tiled_case_is_its_untiled_rows(schema: ModelSchema) -> None:
    check = RequestValidator(schema).check
    for case in odd_cases(schema, {"uid_emb": np.array([3, 9])}, {"uid_emb": np.array([-(2**63)])}):
        rows = case.encoded.num_rows
        wanted = [("of several users", rows_of_users(rows))]
        if rows:
            wanted += [("of one user", [rows]), ("of users without rows", [0] * min(rows, 2))]
        found = list(tiled_cases(schema, case))
        assert [tiled.untiled.name for tiled in found] == [f"{case.name}, {name}" for name, _ in wanted]
        for tiled, (_, counts) in zip(found, wanted, strict=True):
            request, untiled = check(tiled.request), tiled.untiled.encoded
            assert request.tile is not None
            assert request.tile.rows_per_user.tolist() == counts
            assert request.num_rows == untiled.num_rows == sum(counts)
            owners = [user % max(rows, 1) for user, count in enumerate(counts) for _ in range(count)]
            for feature in schema.features:
                whole = rows_of(case.encoded, feature.name)
                kept = owners if feature.is_per_user else range(sum(counts))
                assert rows_of(untiled, feature.name) == [whole[row] for row in kept], (tiled.untiled.name, feature.name)
            ids = [entry for name in ("uid", "tags", "liked") for user in range(len(counts)) for entry in rows_of(case.encoded, name)[user % rows]]
            assert request.tile.user.ids[: len(ids)].tolist() == [number for number, _ in ids]


@pytest.mark.parametrize(("rows", "counts"), [(0, []), (1, [0, 1]), (6, [0, 1, 2, 3]), (7, [0, 1, 2, 3, 0, 1])])
def test_rows_are_shared_out_among_users(rows: int, counts: list[int]) -> None:
    assert rows_of_users(rows) == counts
