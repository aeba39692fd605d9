from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from emberline.encoding import encode
from emberline.errors import DataError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, NumericEncoder
from emberline.train.data import Batch, batch_from_encoded
from emberline.train.data.batch import Asked, Checked, Tile, check_total_ids
from emberline.train.features import BASE_DATA_GROUP, NEG_DATA_GROUP, Feature


def _sparse(name: str, group: str = BASE_DATA_GROUP, weighted: bool = False) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=BucketEncoder(rows=100), separator=",", weighted=weighted)
    return Feature(name=name, spec=spec, data_group=group)


def _dense(name: str, value_dim: int, group: str = BASE_DATA_GROUP) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.DENSE, columns=(name,), encoder=NumericEncoder(), value_dim=value_dim)
    return Feature(name=name, spec=spec, data_group=group)


def _sequence(name: str, value_dim: int = 1, weighted: bool = False) -> Feature:
    feature = _sparse(name, weighted=weighted)
    return replace(feature, spec=replace(feature.spec, sequence=True, value_dim=value_dim, encoded=True))


def _numbers(name: str, value_dim: int) -> Feature:
    feature = _dense(name, value_dim)
    return replace(feature, spec=replace(feature.spec, sequence=True))


def _batch(features: list[Feature], columns: dict[str, list[object]]) -> Batch:
    return batch_from_encoded(features, encode([feature.spec for feature in features], columns))


def test_the_layout_is_feature_after_feature() -> None:
    features = [_sparse("f"), _dense("v", 2), _sparse("g"), _dense("x", 1)]
    batch = _batch(features, {"f": ["7,8", None, 9], "g": [None, 4, "5"], "v": [[1, 2], None, [5, 6]], "x": [7, 8, 9]})
    kjt = batch.sparse_features[BASE_DATA_GROUP]
    assert kjt.keys() == ["f", "g"]
    assert (kjt.values().dtype, kjt.values().tolist()) == (torch.int64, [7, 8, 9, 4, 5])
    assert (kjt.lengths().dtype, kjt.lengths().tolist()) == (torch.int32, [2, 0, 1, 0, 1, 1])
    assert kjt.weights_or_none() is None
    dense = batch.dense_features[BASE_DATA_GROUP]
    assert dense.keys() == ["v", "x"]
    assert (dense.values().dtype, dense.values().tolist()) == (torch.float32, [[1, 2, 7], [0, 0, 8], [5, 6, 9]])
    assert dense["x"].tolist() == [[7], [8], [9]]
    assert batch.num_rows == 3
    assert (batch.labels, batch.sample_weights) == ({}, None)


def test_weights_cover_unweighted_features() -> None:
    batch = _batch([_sparse("f"), _sparse("g", weighted=True)], {"f": ["1,2"], "g": ["3:0.5,4"]})
    weights = batch.sparse_features[BASE_DATA_GROUP].weights()
    assert (weights.dtype, weights.tolist()) == (torch.float32, [1.0, 1.0, 0.5, 1.0])


def test_data_groups_are_kept_apart() -> None:
    features = [_sparse("f"), _sparse("n", NEG_DATA_GROUP, weighted=True), _dense("x", 1, NEG_DATA_GROUP)]
    batch = _batch(features, {"f": [1, 2], "n": [3, 4], "x": [5, 6]})
    assert {group: kjt.keys() for group, kjt in batch.sparse_features.items()} == {BASE_DATA_GROUP: ["f"], NEG_DATA_GROUP: ["n"]}
    assert batch.sparse_features[BASE_DATA_GROUP].weights_or_none() is None
    assert list(batch.dense_features) == [NEG_DATA_GROUP]


def test_no_rows() -> None:
    batch = _batch([_sparse("f"), _sparse("g", weighted=True), _dense("x", 2)], {"f": [], "g": [], "x": []})
    kjt = batch.sparse_features[BASE_DATA_GROUP]
    assert (kjt.stride(), kjt.keys(), kjt.values().shape, kjt.lengths().shape) == (0, ["f", "g"], (0,), (0,))
    assert batch.dense_features[BASE_DATA_GROUP].values().shape == (0, 2)
    assert batch.num_rows == 0


def test_num_rows_of_any_part() -> None:
    assert _batch([_sparse("f")], {"f": [None, None]}).num_rows == 2
    assert _batch([_dense("x", 1)], {"x": [None]}).num_rows == 1
    assert Batch().num_rows == 0
    assert Batch(sample_weights=torch.ones(4)).num_rows == 4
    assert Batch(labels={"y": torch.ones(5)}).num_rows == 5


def test_labels_and_weights_and_another_device() -> None:
    features = [_sparse("f", weighted=True), _dense("x", 1)]
    encoded = encode([feature.spec for feature in features], {"f": ["1:2", 3], "x": [1, 2]})
    labels = {"click": np.array([1, 0]), "stay": np.array([0.5, 2.0], np.float32)}
    batch = batch_from_encoded(features, encoded, labels, np.array([1.0, 3.0], np.float32))
    moved = batch.to("meta")
    assert moved.num_rows == 2
    assert moved.sparse_features[BASE_DATA_GROUP].values().device.type == "meta"
    assert moved.dense_features[BASE_DATA_GROUP].values().device.type == "meta"
    assert {name: label.device.type for name, label in moved.labels.items()} == {"click": "meta", "stay": "meta"}
    back = batch.to("cpu")
    assert back.labels["click"].tolist() == [1, 0]
    assert back.labels["stay"].dtype == torch.float32
    assert back.sample_weights is not None
    assert back.sample_weights.tolist() == [1.0, 3.0]
    assert back.sparse_features[BASE_DATA_GROUP].weights().tolist() == [2.0, 1.0]


def test_a_batch_does_not_share_memory_with_what_it_came_from() -> None:
    ids = np.array([1, 2])
    batch = _batch([_sparse("f")], {"f": ids})  # type: ignore[dict-item]
    batch.sparse_features[BASE_DATA_GROUP].values().fill_(7)
    assert ids.tolist() == [1, 2]


def test_more_ids_than_int32_counts() -> None:
    check_total_ids(2**31 - 1)
    with pytest.raises(DataError, match="2147483648 ids, more than 2147483647"):
        check_total_ids(2**31)


def test_sequences_lie_among_the_other_features() -> None:
    features = [_sparse("f"), _sequence("s"), _numbers("n", 2), _sequence("m", 0), _dense("x", 1)]
    columns: dict[str, list[object]] = {"f": [1, None, 2], "s": [[3, 4], [], [5]], "m": [[[6, 7], []], [], [[8]]], "x": [1, 2, 3]}
    columns["n"] = [[[0.5, 1], [2, 3]], None, [[4, 5]]]
    batch = _batch(features, columns)
    kjt = batch.sparse_features[BASE_DATA_GROUP]
    assert kjt.keys() == ["f", "s", "m"]
    assert kjt.values().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (kjt.lengths().dtype, kjt.lengths().tolist()) == (torch.int32, [1, 0, 1, 2, 0, 1, 2, 0, 1])
    sizes = batch.sequence_mulval_lengths[BASE_DATA_GROUP]
    assert (sizes.keys(), sizes.values().tolist(), sizes.lengths().tolist()) == (["m"], [2, 0, 1], [2, 0, 1])
    assert (sizes.values().dtype, sizes.lengths().dtype, sizes.stride()) == (torch.int32, torch.int32, 3)
    steps = batch.sequence_dense_features["n"]
    assert (steps.values().tolist(), steps.lengths().tolist()) == ([[0.5, 1], [2, 3], [4, 5]], [2, 0, 1])
    assert batch.dense_features[BASE_DATA_GROUP].keys() == ["x"]


def test_a_step_of_one_id_that_has_none_is_told() -> None:
    batch = _batch([_sequence("s"), _sequence("t")], {"s": [[3, None, 4]], "t": [[1, 2, 3]]})
    assert batch.sparse_features[BASE_DATA_GROUP].lengths().tolist() == [2, 3]
    sizes = batch.sequence_mulval_lengths[BASE_DATA_GROUP]
    assert (sizes.keys(), sizes.values().tolist(), sizes.lengths().tolist()) == (["s"], [1, 0, 1], [3])


def test_sequences_of_no_rows_and_on_another_device() -> None:
    features = [_sequence("s", weighted=True), _numbers("n", 2), _sequence("m", 0)]
    batch = _batch(features, {"s": [], "n": [], "m": []})
    assert (batch.num_rows, batch.sparse_features[BASE_DATA_GROUP].stride()) == (0, 0)
    assert batch.sequence_dense_features["n"].values().shape == (0, 2)
    assert batch.sequence_mulval_lengths[BASE_DATA_GROUP].stride() == 0
    moved = _batch(features, {"s": [[1]], "n": [[[1, 2]]], "m": [[[1]]]}).to("meta")
    assert moved.sequence_dense_features["n"].values().device.type == "meta"
    assert moved.sequence_mulval_lengths[BASE_DATA_GROUP].values().device.type == "meta"
    assert _batch([_numbers("n", 1)], {"n": [[1.0], []]}).num_rows == 2


def test_a_stream_that_reads_a_batch_is_told_of_all_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: told.append(tensor.data_ptr()))

    def numbers(count: int) -> torch.Tensor:
        return torch.ones(count)

    def bags(keys: list[str], ids: list[int], weighted: bool = False) -> KeyedJaggedTensor:
        weights = numbers(len(ids)) if weighted else None
        return KeyedJaggedTensor(keys=keys, values=torch.tensor(ids), lengths=torch.tensor([len(ids)]), weights=weights)

    parts = {
        "sparse_features": {BASE_DATA_GROUP: bags(["f"], [1, 2], weighted=True), NEG_DATA_GROUP: bags(["g"], [3])},
        "dense_features": {BASE_DATA_GROUP: KeyedTensor(keys=["v"], length_per_key=[1], values=numbers(1).unsqueeze(0))},
        "sequence_dense_features": {"n": JaggedTensor(values=numbers(2).unsqueeze(1), lengths=torch.tensor([2]))},
        "sequence_mulval_lengths": {BASE_DATA_GROUP: bags(["s"], [1, 1])},
        "labels": {"label": numbers(1)},
    }
    user = Batch(sparse_features={BASE_DATA_GROUP: bags(["u"], [5])})
    batch = Batch(**parts, sample_weights=numbers(1), tile=Tile(user=user, rows=torch.tensor([0])))
    asked = Asked(bags(["f"], [1, 2]), numbers(2))
    batch = batch.marked(Checked(object(), {}, {"ebc": asked}))
    batch.record_stream(torch.Stream(device="cpu"))
    expected = {tensor.data_ptr() for tensor in tensors_in(batch)}
    assert len(expected) == 18
    assert expected <= set(told)
    for other in (batch.to("meta"), batch.to(torch.device("meta"), non_blocking=True)):
        assert {tensor.device.type for tensor in tensors_in(other)} == {"meta"}
        assert len(tensors_in(other)) == len(tensors_in(batch))


def tensors_in(part: object) -> list[torch.Tensor]:
    """All tensors within a batch, found by its fields and those of TorchRec's types."""
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, KeyedJaggedTensor | JaggedTensor):
        found = [part.values(), part.lengths(), part.weights_or_none()]
        return [tensor for tensor in found if tensor is not None]
    if isinstance(part, KeyedTensor):
        return [part.values()]
    if isinstance(part, dict):
        return [tensor for value in part.values() for tensor in tensors_in(value)]
    if is_dataclass(part):
        return [tensor for field in fields(part) for tensor in tensors_in(getattr(part, field.name))]
    return []
