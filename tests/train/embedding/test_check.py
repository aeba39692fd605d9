"""Batches that were checked before `forward`: the same answers without a look at any value, and every fault told by `check` too.

A look at a value is a wait for the device. That there is none is seen in three ways: on the `meta` device, where nothing has a value, so that any
look fails; by the operators that hand values to the host; and by the methods of tensors that do. None sees what C++ kernels do inside.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import DataError
from emberline.schema import GroupKind, Pooling
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import NEG_DATA_GROUP, AutoDisConfig, MlpEmbeddingConfig
from tests.train.embedding import tiled_case

SEQUENCE, JAGGED, WIDE = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE, GroupKind.WIDE
OPERATORS = ("_local_scalar_dense", "is_nonzero", "equal", "item", "nonzero", "masked_select", "bincount", "_unique2", "unique_consecutive")
METHODS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__iter__", "__array__", "__contains__", "equal", "cpu")


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of operators whose result, or its size, is a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = func._schema.name.split("::")[1]
        sized = name == "repeat_interleave" and func._overloadname == "Tensor" and (kwargs or {}).get("output_size") is None
        masked = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name in OPERATORS or sized or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """Keeps the names of tensors' methods that hand values to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if getattr(func, "__name__", "") in METHODS:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


def looks(call: Callable[[], object]) -> list[str]:
    """The looks at values in a call."""
    operators, methods = _Operators(), _Methods()
    with operators, methods:
        call()
    return operators.found + methods.found


def system(make: Any, *, padded: bool) -> tuple[EmbeddingGroup, Batch]:
    """DEEP, WIDE, JAGGED_SEQUENCE and, where `padded`, SEQUENCE groups, of everything that they may have."""
    steps = ("s", "wide_s", "m", "n", "auto")
    features = [
        make.sparse("a"),
        make.sparse("w", weighted=True, pooling=Pooling.MEAN),
        make.sparse("v", weighted=True),
        make.dense("d", 2),
        make.dense("mlp", 3, dense_embedding=MlpEmbeddingConfig(), embedding_dim=4),
        make.sequence("s", embedding_name="a_emb"),
        make.sequence("wide_s", dim=8),
        make.sequence("m", value_dim=0, pooling=Pooling.MEAN, weighted=True),
        make.numbers("n", 2),
        make.numbers("auto", dense_embedding=AutoDisConfig(num_channels=3), embedding_dim=4),
        make.sparse("negative", embedding_name="a_emb", data_group=NEG_DATA_GROUP),
    ]
    groups = [
        make.group("deep", "a", "w", "v", "d", "mlp"),
        make.group("wide", "a", "w", group_type=WIDE),
        make.group("jagged", "a", "d", "mlp", *steps, group_type=JAGGED),
        make.group("negatives", "negative"),
        *([make.group("padded", "w", *steps, group_type=SEQUENCE)] if padded else []),
    ]
    batch = make.steps(
        {"v": [[0], [], [4, 4]], "a": [[1, 2], [], [9]], "w": [[3], [4, 5], []], "s": [[1, 2], [], [3]], "wide_s": [[4, 5], [], [6]]},
        multi={"m": [[[1, 2], []], [], [[3]]]},
        numbers={"n": [[[1, 2], [3, 4]], [], [[5, 6]]], "auto": [[[0.1], [0.2]], [], [[0.3]]]},
        dense={"mlp": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "d": [[1, 2], [3, 4], [5, 6]]},
        weights={"w": [[0.5], [1, -1], []], "m": [[1, 2], [], [0.5]], "v": [[2], [], [1, 3]]},
    )
    batch.sparse_features[NEG_DATA_GROUP] = make.kjt({"negative": [[1], [2, 3], [], [4]]})
    return EmbeddingGroup(features, groups), batch


@pytest.mark.parametrize("padded", [False, True])
def test_no_value_of_a_checked_batch_is_looked_at_and_answers_are_the_same(make: Any, padded: bool) -> None:
    group, batch = system(make, padded=padded)
    expected, checked = group(batch), group.check(batch)
    assert looks(lambda: group(batch)) != []
    assert looks(lambda: group(checked)) == []
    for forms in (group(checked), group(checked.to("cpu"))):
        assert list(forms) == list(expected)
        assert all(torch.equal(forms[key], expected[key]) for key in expected)
    pieces = group.assemble(group.lookup(checked), group.dense(checked), group.sequence_lookup(checked))
    assert torch.equal(pieces["deep"][:3], expected["deep"])


@pytest.mark.parametrize("padded", [False, True])
def test_forward_of_a_checked_batch_needs_no_values(make: Any, padded: bool) -> None:
    """As on another device, where CPU kernels do not stand in."""
    group, batch = system(make, padded=padded)
    expected, checked = group(batch), group.check(batch).to("meta")
    group.to("meta")
    found = group(checked)
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in expected.items()
    }
    assert {tensor.device.type for tensor in found.values()} == {"meta"}
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        group(batch.to("meta"))


def test_gradients_of_a_checked_batch_are_the_same(make: Any) -> None:
    group, batch = system(make, padded=True)
    gradients = []
    for form in (batch, group.check(batch)):
        group.zero_grad()
        sum(tensor.sum() for key, tensor in group(form).items() if not key.endswith("_length")).backward()
        gradients.append({name: None if weight.grad is None else weight.grad.clone() for name, weight in group.named_parameters()})
    for name, gradient in gradients[0].items():
        other = gradients[1][name]
        assert gradient is not None, name
        assert other is not None, name
        assert torch.equal(gradient, other), name


def test_ways_of_finding_looks(make: Any) -> None:
    ones = torch.ones(2, dtype=torch.int64)
    asks: dict[str, Callable[[], object]] = {
        "item": lambda: ones[0].item(),
        "int": lambda: int(ones[0]),
        "bool": lambda: bool(ones[0]),
        "tolist": lambda: ones.tolist(),
        "numpy": lambda: ones.numpy(),
        "equal": lambda: torch.equal(ones, ones),
        "nonzero": lambda: ones.nonzero(),
        "mask": lambda: ones[ones > 0],
        "repeat": lambda: torch.repeat_interleave(ones),
    }
    assert [name for name, ask in asks.items() if not looks(ask)] == []
    assert looks(lambda: torch.repeat_interleave(ones, output_size=2) + ones.sum()) == []


def test_the_mark_goes_to_other_devices_and_no_further(make: Any) -> None:
    group, batch = system(make, padded=True)
    checked = group.check(batch)
    assert batch.checked is None
    assert checked.checked is not None
    assert dict(checked.checked.longest) == {"s": 2}
    assert checked.to("cpu").checked == checked.checked
    assert replace(checked, labels={}).checked is None
    assert group.check(checked).checked is not None
    bad = replace(checked, sparse_features={**batch.sparse_features, NEG_DATA_GROUP: make.kjt({"negative": [[10]]})})
    with pytest.raises(DataError, match="feature 'negative' has id 10"):
        group(bad)


def test_a_batch_is_checked_on_its_way_to_a_device(make: Any) -> None:
    group, batch = system(make, padded=True)
    assert group.on_device(batch, torch.device("cpu")).checked is None
    moved = group.on_device(batch, torch.device("meta"))
    assert moved.checked == group.check(batch).checked
    assert next(iter(moved.sparse_features.values())).device().type == "meta"
    wrong = _sparse(batch, values=_changed(_ids(batch).values(), 0, -1))
    with pytest.raises(DataError, match="has id -1"):
        group.on_device(wrong, torch.device("meta"))


def test_another_group_does_not_rely_on_the_mark(make: Any) -> None:
    large = EmbeddingGroup([make.sparse("f", rows=20)], [make.group("g", "f")])
    small = EmbeddingGroup([make.sparse("f", rows=10)], [make.group("g", "f")])
    checked = large.check(make.batch({"f": [[15]]}))
    with pytest.raises(DataError, match="feature 'f' has id 15, but its table holds rows 0 to 9"):
        small(checked)
    assert looks(lambda: large(checked)) == []
    assert looks(lambda: copy.deepcopy(large)(checked)) != []
    assert looks(lambda: large(copy.deepcopy(checked))) != []


@pytest.mark.parametrize("rows", [0, 1])
def test_batches_without_steps_or_rows(make: Any, rows: int) -> None:
    group = EmbeddingGroup(
        [make.sparse("a"), make.sequence("s")], [make.group("p", "a", "s", group_type=SEQUENCE), make.group("j", "s", group_type=JAGGED)]
    )
    batch = make.steps({"a": [[]] * rows, "s": [[]] * rows})
    found = group(group.check(batch))
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {key: tuple(tensor.shape) for key, tensor in group(batch).items()}
    assert found["p.sequence"].shape == (rows, 0, 4)


def test_a_tiled_batch_is_checked_in_forward(make: Any) -> None:
    group, case = EmbeddingGroup(tiled_case.features(make), tiled_case.groups(make)), tiled_case.draw(make, 0, [0, 1, 0], 2)
    checked = group.eval().check(case.tiled)
    assert (checked.checked, group.check(case.untiled).checked is None) == (None, False)
    found, expected = group(checked), group(case.untiled)
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-5, atol=1e-5)


Fault = Callable[[Any, Batch], Batch]


def _sparse(batch: Batch, **other: Any) -> Batch:
    """The batch with some parts of its ids replaced."""
    kjt = batch.sparse_features["__BASE__"]
    parts = {"keys": kjt.keys(), "values": kjt.values(), "lengths": kjt.lengths(), "weights": kjt.weights()} | other
    return replace(batch, sparse_features={**batch.sparse_features, "__BASE__": KeyedJaggedTensor(**parts)})


def _changed(values: Tensor, place: int, value: float) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


def _ids(batch: Batch) -> KeyedJaggedTensor:
    return batch.sparse_features["__BASE__"]


FAULTS: dict[str, tuple[Fault, str]] = {
    "id of a pooled table": (lambda make, batch: _sparse(batch, values=_changed(_ids(batch).values(), 6, 10)), "feature 'w' has id 10"),
    "id of a table of steps": (lambda make, batch: _sparse(batch, values=_changed(_ids(batch).values(), 3, -1)), "feature 'a' has id -1"),
    "id of negatives": (
        lambda make, batch: replace(batch, sparse_features={"__BASE__": _ids(batch), NEG_DATA_GROUP: make.kjt({"negative": [[2**40]]})}),
        "feature 'negative' has id 1099511627776",
    ),
    "ids of another type": (lambda make, batch: _sparse(batch, values=_ids(batch).values().float()), "ids must be a flat int64 or int32 tensor"),
    "a negative length": (lambda make, batch: _sparse(batch, lengths=_changed(_ids(batch).lengths(), 0, -1)), "a length is negative"),
    "lengths of more": (
        lambda make, batch: _sparse(batch, lengths=_changed(_ids(batch).lengths(), 0, 9)),
        "lengths add up to 26, but there are 18 ids",
    ),
    "lengths of no rows": (lambda make, batch: _sparse(batch, lengths=_ids(batch).lengths()[1:]), "17 lengths do not make whole rows"),
    "other keys": (lambda make, batch: _sparse(batch, keys=["v", "b", "w", "s", "wide_s", "m"]), "sparse features of __BASE__: a missing"),
    "keys twice": (lambda make, batch: _sparse(batch, keys=["v", "v", "w", "s", "wide_s", "m"]), "v come more than once"),
    "too few weights": (lambda make, batch: _sparse(batch, weights=_ids(batch).weights()[1:]), "17 weights for 18 ids"),
    "a weight that is no number": (
        lambda make, batch: _sparse(batch, weights=_changed(_ids(batch).weights(), 0, float("nan"))),
        "feature 'v' has weights that are not finite",
    ),
    "weights that none declared": (
        lambda make, batch: _sparse(batch, weights=_changed(_ids(batch).weights(), 4, 2)),
        "feature 'a' has weights, but is not declared weighted",
    ),
    "no ids": (lambda make, batch: replace(batch, sparse_features={}), "the batch has no sparse features of __BASE__"),
    "no numbers": (lambda make, batch: replace(batch, dense_features={}), "the batch has no dense features of __BASE__"),
    "numbers of other rows": (
        lambda make, batch: replace(batch, dense_features=make.batch(None, {"d": [[1, 2]], "mlp": [[1, 2, 3]]}).dense_features),
        "__BASE__ has 3 rows of sparse features but 1 of dense ones",
    ),
    "numbers missing": (
        lambda make, batch: replace(batch, dense_features=make.batch(None, {"mlp": [[1, 2, 3]] * 3}).dense_features),
        "dense features of __BASE__: d missing",
    ),
    "numbers of another width": (
        lambda make, batch: replace(batch, dense_features=make.batch(None, {"d": [[1]] * 3, "mlp": [[1, 2, 3]] * 3}).dense_features),
        "feature 'd' has 1 numbers a row, but value_dim 2",
    ),
    "no sizes of steps": (lambda make, batch: replace(batch, sequence_mulval_lengths={}), "sequence 'm' has steps of any number of ids"),
    "other sizes of steps": (
        lambda make, batch: replace(batch, sequence_mulval_lengths={"__BASE__": make.kjt({"m": [[1, 0], [], [1]]})}),
        "sequence 'm' has 2 ids in row 0, but its steps add up to 1",
    ),
    "sizes of fewer than none": (
        lambda make, batch: replace(batch, sequence_mulval_lengths={"__BASE__": make.kjt({"m": [[3, -1], [], [1]]})}),
        "sequence 'm' has a step of -1 ids",
    ),
    "sizes of other rows": (
        lambda make, batch: replace(batch, sequence_mulval_lengths={"__BASE__": make.kjt({"m": [[2, 0], []]})}),
        "sequence 'm' has ids for 3 rows, but steps for 2",
    ),
    "no steps of numbers": (lambda make, batch: replace(batch, sequence_dense_features={}), "the batch has no sequence 'n'"),
    "steps of another width": (
        lambda make, batch: replace(batch, sequence_dense_features={**batch.sequence_dense_features, "n": make.jagged([[[1], [3]], [], [[5]]])}),
        r"sequence 'n' has numbers of shape \[3, 1\], but value_dim 2",
    ),
    "one step less": (
        lambda make, batch: replace(batch, sequence_dense_features={**batch.sequence_dense_features, "n": make.jagged([[[1, 2]], [], [[5, 6]]])}),
        "puts features 's' and 'n' side by side, but they have 2 and 1 steps in row 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_forward_refuses_check_refuses_in_the_same_words(make: Any, fault: str) -> None:
    group, batch = system(make, padded=True)
    change, words = FAULTS[fault]
    bad = change(make, batch)
    with pytest.raises(DataError, match=words) as in_forward:
        group(bad)
    with pytest.raises(DataError) as in_check:
        group.check(bad)
    assert str(in_check.value) == str(in_forward.value)
    with pytest.raises(DataError, match=words):
        group(change(make, group.check(batch)))
