"""Every example, trained on two ranks, answers the odd requests alike on two ranks, in one piece, and from every form of artifact."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

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
from emberline.train.embedding.collections import RowReader
from tests.example_runs import NAMES, RANKS, exported_examples, trained_examples
from tests.export.odd_requests import cases_of, wanted_of

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread", "quick_wrappers")]


SAME_PROGRAMS = ("movielens_dynamic",)
"""Examples whose programs are nearly those of others, so that not every format of theirs needs to be compiled."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Mapping[str, Path]:
    """Every example, trained on two ranks, with the answers of both."""
    return trained_examples(tmp_path_factory, worker_id)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Their artifacts, with tables of fp32."""
    return exported_examples(tmp_path_factory, worker_id)


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
    """Give a model's tables the numbers that int8 rows stand for; where it reads rows when it needs them, then."""
    group = trained.model.embedding_group
    for part in (group.pooled, group.sequence_tables):
        if part._reader is not None:
            part._reader = partial(_decoded, part._reader)
    if not any(weight.is_meta for weight in group.table_weights().values()):
        for weight in group.table_weights().values():
            weight.data.copy_(as_int8(weight.data))


def _decoded(read: RowReader, table: str, rows: Tensor) -> Tensor:
    return as_int8(read(table, rows))


def as_int8(rows: Tensor) -> Tensor:
    """What is read of rows that are stored as int8."""
    return decode_rows(encode_rows(rows, "int8"), rows.shape[1], "int8")


def require_answers(engine: Engine, trained: Trained, cases: Sequence[Case], bound: float) -> None:
    """Every odd request is answered as the model does."""
    for case in cases:
        found = engine.predict(pack_encoded(trained.model.schema(), case.encoded))
        for output, wanted in wanted_of(trained, case).items():
            torch.testing.assert_close(found[output], wanted, rtol=bound, atol=bound, msg=case.name)


@pytest.mark.parametrize("name", NAMES)
def test_every_artifact_answers_as_the_model(name: str, runs: Mapping[str, Path], models: Path, tmp_path: Path) -> None:
    """Programs hold no tables: those of each format are compiled once, and run behind the tables of both artifacts."""
    trained, decoded = load_trained(runs[name]), load_trained(runs[name])
    cases, schema = cases_of(trained), trained.model.schema()
    decoded.model.eval()
    decode_tables(decoded)
    formats = FORMATS if name not in SAME_PROGRAMS else FORMATS[:1]
    entries = write_programs(trained.model, tmp_path, ProgramOptions.of(formats), kept=lambda role, digest: role != "outputs")
    assert tuple(entry.format for entry in entries) == formats
    inputs, names, place = program_inputs(schema), program_outputs(schema, "outputs"), torch.device("cpu")
    for model, path in ((trained, models / name), (decoded, export_model(runs[name], tmp_path / "models", "int8", quantize="int8"))):
        engine = Engine.open(path)
        require_answers(engine, model, cases, 1e-6)
        (own,) = (entry for entry in engine.artifact.manifest.programs if entry.role == "outputs")
        for entry in entries:
            assert entry.source == own.source
            program = load_program(tmp_path / entry.file, entry, inputs, names, place)
            programs = Programs(entry.format, {"outputs": program}, {"outputs": entry.bound})
            require_answers(Engine(engine.artifact, engine._views.view.sources.whole.lookup, programs, place), model, cases, entry.bound)
