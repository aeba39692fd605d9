"""Steps of a batch, cut by feature, and read from tables of every number type."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emberline.schema import Pooling
from emberline.serving.lookup import Bags, RowFinder, StepCutter, TorchLookup
from emberline.serving.quantized import decode_rows, encode_rows
from emberline.serving.request import PackedRequest, RequestValidator
from tests.serving.conftest import Arrays, make_steps_toy, one_sequence_schema, random_request

CPU = torch.device("cpu")


def test_sequences_are_cut_by_feature() -> None:
    schema = make_steps_toy().schema
    arrays: Arrays = {
        "ids": np.array([100, 100, 5, 3, 4]),
        "lengths": np.array([1, 0, 2, 0, 2, 0]),
        "dense": np.zeros(2, np.float32),
        "steps": np.array([2, 0, 2, 0, 2, 0]),
        "step_lengths": np.array([1, 1, 1, 1]),
        "dense_steps": np.arange(4, dtype=np.float32),
    }
    found = StepCutter(schema)(RequestValidator(schema).check(PackedRequest(**arrays)), CPU)
    assert found.offsets == {"clicks": None, "words": None}
    assert found.numbers["prices"].tolist() == [[0, 1], [2, 3]]
    assert found.lengths["clicks"].tolist() == [2, 0]
    assert found.longest == {"clicks": 2}
    arrays |= {"ids": np.array([100, 100, 5, 3]), "lengths": np.array([1, 0, 2, 0, 1, 0]), "step_lengths": np.array([1, 1, 0, 1])}
    found = StepCutter(schema)(RequestValidator(schema).check(PackedRequest(**arrays)), CPU)
    assert found.offsets["clicks"] is None
    assert found.offsets["words"] is not None
    assert found.offsets["words"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("value_dim", [0, 1])
def test_steps_of_every_number_type(dtype: str, weighted: bool, pooling: Pooling, value_dim: int) -> None:
    schema = one_sequence_schema(weighted=weighted, value_dim=value_dim, pooling=pooling)
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    halves = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    stored = rows.to(halves[dtype]) if dtype in halves else encode_rows(rows, dtype)
    plain = stored.float() if dtype in halves else decode_rows(stored, 5, dtype)
    model = replace(make_steps_toy(), schema=schema, tables={"t": plain}, remaps={})
    arrays = {name: values for name, values in random_request(schema, num_rows=6, seed=3).items() if name != "dense_steps"}
    request = RequestValidator(schema).check(PackedRequest(**arrays))
    bags = RowFinder(schema, {})(Bags.cut(request, 1, CPU))
    found = TorchLookup(schema, {"t": stored}, {"t": dtype}).stepped(bags, StepCutter(schema)(request, CPU))["f"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, model.stepped(arrays)["steps.f"], rtol=1e-5, atol=1e-5)
