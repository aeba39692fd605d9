"""Whole models on tiled batches: one answer for each row, that of the untiled batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emberline.encoding import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.train.config import load_config
from emberline.train.data import tiled_from_encoded, untile_batch
from emberline.train.data.tile import is_user_side
from emberline.train.features import BASE_DATA_GROUP, Feature
from emberline.train.models import build_model, features_of

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def columns(features: list[Feature], rows: int, seed: int) -> EncodedColumns:
    """Random ids and numbers of each feature; all sequences of a name with as many steps."""
    rng = np.random.default_rng(seed)
    found = EncodedColumns(rows, {}, {})
    lengths: dict[str, np.ndarray[tuple[int], np.dtype[np.int32]]] = {}

    def counts(size: int, least: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return rng.integers(least, 3, size).astype(np.int32)

    for feature in features:
        steps = lengths.setdefault(feature.sequence_name or feature.name, counts(rows))
        sizes = counts(int(steps.sum()) if feature.is_sequence else rows)
        if feature.is_sequence and feature.value_dim == 1:
            sizes[:] = 1
        elif feature.is_sparse and feature.value_dim:
            np.minimum(sizes, feature.value_dim, out=sizes)
        ids = rng.integers(0, max(feature.rows, 1), int(sizes.sum()))
        weights = rng.random(ids.size, np.float32) if feature.is_weighted else None
        numbers = rng.random((int(steps.sum()) if feature.is_sequence else rows, max(feature.value_dim, 1)), np.float32)
        match feature.is_sparse, feature.is_sequence:
            case True, True:
                found.sparse_sequences[feature.name] = JaggedSteps(ids, sizes, steps, weights)
            case True, False:
                found.sparse[feature.name] = Jagged(ids, sizes, weights)
            case False, True:
                found.dense_sequences[feature.name] = DenseSteps(numbers, steps)
            case _:
                found.dense[feature.name] = numbers
    return found


@pytest.mark.parametrize("name", ["autodis", "mmoe", "movielens_deepfm", "multi_tower_din"])
@pytest.mark.parametrize("owners", [[0, 0, 0, 0, 0], [2, 0, 1, 1, 0], []])
def test_answers_of_the_examples(name: str, owners: list[int]) -> None:
    config = load_config(EXAMPLES / f"{name}.pbtxt")
    features = features_of(config)
    assert all(feature.data_group == BASE_DATA_GROUP for feature in features)
    torch.manual_seed(0)
    model = build_model(config, features).eval()
    user = columns([feature for feature in features if is_user_side(feature)], max(owners, default=0) + 1, 1)
    item = columns([feature for feature in features if not is_user_side(feature)], len(owners), 2)
    tiled = tiled_from_encoded(features, user, item, np.array(owners, np.int64))
    with torch.no_grad():
        found, expected = model(tiled), model(untile_batch(tiled))
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        assert tensor.shape[0] == len(owners)
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-6)
