"""Deltas of a version that has several formats and full programs: what changed is written in each of them."""

from pathlib import Path

import torch

from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.serving import Engine
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.encoded import pack_encoded
from emberline.serving.program_choice import load_full
from emberline.train.checkpoint import load_trained
from tests.export.conftest import save_checkpoint
from tests.export.formats.conftest import EVERYTHING, save_run
from tests.export.odd_requests import cases_of, wanted_of

FORMATS = ("torchscript", "onnx")


def make_trail(folder: Path, formats: tuple[str, ...], *, full: bool) -> tuple[Path, Path]:
    """A run whose first step was exported, whose second changed a table only, and whose third a layer; each of the two is a delta."""
    run = save_run(folder)
    base = export_model(run, folder / "models", "m", format=formats, full=full)
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


def programs_of(base: Path, number: int) -> list[tuple[str, str]]:
    return [(entry.role, entry.format) for entry in load_delta_manifest(base / "deltas" / str(number))[0].programs]


def test_a_changed_program_is_there_in_each_format(tmp_path: Path) -> None:
    run, base = make_trail(tmp_path, FORMATS, full=False)
    assert (programs_of(base, 1), programs_of(base, 2)) == ([], [("outputs", format) for format in FORMATS])
    trained = load_trained(run)
    for format in FORMATS:
        engine = Engine.open(base, format=format)
        assert (engine.delta, engine.format) == (2, format)
        for case in cases_of(trained):
            found = engine.predict(pack_encoded(engine.schema, case.encoded))["logits"]
            torch.testing.assert_close(found, wanted_of(trained, case)["logits"], rtol=1e-5, atol=1e-5)


def test_a_full_program_is_written_anew_where_a_row_changed(tmp_path: Path) -> None:
    run, base = make_trail(tmp_path, ("torchscript",), full=True)
    assert (programs_of(base, 1), programs_of(base, 2)) == ([("full", "torchscript")], [("outputs", "torchscript"), ("full", "torchscript")])
    trained, engine = load_trained(run), Engine.open(base)
    full = load_full(engine.artifact, engine.device, "torchscript")
    assert full is not None
    for case in cases_of(trained):
        found = full(engine.full_inputs(pack_encoded(engine.schema, case.encoded)))["logits"]
        torch.testing.assert_close(found, wanted_of(trained, case)["logits"], rtol=1e-6, atol=1e-6)
