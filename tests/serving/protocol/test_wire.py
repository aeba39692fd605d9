"""Which inputs a model has on the wire, with sides and without."""

import pytest

from emberline.schema import ModelSchema
from emberline.serving.protocol.wire import WireTensor, wire_inputs
from tests.serving.conftest import make_toy
from tests.serving.tiles import tiled_steps_toy, tiled_toy

PACKED = ["ids", "lengths", "weights", "dense"]


@pytest.mark.parametrize(
    ("schema", "more", "optional"),
    [
        (make_toy().schema, [], ["weights"]),
        (tiled_toy(()).schema, [], ["weights"]),
        (tiled_toy(("user",)).schema, ["rows_per_user"], ["weights", "rows_per_user"]),
        (tiled_toy(("vector",)).schema, ["rows_per_user", "user_dense"], ["weights", "rows_per_user", "user_dense"]),
        (tiled_toy(("vector", "price")).schema, ["rows_per_user", "user_dense"], ["weights", "dense", "rows_per_user", "user_dense"]),
    ],
)
def test_models_with_sides_take_users_too(schema: ModelSchema, more: list[str], optional: list[str]) -> None:
    found = wire_inputs(schema)
    assert [tensor.name for tensor in found] == PACKED + more
    assert [tensor.name for tensor in found if tensor.optional] == optional


def test_what_tells_of_users_comes_last() -> None:
    found = wire_inputs(tiled_steps_toy().schema)
    assert [tensor.name for tensor in found] == [*PACKED, "steps", "step_lengths", "dense_steps", "rows_per_user", "user_dense"]
    assert found[-2:] == (
        WireTensor("rows_per_user", ("INT32", "INT64"), (-1,), optional=True),
        WireTensor("user_dense", ("FP32",), (-1,), optional=True),
    )
