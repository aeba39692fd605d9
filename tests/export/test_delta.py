"""Deltas: what a base and its deltas answer is, to the bit, what a whole export of the last checkpoint answers."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from emberline.cli import main
from emberline.errors import ArtifactError, ExportError
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.export.remap import split_remaps
from emberline.manifest import hash_file, hash_tree, read_manifest, write_manifest
from emberline.serving.deltas import list_deltas
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.remap import RemapParts
from emberline.serving.request import PackedRequest
from emberline.train.models import RecModel
from tests.export.conftest import SmallRun, make_run, make_table, save_checkpoint, train_a_little

POLICIES = ("uid=mean", "buys=zeros")
NUM_DELTAS = 3
CONFIG = """
eval_input_path: "DATA"
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "uid" embedding_dim: 4 zch { zch_size: 40 eviction_interval: 1 lru {} } } }
feature_configs { id_feature { feature_name: "tags" expression: "tags" embedding_dim: 8 num_buckets: 10 pooling: "mean" } }
feature_configs {
  id_feature { feature_name: "buys" expression: "buys" embedding_dim: 8 weighted: true zch { zch_size: 16 eviction_interval: 1 lru {} } }
}
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "uid" feature_names: "tags" }
  feature_groups { group_name: "deep" group_type: DEEP feature_names: "uid" feature_names: "tags" feature_names: "buys" }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "tags" feature_names: "buys" }
  deepfm { deep { hidden_units: [8] } final { hidden_units: 4 } }
}
"""


def train_on(run: SmallRun, step: int, table: pa.Table) -> None:
    """One more checkpoint of the run."""
    trained = run.load()
    train_a_little(trained.model, table, trained.features)
    save_checkpoint(run.path, trained.model, CONFIG.replace("DATA", str(run.data)), step)


def other_ids(table: pa.Table, by: int) -> pa.Table:
    """The same rows with users that have not been seen, so that old ones lose their rows."""
    place = table.schema.get_field_index("uid")
    return table.set_column(place, "uid", pa.array([one if abs(one) < 100 or abs(one) > 1000 else one + by for one in table["uid"].to_pylist()]))


class Trail:
    """A run, its model folder with a base and three deltas as version 1, and a whole export after each delta as version number + 1.

    `full[k]` is what base plus k deltas must answer.
    """

    def __init__(self, root: Path) -> None:
        self.run = make_run(root, CONFIG, make_table(96, seed=1))
        self.models = root / "models"
        self.base = export_model(self.run.path, self.models, "m", unknown=POLICIES)
        self.full = [self.base]
        self.lines: list[str] = []
        for number in range(1, NUM_DELTAS + 1):
            train_on(self.run, 7 + number, other_ids(make_table(96, seed=10 + number), 30 * number))
            export_delta(self.run.path, self.models, "m", 1, progress=self.lines.append)
            self.full.append(export_model(self.run.path, self.models, "m", unknown=POLICIES))

    def delta(self, number: int) -> Path:
        return self.base / "deltas" / str(number)


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> Trail:
    """Tests do not change it."""
    return Trail(tmp_path_factory.mktemp("trail"))


def asked(trail: Trail, engine: Engine) -> PackedRequest:
    columns = [{name: row[name] for name in ("uid", "tags", "buys")} for row in trail.run.rows[:60]]
    rows = [*columns, *({**columns[0], "uid": one} for one in (*range(95, 240), 5, -5, 2**62, -(2**63), 2**63 - 1, 0))]
    return engine.encode_rows(rows)


def require_same(trail: Trail, found: Engine, wanted: Engine) -> None:
    """Every row, id and answer is the same, to the bit."""
    for table, rows in wanted.artifact.tables.items():
        assert torch.equal(found.artifact.tables[table].view(torch.int32), rows.view(torch.int32)), table
    for table, parts in wanted.artifact.ids.items():
        assert torch.equal(found.artifact.ids[table].raw_ids, parts.raw_ids)
        assert torch.equal(found.artifact.ids[table].rows, parts.rows)
        ids = torch.cat([parts.raw_ids, torch.arange(-300, 300)])
        for mine, theirs in zip(found.artifact.remaps[table](ids), wanted.artifact.remaps[table](ids), strict=True):
            assert torch.equal(mine, theirs)
    request = asked(trail, wanted)
    assert torch.equal(found.known(request), wanted.known(request))
    for ask in (Engine.lookup, Engine.predict):
        answers, others = ask(found, request), ask(wanted, request)
        assert answers.keys() == others.keys()
        for name, answer in others.items():
            assert torch.equal(answers[name], answer), name


def test_base_and_deltas_are_the_full_export_to_the_bit(trail: Trail) -> None:
    running = Engine.open(trail.base, deltas=0)
    for number, path in enumerate(trail.full):
        wanted = Engine.open(path, deltas=0)
        require_same(trail, Engine.open(trail.base, deltas=number), wanted)
        if number:
            assert running.apply_delta(trail.delta(number)) == running.delta == number
        require_same(trail, running, wanted)
    assert Engine.open(trail.base).delta == NUM_DELTAS


def test_deltas_hold_what_changed_and_evictions_travel(trail: Trail) -> None:
    went = 0
    for number in range(1, NUM_DELTAS + 1):
        manifest, _ = load_delta_manifest(trail.delta(number))
        assert (manifest.name, manifest.version, manifest.number, manifest.parity["checkpoint_step"]) == ("m", 1, number, 7 + number)
        assert [program.role for program in manifest.programs][:1] == ["outputs"]
        went += sum(change.ids.went for change in manifest.tables if change.ids)
    assert went > 0
    ids = {number: Engine.open(trail.base, deltas=number).artifact.ids["uid_emb"].raw_ids.tolist() for number in (0, NUM_DELTAS)}
    assert set(ids[0]) - set(ids[NUM_DELTAS])
    assert set(ids[NUM_DELTAS]) - set(ids[0])
    for number in range(1, NUM_DELTAS + 1):
        before, after = (Engine.open(trail.base, deltas=count).artifact.tables for count in (number - 1, number))
        told = {change.table: change.rows for change in load_delta_manifest(trail.delta(number))[0].tables}
        for table in before:
            assert told.get(table, 0) == int((before[table].view(torch.int32) != after[table].view(torch.int32)).any(dim=1).sum())


def test_taking_in_deltas_changes_no_file(trail: Trail) -> None:
    before = hash_tree(trail.base)
    engine = Engine.open(trail.base)
    engine.predict(asked(trail, engine))
    assert hash_tree(trail.base) == before


def test_gaps_repeats_and_foreign_bases_are_refused(trail: Trail) -> None:
    engine = Engine.open(trail.base, deltas=1)
    answer = engine.predict(asked(trail, engine))["logits"]
    with pytest.raises(ArtifactError, match="'m' version 1 has delta 1 already; it is at 1"):
        engine.apply_delta(trail.delta(1))
    with pytest.raises(ArtifactError, match="this is delta 3, but 'm' version 1 is at 1: add delta 2 first"):
        engine.apply_delta(trail.delta(3))
    with pytest.raises(ArtifactError, match="made for 'm' version 1, another artifact than"):
        Engine.open(trail.full[1]).apply_delta(trail.delta(1))
    with pytest.raises(ArtifactError, match="this is no delta"):
        engine.apply_delta(trail.full[1])
    with pytest.raises(ArtifactError, match=r"nowhere: manifest\.json is missing, so this is no complete delta"):
        engine.apply_delta(trail.base / "nowhere")
    assert engine.delta == 1
    assert torch.equal(engine.predict(asked(trail, engine))["logits"], answer)


def copied(trail: Trail, root: Path) -> Path:
    shutil.copytree(trail.base, root / "m" / "1")
    return root / "m" / "1"


def test_another_delta_of_the_same_number_does_not_go_on(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    shutil.rmtree(base / "deltas")
    first = export_delta(trail.run.path, tmp_path, "m", 1)
    assert list_deltas(base) == [1]
    engine = Engine.open(base)
    with pytest.raises(ArtifactError, match="made to follow another delta 1 than the one that 'm' version 1 has"):
        engine.apply_delta(trail.delta(2))
    require_same(trail, engine, Engine.open(trail.full[NUM_DELTAS]))
    assert first == base / "deltas" / "1"


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda newest: flip_last_byte(newest / "changes.safetensors"),
            r"deltas/3: the delta is damaged: .*changes\.safetensors was changed: its XXH3 differs",
        ),
        (lambda newest: (newest / "golden.safetensors").unlink(), r"deltas/3: the delta is damaged: golden\.safetensors is missing"),
        (lambda newest: (newest / "stray").write_text(""), "stray is not listed"),
        (lambda newest: (newest / "manifest.json").write_text("{}"), r"deltas/3: manifest\.json cannot be read"),
        (lambda newest: newest.rename(newest.with_name("5")), "delta 3 is missing: there are 1, 2, 5"),
    ],
)
def test_damaged_deltas_are_refused_by_name(trail: Trail, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    base = copied(trail, tmp_path)
    damage(base / "deltas" / "3")
    with pytest.raises(ArtifactError, match=message):
        Engine.open(base)
    assert main(["verify", str(base)]) != 0
    require_same(trail, Engine.open(base, deltas=2), Engine.open(trail.full[2]))


def test_drafts_and_strange_folders_are_no_deltas(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    (base / "deltas" / "4").mkdir()
    (base / "deltas" / ".building-x" / "tables").mkdir(parents=True)
    (base / "deltas" / "04").mkdir()
    assert Engine.open(base).delta == NUM_DELTAS
    with pytest.raises(ArtifactError, match="delta 4 is missing: there are 1, 2, 3"):
        Engine.open(base, deltas=4)


def test_wrong_golden_answers_leave_the_engine_as_it_was(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    newest = base / "deltas" / "3"
    sample = {name: part.clone() for name, part in map_tensors(newest / "golden.safetensors").items()}
    sample["output.logits"] += 1
    write_tensors(newest / "golden.safetensors", sample)
    data = read_manifest(newest)
    entry = hash_file(newest / "golden.safetensors")
    data["files"]["golden.safetensors"] = {"bytes": entry.bytes, "sha256": entry.sha256}
    write_manifest(newest, data)
    engine = Engine.open(base, deltas=2)
    with pytest.raises(ArtifactError, match=r"deltas/3: golden\.safetensors: 'output.logits' is not what it was at export"):
        engine.apply_delta(newest)
    assert engine.delta == 2
    require_same(trail, engine, Engine.open(trail.full[2]))


def test_requests_during_a_delta_see_all_of_it_or_nothing(trail: Trail) -> None:
    engine = Engine.open(trail.base, deltas=0)
    request = asked(trail, engine)
    names = ["logits", "lookup.deep", "known"]
    want = [Engine.open(path, deltas=0).predict_many([request], [names])[0] for path in trail.full]
    stop, seen, wrong = threading.Event(), set[int](), list[int]()

    def ask() -> None:
        while not stop.is_set():
            (found,) = engine.predict_many([request], [names])
            assert isinstance(found, dict)
            equal = [number for number, answer in enumerate(want) if all(torch.equal(found[name], answer[name]) for name in names)]  # type: ignore[index]
            seen.update(equal)
            wrong.extend([] if len(equal) == 1 else [len(equal)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert engine.apply_new_deltas() == [1, 2, 3]
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert seen <= {0, 1, 2, 3}
    assert len(seen) > 1


def test_the_same_checkpoint_again_is_a_delta_without_changes(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    lines: list[str] = []
    path = export_delta(trail.run.path, tmp_path, "m", 1, progress=lines.append)
    manifest, _ = load_delta_manifest(path)
    assert (manifest.number, manifest.tables, manifest.programs) == (4, (), ())
    assert "tables: nothing changed" in lines
    require_same(trail, Engine.open(base), Engine.open(trail.full[NUM_DELTAS]))


def test_half_a_delta_in_the_way_is_told(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    (base / "deltas" / "4" / "tables").mkdir(parents=True)
    with pytest.raises(ExportError, match=r"deltas/4 is there without manifest\.json: finish copying it, or remove it"):
        export_delta(trail.run.path, tmp_path, "m", 1)
    assert Engine.open(base).delta == NUM_DELTAS


def test_what_a_delta_cannot_say_is_refused(trail: Trail, tmp_path: Path) -> None:
    base = copied(trail, tmp_path)
    other = make_run(tmp_path / "other", CONFIG.replace("zch_size: 40", "zch_size: 50"), make_table(64, seed=3))
    with pytest.raises(ExportError, match=r"table 'uid_emb': rows is 51, in the artifact 41; .*export a whole version instead"):
        export_delta(other.path, tmp_path, "m", 1)
    with pytest.raises(ExportError, match="no version to make a delta of: there are 1; export a whole one first"):
        export_delta(other.path, tmp_path, "m", 2)
    assert list_deltas(base) == [1, 2, 3]
    assert [path.name for path in (base / "deltas").glob(".*")] == []


def test_a_damaged_map_is_refused_as_in_a_whole_export(trail: Trail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = copied(trail, tmp_path)

    def damaged(model: RecModel) -> dict[str, RemapParts]:
        return {table: replace(parts, rows=torch.full_like(parts.rows, 2)) for table, parts in split_remaps(model).items()}

    monkeypatch.setattr("emberline.export.forget.leaving_out.split_remaps", damaged)
    with pytest.raises(ExportError, match="table 'uid_emb_wide': the id map in the checkpoint is damaged: rows gives one row to two ids"):
        export_delta(trail.run.path, tmp_path, "m", 1)
    assert list_deltas(base) == [1, 2, 3]


def test_where_no_id_owns_a_row_there_is_no_mean(trail: Trail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = copied(trail, tmp_path)
    nothing = torch.empty(0, dtype=torch.int64)

    def emptied(model: RecModel) -> dict[str, RemapParts]:
        return {table: replace(parts, raw_ids=nothing, rows=nothing) for table, parts in split_remaps(model).items()}

    monkeypatch.setattr("emberline.export.forget.leaving_out.split_remaps", emptied)
    message = "no id owns a row, so there is no mean of such rows for unknown ids; export a whole version with --unknown zeros or fallback"
    with pytest.raises(ExportError, match=f"table 'uid_emb_wide': {message}"):
        export_delta(trail.run.path, tmp_path, "m", 1)
    with pytest.raises(ExportError, match=message):
        export_model(trail.run.path, tmp_path, "m", unknown=POLICIES)
    assert list_deltas(base) == [1, 2, 3]


def test_the_commands_write_show_and_verify_deltas(trail: Trail, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = copied(trail, tmp_path)
    options = ["export", "--checkpoint", str(trail.run.path), "--output", str(tmp_path), "--name", "m", "--delta-from", "1"]
    assert main(options) == 0
    assert f"published {base / 'deltas' / '4'}" in capsys.readouterr().out
    assert main([*options, "--version", "3"]) != 0
    assert "leave them out with --delta-from" in capsys.readouterr().err
    assert main([*options, "--format", "onnx"]) != 0
    assert "--format is the version's, whose programs a delta has too: leave it out" in capsys.readouterr().err
    assert main([*options, "--quantize", "int8"]) != 0
    assert "--memory-budget and --version are the artifact's, which a delta does not change" in capsys.readouterr().err
    assert main(["inspect", str(base)]) == 0
    shown = capsys.readouterr().out
    assert "deltas: 4" in shown
    assert main(["verify", str(base / "deltas" / "4")]) != 0
    assert "this is a delta of 'm' version 1; give the folder of that version" in capsys.readouterr().err
    assert main(["verify", str(base)]) == 0
    assert "with 4 deltas" in capsys.readouterr().out
    assert main(["explain", str(base), "uid", "5"]) == 0
    row = int(Engine.open(base).artifact.remaps["uid_emb"](torch.tensor([5]))[0])
    vector = Engine.open(base).artifact.tables["uid_emb"][row].tolist()
    assert " ".join(f"{number:.6g}" for number in np.asarray(vector)) in capsys.readouterr().out
