"""Artifacts with programs for tiled requests: of every example with sides, the trained model's answers to the rows written out."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emberline.cli import main
from emberline.errors import ExportError, ParityError
from emberline.export import program as export_program
from emberline.export.delta import export_delta
from emberline.export.describe import describe
from emberline.export.export import export_model
from emberline.export.program_options import ProgramOptions
from emberline.export.tiling import rows_of_users
from emberline.serving import Engine
from emberline.serving.artifact import load_manifest
from emberline.serving.encoded import pack_tiled
from emberline.serving.program_choice import Programs
from emberline.serving.request import PackedRequest
from emberline.train.checkpoint import Trained, load_trained
from emberline.train.config import parse_config
from emberline.train.data import tiled_from_encoded, untile_batch
from emberline.train.data.tile import is_user_side
from emberline.train.models import DenseProgram, RecModel, build_model, features_of
from tests.export.conftest import save_checkpoint
from tests.export.formats.conftest import EVERYTHING, save_run
from tests.train.models.test_tiled_models import EXAMPLES, columns

pytestmark = [pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"), pytest.mark.usefixtures("one_thread")]
NAMES = ["autodis", "dssm", "dssm_sampled", "mmoe", "movielens_deepfm", "multi_tower_din"]
ROWS_PER_USER = [[6], [2, 0, 3], [0, 1, 1, 0], [0, 0], []]
_SIZES = re.compile(r"\b(num_buckets|hash_bucket_size|zch_size): *\d+")


def save_example(name: str, folder: Path) -> Path:
    """The run of an example with small tables, its numbers drawn at random."""
    text = _SIZES.sub(r"\1: 50", (EXAMPLES / f"{name}.pbtxt").read_text())
    config = parse_config(text)
    torch.manual_seed(3)
    model = build_model(config, features_of(config))
    with torch.no_grad():
        for weight in model.embedding_group.table_weights().values():
            weight.normal_()
    save_checkpoint(folder / "run", model, text)
    return folder / "run"


class Drawn:
    """A tiled request of random values, and what the trained model answers to its rows written out."""

    def __init__(self, trained: Trained, rows_per_user: list[int], seed: int = 1) -> None:
        features, counts = list(trained.features), np.array(rows_per_user, np.int32)
        user = columns([feature for feature in features if is_user_side(feature)], counts.size, seed)
        item = columns([feature for feature in features if not is_user_side(feature)], int(counts.sum()), seed + 1)
        self.request: PackedRequest = pack_tiled(trained.model.schema(), user, item, counts)
        tiled = tiled_from_encoded(features, user, item, np.repeat(np.arange(counts.size), counts))
        with torch.no_grad():
            untiled = untile_batch(tiled)
            self.outputs: Mapping[str, Tensor] = trained.model(untiled)
            self.groups: Mapping[str, Tensor] = trained.model.embedding_group(untiled)

    def require(self, engine: Engine, bound: float = 1e-5) -> None:
        for found, wanted in ((engine.predict(self.request), self.outputs), (engine.lookup(self.request), self.groups)):
            for name, answer in found.items():
                torch.testing.assert_close(answer, wanted[name], rtol=bound, atol=bound, check_dtype=False, msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_answers_of_the_examples(name: str, tmp_path: Path) -> None:
    run = save_example(name, tmp_path)
    root = export_model(run, tmp_path / "models", "m", tile=True)
    roles = [entry.role for entry in load_manifest(root).programs]
    assert roles == ["outputs", "groups", "tiled_outputs", "tiled_groups"]
    engine, trained = Engine.open(root), load_trained(run)
    for rows_per_user in ROWS_PER_USER:
        Drawn(trained, rows_per_user).require(engine)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every kind of lookup."""
    return save_run(tmp_path_factory.mktemp("tiled"))


@pytest.fixture(scope="module")
def root(run: Path) -> Path:
    return export_model(run, run.parent / "models", "m", tile=True)


class Noting:
    """A program that notes the rows of what it is given."""

    def __init__(self, program: Any, seen: list[dict[str, int]]) -> None:
        self.names, self._program, self._seen = program.names, program, seen

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._seen.append({name: len(tensor) for name, tensor in inputs.items()})
        found: dict[str, Tensor] = self._program(inputs)
        return found


def test_programs_take_what_users_have_once_for_each_user(root: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user of forty rows: what is the user's comes to the program as one row, and its five steps once."""
    engine, seen = Engine.open(root), dict[str, list[dict[str, int]]]()
    programs = engine._views.view.programs
    noting = {role: Noting(program, seen.setdefault(role, [])) for role, program in programs.by_role.items()}
    monkeypatch.setattr(Programs, "by_role", property(lambda self: MappingProxyType(noting)), raising=False)
    drawn = Drawn(load_trained(run), [40], seed=5)
    drawn.require(engine)
    assert {role: len(calls) for role, calls in seen.items()} == {"outputs": 0, "groups": 0, "tiled_outputs": 1, "tiled_groups": 1}
    (given,) = seen["tiled_outputs"]
    steps = int(drawn.groups["clicks.sequence_length"][0])
    assert (given["user.pooled"], given["user.dense"], given["pooled"], given["dense"], given["rows"]) == (1, 1, 40, 40, 40)
    assert (given["lengths.click__item"], given["steps.click__item"], given["positions.click__item"]) == (1, steps, steps)


def test_the_sample_has_a_tiled_request_that_is_replayed(root: Path, run: Path) -> None:
    sample = Engine.open(root).artifact.golden()
    request = PackedRequest(**{name: sample[f"tiled_{name}"].numpy() for name in ("ids", "lengths", "weights", "dense", "steps", "rows_per_user")})
    assert request.rows_per_user is not None
    assert request.rows_per_user.tolist() == rows_of_users(7) == [0, 1, 2, 3, 0, 1]
    assert sample["tiled_output.probs"].shape == (7,)
    assert sample["tiled_group.flat"].shape == (7, 21)


def test_inspect_tells_of_them(root: Path) -> None:
    lines = describe(root)
    assert any(re.match(r"programs/tiled_dense\.ts +tiled_outputs +torchscript", line) for line in lines)
    assert any(re.search(r" [1-9]\d* rows in tiled requests, bound 1e-05", line) for line in lines)


def test_a_delta_has_them_too(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "models" / "m" / "1")
    later = save_run(tmp_path, seed=8, step=9)
    path = export_delta(later, tmp_path / "models", "m", 1)
    engine = Engine.open(tmp_path / "models" / "m")
    assert engine.delta == 1
    assert "tiled_outputs" in [entry.role for entry in engine.artifact.deltas[0].manifest.programs]
    assert path.parent.name == "deltas"
    drawn = Drawn(load_trained(later), [3, 0, 4])
    drawn.require(engine)
    whole = Engine.open(export_model(later, tmp_path / "whole", "m", tile=True))
    for ask in (Engine.predict, Engine.lookup):
        found, wanted = ask(engine, drawn.request), ask(whole, drawn.request)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_tables_of_whole_numbers_16_bit_products_and_full_programs_go_with_them(run: Path, tmp_path: Path) -> None:
    root = export_model(run, tmp_path / "models", "m", tile=True, quantize="fp16", precision="bf16", full=True)
    entries = {entry.role: entry for entry in load_manifest(root).programs}
    assert {role: entry.precision for role, entry in entries.items()} == {
        **{"outputs": "bf16", "groups": "fp32", "tiled_outputs": "bf16", "tiled_groups": "fp32", "full": "bf16"}
    }
    assert entries["tiled_outputs"].bound == 2**-5
    drawn = Drawn(load_trained(run), [2, 3])
    drawn.require(Engine.open(root), 0.1)


def test_nothing_is_published_where_tiled_requests_get_other_answers(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(DenseProgram):
        def __init__(self, model: RecModel, *, tiled: bool = False) -> None:
            super().__init__(model, tiled=tiled)
            self._is_tiled = tiled

        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(tensor + 0.01 * self._is_tiled for tensor in super().forward(*inputs))

    monkeypatch.setattr(export_program, "DenseProgram", Wrong)
    with pytest.raises(ParityError, match=r"output 'logits' of a tiled request differs in .* \(case 'one row, all bags empty, of several users'\)"):
        export_model(run, tmp_path / "models", "m", tile=True)
    assert not (tmp_path / "models" / "m" / "1").exists()


def test_what_takes_no_tiled_requests_is_named() -> None:
    config = parse_config(EVERYTHING.replace('"item:price"', '"price"'))
    schema = build_model(config, features_of(config)).schema()
    options = ProgramOptions.of("torchscript", tile=True)
    with pytest.raises(ExportError, match=r"--tile: feature 'price': has no side, .*; write expressions as user:column or item:column"):
        options.require_sides(schema)
    items = tuple(replace(feature, side="item") for feature in schema.features)
    with pytest.raises(ExportError, match="--tile: rows_per_user: no feature of the model is the user's"):
        options.require_sides(replace(schema, features=items))
    ProgramOptions.of("torchscript").require_sides(schema)


def test_an_export_without_sides_is_refused_before_a_table_is_written(tmp_path: Path) -> None:
    run = save_example("deepfm_criteo", tmp_path)
    told: list[str] = []
    with pytest.raises(ExportError, match=r"^--tile: "):
        export_model(run, tmp_path / "models", "m", tile=True, progress=told.append)
    assert [line.partition(" ")[0] for line in told] == ["checkpoint"]


def test_a_delta_takes_the_option_from_its_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--checkpoint", str(tmp_path), "--output", str(tmp_path), "--name", "m", "--delta-from", "1", "--tile"]
    assert main(command) != 0
    assert "--tile is the version's" in capsys.readouterr().err
