"""Engines whose rows are looked up by each backend."""

import logging
from pathlib import Path

import pytest
import torch

from emberline.errors import ConfigError
from emberline.serving import Engine, PackedRequest
from emberline.serving.lookup import LOOKUPS, native
from emberline.serving.metrics import Metrics
from tests.serving.conftest import ToyModel, make_steps_toy, random_request


@pytest.mark.parametrize("name", [name for name in LOOKUPS if name != "fused"])
def test_every_backend_answers_and_is_told_of(name: str, toy: ToyModel, toy_artifact: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if name == "native" and native.KERNEL.get() is None:
        pytest.skip("there is no C compiler here")
    if name == "fbgemm":
        pytest.importorskip("fbgemm_gpu")
    with caplog.at_level(logging.INFO):
        engine = Engine.open(toy_artifact, lookup=name)
    assert engine.lookup_backend == name
    assert [record for record in caplog.records if f"lookups by {name}" in record.getMessage()]
    for model, opened in ((toy, engine), (make_steps_toy(), Engine.open(make_steps_toy().write(tmp_path), lookup=name))):
        for num_rows in (0, 1, 6):
            arrays = random_request(model.schema, num_rows=num_rows, seed=num_rows, raw_ids=(100, -7, 5))
            found, want = opened.predict(PackedRequest(**arrays)), model.answers(arrays)
            for output in model.schema.outputs:
                torch.testing.assert_close(found[output.name], want[f"output.{output.name}"], rtol=1e-5, atol=1e-5)
    metrics = Metrics()
    for _ in range(2):
        metrics.add_model(engine, lambda: 0)
    line = f'emberline_model_lookup{{backend="{name}",model="toy"}} 1.0'.encode()
    assert line in metrics.render()
    metrics.remove_model("toy")
    assert line not in metrics.render()


def test_none_takes_what_works_here(toy_artifact: Path) -> None:
    assert Engine.open(toy_artifact).lookup_backend == ("torch" if native.KERNEL.get() is None else "native")


def test_a_backend_that_is_not_there(toy_artifact: Path) -> None:
    with pytest.raises(ConfigError, match=r"^there is no lookup 'fast': native, torch, fbgemm, fused$"):
        Engine.open(toy_artifact, lookup="fast")
