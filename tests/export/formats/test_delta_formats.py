"""Deltas of a version that has several formats and full programs: what changed is written in each of them."""

from pathlib import Path

import pytest
import torch

from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.serving import Engine
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.encoded import pack_encoded
from emberline.serving.program_choice import load_full
from emberline.train.checkpoint import load_trained
from emberline.train.data import batch_from_encoded
from tests.export.conftest import save_checkpoint
from tests.export.formats.conftest import EVERYTHING, cases_of, save_run

FORMATS = ("torchscript", "onnx")


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose first step was exported, whose second changed a table only, and whose third a layer; each of the two is a delta."""
    folder = tmp_path_factory.mktemp("trail")
    run = save_run(folder)
    base = export_model(run, folder / "models", "m", format=FORMATS, full=True)
    model = load_trained(run).model
    with torch.no_grad():
        model.embedding_group.table_weights()["item_table"][3] += 1
    save_checkpoint(run, model, EVERYTHING, step=8)
    export_delta(run, folder / "models", "m", 1)
    with torch.no_grad():
        model.get_parameter("head.output.bias").add_(0.5)
    save_checkpoint(run, model, EVERYTHING, step=9)
    export_delta(run, folder / "models", "m", 1)
    return run, base


def test_a_changed_program_is_there_in_each_format(trail: tuple[Path, Path]) -> None:
    _, base = trail
    written = [[(entry.role, entry.format) for entry in load_delta_manifest(base / "deltas" / str(number))[0].programs] for number in (1, 2)]
    assert written[0] == [("full", format) for format in FORMATS]
    assert written[1] == [(role, format) for role in ("outputs", "full") for format in FORMATS]


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_answers_as_the_last_step_does(trail: tuple[Path, Path], format: str) -> None:
    run, base = trail
    trained, engine = load_trained(run), Engine.open(base, format=format)
    assert (engine.delta, engine.format) == (2, format)
    full = load_full(engine.artifact, engine.device, format)
    assert full is not None
    for case in cases_of(trained):
        with torch.no_grad():
            wanted = trained.model(batch_from_encoded(trained.features, case.encoded))["logits"]
        request = pack_encoded(engine.schema, case.encoded)
        for found in (engine.predict(request), full(engine.full_inputs(request))):
            torch.testing.assert_close(found["logits"], wanted, rtol=1e-5, atol=1e-5)
