import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import DataError
from emberline.train.embedding.jagged import check_jagged, check_rows, concatenated, pick, side_by_side, with_sum_weights


def raw(keys: list[str], values: list[int], lengths: list[int], **other: object) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys=keys, values=torch.tensor(values, dtype=torch.int64), lengths=torch.tensor(lengths, dtype=torch.int32), **other)


@pytest.mark.parametrize(
    ("kjt", "words"),
    [
        (raw(["f"], [1, 2, 3], [1, 1]), "lengths add up to 2, but there are 3 ids"),
        (raw(["f"], [1, 2, 3], [3, 1]), "lengths add up to 4, but there are 3 ids"),
        (raw(["f"], [1, 2, 3], [4, -1]), r"a length is negative \(-1\)"),
        (raw(["f", "g"], [1, 2, 3], [1, 1, 1]), "3 lengths do not make whole rows of 2 features"),
        (raw(["f", "f"], [1, 2], [1, 1]), "f come more than once"),
        (raw(["f"], [1], [1], weights=torch.ones(2)), "2 weights for 1 ids"),
        (KeyedJaggedTensor(keys=["f"], values=torch.tensor([1.0]), lengths=torch.tensor([1])), "ids must be a flat int64 or int32 tensor"),
        (
            KeyedJaggedTensor(
                keys=["f", "g"], values=torch.tensor([1, 2, 3]), lengths=torch.ones(3, dtype=torch.int32), stride_per_key_per_rank=[[2], [1]]
            ),
            "different numbers of rows",
        ),
    ],
)
def test_malformed_bags_are_refused_before_any_kernel(kjt: KeyedJaggedTensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        check_jagged(kjt, "__BASE__", {"f", "g"})


def test_weights_need_a_declaration_and_must_be_finite() -> None:
    kjt = raw(["f", "g"], [1, 2, 3], [2, 1], weights=torch.tensor([1.0, 1.0, 0.5]))
    check_jagged(kjt, "__BASE__", {"g"})
    with pytest.raises(DataError, match="feature 'g' has weights, but is not declared weighted"):
        check_jagged(kjt, "__BASE__", {"f"})
    for bad in (math.nan, math.inf):
        with pytest.raises(DataError, match="feature 'f' has weights that are not finite"):
            check_jagged(raw(["f"], [1], [1], weights=torch.tensor([bad])), "__BASE__", {"f"})


@pytest.mark.parametrize("bad", [10, -1, 2**40, 2**63 - 1, -(2**63)])
def test_ids_outside_a_table_are_refused_by_name(make: Any, bad: int) -> None:
    kjt = make.kjt({"a": [[99], []], "b": [[9], [0, bad]]})
    with pytest.raises(DataError, match=f"feature 'b' has id {bad}, but its table holds rows 0 to 9"):
        check_rows(kjt, [100, 10])
    check_rows(make.kjt({"a": [[99], []], "b": [[9], [0]]}), [100, 10])
    check_rows(make.kjt({"a": [], "b": []}), [100, 10])


def test_the_first_of_several_features_with_bad_ids_is_named(make: Any) -> None:
    kjt = make.kjt({"a": [[9], []], "b": [[], [3, -7]], "c": [[12], [1]], "d": [[5], []]})
    with pytest.raises(DataError, match="feature 'b' has id -7, but its table holds rows 0 to 9"):
        check_rows(kjt, [10, 10, 10, 5])
    with pytest.raises(DataError, match="feature 'c' has id 12, but its table holds rows 0 to 11"):
        check_rows(make.kjt({"a": [[9], []], "b": [[], [3]], "c": [[12], [1]], "d": [[5], []]}), [10, 10, 12, 5])


def test_flat_tensors_are_only_copied_where_they_do_not_lie_in_order() -> None:
    flat = torch.arange(6)
    parts = list(torch.split(flat, [2, 0, 3, 1]))
    view = concatenated(parts[1:])
    assert (view.tolist(), view.data_ptr()) == ([2, 3, 4, 5], flat[2:].data_ptr())
    assert concatenated([parts[2], parts[0]]).tolist() == [2, 3, 4, 0, 1]
    assert concatenated([flat[:2], flat[2:].clone()]).tolist() == [0, 1, 2, 3, 4, 5]
    assert concatenated([flat[::2], flat[1::2]]).tolist() == [0, 2, 4, 1, 3, 5]


def test_pick_reorders_repeats_and_renames(make: Any) -> None:
    kjt = make.kjt({"a": [[1, 2], [], [3]], "b": [[], [4], [5, 6]]}, {"b": [[], [0.5], [2.0, 3.0]]})
    picked = pick(kjt, ["b", "a", "b"], ["x", "y", "z"])
    assert picked.keys() == ["x", "y", "z"]
    assert picked.values().tolist() == [4, 5, 6, 1, 2, 3, 4, 5, 6]
    assert picked.lengths().tolist() == [0, 1, 2, 2, 0, 1, 0, 1, 2]
    assert picked.weights().tolist() == [0.5, 2.0, 3.0, 1.0, 1.0, 1.0, 0.5, 2.0, 3.0]


def test_pick_widens_ids() -> None:
    kjt = KeyedJaggedTensor(keys=["a"], values=torch.tensor([1, 2], dtype=torch.int32), lengths=torch.tensor([2]))
    assert pick(kjt, ["a"], ["a"]).values().dtype == torch.int64


def test_data_groups_of_unequal_batches_lie_side_by_side(make: Any) -> None:
    parts = [make.kjt({"a": [[1, 2]]}), make.kjt({"b": [[3], [], [4]], "c": [[], [5], []]}, {"b": [[0.5], [], [2.0]]})]
    kjt = side_by_side(parts, 3)
    assert kjt.keys() == ["a", "b", "c"]
    assert kjt.lengths().tolist() == [2, 0, 0, 1, 0, 1, 0, 1, 0]
    assert kjt.values().tolist() == [1, 2, 3, 4, 5]
    assert kjt.weights().tolist() == [1.0, 1.0, 0.5, 2.0, 1.0]


WEIGHTS = st.one_of(st.floats(-8, 8, width=32), st.just(0.0))


@given(st.lists(st.lists(WEIGHTS, max_size=4), max_size=5), st.booleans())
def test_sum_weights_make_a_plain_sum_of_any_pooling(bags: list[list[float]], mean: bool) -> None:
    flat = [weight for bag in bags for weight in bag]
    lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int32)
    kjt = KeyedJaggedTensor(
        keys=["f"], values=torch.zeros(len(flat), dtype=torch.int64), lengths=lengths, weights=torch.tensor(flat), stride=len(bags)
    )
    found = iter(with_sum_weights(kjt, [mean]).weights().tolist())
    for bag in bags:
        total = sum(bag)  # of float32 numbers in float64, as the code does it
        for weight in bag:
            expected = weight if not mean else 0.0 if total == 0 else weight / total
            assert next(found) == pytest.approx(expected, rel=1e-6, abs=1e-30)


def test_ids_without_weights_count_one(make: Any) -> None:
    kjt = with_sum_weights(make.kjt({"a": [[1, 2, 3, 4]], "b": [[5, 6]]}), [True, False])
    assert kjt.weights().tolist() == [0.25, 0.25, 0.25, 0.25, 1.0, 1.0]
