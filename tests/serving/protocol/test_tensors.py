from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import RequestError
from emberline.serving.protocol.tensors import check_shape, tensor_from_bytes, tensor_from_json, tensor_from_numbers

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, max_size=20), st.booleans())
def test_json_integers_are_exact_flat_or_nested(ids: list[int], nested: bool) -> None:
    tensor = tensor_from_json("ids", "INT64", (1, len(ids)), [ids] if nested else ids)
    assert tensor.values.dtype == np.int64
    assert tensor.values.tolist() == ids


@given(st.lists(INT64, max_size=20))
def test_bytes_are_little_endian(ids: list[int]) -> None:
    raw = b"".join(value.to_bytes(8, "little", signed=True) for value in ids)
    assert tensor_from_bytes("ids", "INT64", (len(ids),), raw).values.tolist() == ids


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_json_floats_round_to_float32_exactly(numbers: list[float]) -> None:
    assert tensor_from_json("dense", "FP32", (len(numbers),), numbers).values.tolist() == numbers


@pytest.mark.parametrize(
    ("datatype", "value", "problem"),
    [
        ("INT64", 2**63, "value 1 is 9223372036854775808; its datatype takes -9223372036854775808 to 9223372036854775807"),
        ("INT64", -(2**63) - 1, "value 1 is -9223372036854775809"),
        ("INT64", 10**300, "value 1 is 1000"),
        ("INT64", 5.0, r"value 1 is 5\.0; its datatype takes integers"),
        ("INT64", 5.5, r"value 1 is 5\.5"),
        ("INT64", 1e3, r"value 1 is 1000\.0"),
        ("INT64", True, "value 1 is true or false"),
        ("INT64", None, "value 1 is null"),
        ("INT64", "9007199254740993", 'value 1 is the string "9007199254740993"'),
        ("INT64", {}, "value 1 is an object"),
        ("INT32", 2**31, "value 1 is 2147483648; its datatype takes -2147483648 to 2147483647"),
        ("FP32", True, "value 1 is true or false; its datatype takes numbers"),
        ("FP32", 1e39, r"value 1 is 1e\+39"),
        ("FP32", 10**400, "value 1 is 1000"),
        ("FP32", float("inf"), "value 1 is inf"),
        ("BOOL", 1, "value 1 is 1; its datatype takes true or false"),
    ],
)
def test_a_json_value_of_another_kind_or_range_is_refused_by_tensor_and_place(datatype: str, value: Any, problem: str) -> None:
    good: Any = True if datatype == "BOOL" else 0
    with pytest.raises(RequestError, match=f'input "t": {problem}'):
        tensor_from_json("t", datatype, (2,), [good, value])


@pytest.mark.parametrize(
    ("shape", "data", "problem"),
    [
        ((1, 2), [1], "takes 2 values, but 1 came"),
        ((1, 2), [[1, 2], [3]], "takes 2 values, but 3 came"),
        ((2,), [[1, 2]], "nested deeper than its shape"),
        ((1, 2), [[[1, 2]]], "nested deeper than its shape"),
        ((1, 2), [[1], 2], "mixes arrays and numbers"),
        ((1, 2), 7, "data must be an array, not a number"),
        ((1, 2), None, "data must be an array, not null"),
    ],
)
def test_json_data_that_does_not_fit_its_shape_is_refused(shape: tuple[int, ...], data: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=f'input "ids": .*{problem}'):
        tensor_from_json("ids", "INT64", shape, data)


@pytest.mark.parametrize("size", [0, 7, 15, 17])
def test_bytes_that_do_not_fit_their_shape_are_refused(size: int) -> None:
    with pytest.raises(RequestError, match=f"takes 16 bytes, but {size} came"):
        tensor_from_bytes("ids", "INT64", (1, 2), bytes(size))


def test_typed_numbers_that_do_not_fit_their_shape_are_refused() -> None:
    with pytest.raises(RequestError, match="takes 2 values, but 3 came"):
        tensor_from_numbers("ids", "INT64", (2,), [1, 2, 3])


def test_badly_aligned_bytes_are_read_right() -> None:
    raw = b"x" + (77).to_bytes(8, "little")
    values = tensor_from_bytes("ids", "INT64", (1,), memoryview(raw)[1:]).values
    assert values.flags.aligned
    assert values.tolist() == [77]


@pytest.mark.parametrize("shape", [None, "12", [], [-1], [1.0], [True], ["1"], [[1]], [1] * 9, {"0": 1}])
def test_a_shape_is_a_list_of_sizes(shape: object) -> None:
    with pytest.raises(RequestError, match='input "ids": the shape'):
        check_shape("ids", shape)


@pytest.mark.parametrize("datatype", ["BYTES", "FP64", "int64", "", "UINT64"])
def test_a_datatype_that_no_model_has_is_refused(datatype: str) -> None:
    with pytest.raises(RequestError, match=r"the datatype .* is not supported; there are BOOL, INT32, INT64, FP32"):
        tensor_from_json("ids", datatype, (1,), [1])
