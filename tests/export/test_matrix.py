"""Every example, trained on two ranks, answers the odd requests alike on two ranks, in one piece, and from every form of artifact."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emberline.export.cases import Case
from emberline.export.export import export_model
from emberline.export.program import write_programs
from emberline.export.program_options import ProgramOptions
from emberline.program_inputs import program_inputs, program_outputs
from emberline.serving.encoded import pack_encoded
from emberline.serving.engine import Engine
from emberline.serving.program import FORMATS, load_program
from emberline.serving.program_choice import Programs
from emberline.serving.quantized import decode_rows, encode_rows
from emberline.train.checkpoint import Trained, load_trained
from tests.example_runs import NAMES, RANKS, trained_examples
from tests.export.odd_requests import cases_of, wanted_of

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread", "quick_wrappers")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Mapping[str, Path]:
    """Every example, trained on two ranks, with the answers of both."""
    return trained_examples(tmp_path_factory, worker_id)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_answer_as_one_model(name: str, runs: Mapping[str, Path]) -> None:
    trained = load_trained(runs[name])
    cases = cases_of(trained)
    for rank in range(RANKS):
        found = load_file(runs[name] / f"answers-{rank}.safetensors")
        for number, case in enumerate(cases):
            for output, wanted in wanted_of(trained, case).items():
                torch.testing.assert_close(found[f"{number}/{output}"], wanted, rtol=1e-5, atol=1e-5, msg=case.name)


def decode_tables(trained: Trained) -> None:
    """Give a model's tables the numbers that int8 rows stand for."""
    for weight in trained.model.embedding_group.table_weights().values():
        weight.data.copy_(decode_rows(encode_rows(weight.data, "int8"), weight.shape[1], "int8"))


def require_answers(engine: Engine, trained: Trained, cases: Sequence[Case], bound: float) -> None:
    """Every odd request is answered as the model does."""
    for case in cases:
        found = engine.predict(pack_encoded(trained.model.schema(), case.encoded))
        for output, wanted in wanted_of(trained, case).items():
            torch.testing.assert_close(found[output], wanted, rtol=bound, atol=bound, msg=case.name)


@pytest.mark.parametrize("name", NAMES)
def test_every_artifact_answers_as_the_model(name: str, runs: Mapping[str, Path], tmp_path: Path) -> None:
    """Programs hold no tables: those of each format are compiled once, and run behind the tables of both artifacts."""
    trained, decoded = load_trained(runs[name]), load_trained(runs[name])
    cases, schema = cases_of(trained), trained.model.schema()
    decoded.model.eval()
    decode_tables(decoded)
    entries = write_programs(trained.model, tmp_path, ProgramOptions.of(FORMATS), kept=lambda role, digest: role != "outputs")
    assert tuple(entry.format for entry in entries) == FORMATS
    inputs, names, place = program_inputs(schema), program_outputs(schema, "outputs"), torch.device("cpu")
    for model, quantize in ((trained, "fp32"), (decoded, "int8")):
        engine = Engine.open(export_model(runs[name], tmp_path / "models", quantize, quantize=quantize))
        require_answers(engine, model, cases, 1e-6)
        (own,) = (entry for entry in engine.artifact.manifest.programs if entry.role == "outputs")
        for entry in entries:
            assert entry.source == own.source
            program = load_program(tmp_path / entry.file, entry, inputs, names, place)
            programs = Programs(entry.format, {"outputs": program}, {"outputs": entry.bound})
            require_answers(Engine(engine.artifact, engine._views.view.sources.whole.lookup, programs, place), model, cases, entry.bound)
