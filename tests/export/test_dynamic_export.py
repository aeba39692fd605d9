"""Tables that grow in artifacts, beside static and zero-collision ones: answers, policies, number types and deltas, against dictionaries."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emberline.cli import main
from emberline.errors import ExportError, RequestError
from emberline.export.delta import export_delta
from emberline.export.describe import describe, verify
from emberline.export.explain import explain
from emberline.export.export import export_model
from emberline.manifest import hash_tree
from emberline.schema import TableKind
from emberline.serving.artifact import load_manifest
from emberline.serving.deltas.files import load_delta_manifest
from emberline.serving.engine import Engine
from emberline.serving.files import map_tensors
from emberline.serving.quantized import decode_rows, encode_rows
from tests.export.dynamic_runs import CONFIG, GROWS, ODD_KEYS, TABLES, WIDTHS, DynamicRun, grown, new_run, rows_of, tables_of

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = [*range(100, 140), *ODD_KEYS]
STARTS = {name: sum(list(WIDTHS.values())[:place]) for place, name in enumerate(WIDTHS)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> DynamicRun:
    found = new_run(tmp_path_factory.mktemp("grown") / "run")
    found.save(1, tables_of(IDS, 1))
    return found


@pytest.fixture(scope="module")
def models(run: DynamicRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same checkpoint: `plain`, and `told` with policies, number types, and programs of every kind."""
    models = tmp_path_factory.mktemp("models")
    export_model(run.path, models, "plain")
    unknown = ["zeros", "item=mean", "buys=fallback", "fresh=zeros"]
    export_model(run.path, models, "told", unknown=unknown, quantize=["uid_emb=int8", "item_table=fp16", "buys_emb=int4"], tile=True, full=True)
    return models


def require_dictionary(engine: Engine, run: DynamicRun) -> None:
    """Group tensors are sums of the dictionaries' vectors, and ids are known that own one."""
    rows = rows_of(IDS, 60)
    request = engine.encode_rows(rows)
    found = engine.lookup(request)
    np.testing.assert_allclose(found["deep"].double().numpy(), [run.deep(row) for row in rows], rtol=0, atol=1e-6)
    for place, row in enumerate(rows):
        steps = run.clicks(row)
        np.testing.assert_allclose(found["clicks.sequence"][place, : len(steps)].double().numpy(), steps, rtol=0, atol=1e-7)
        assert not found["clicks.sequence"][place, len(steps) :].any()
    assert engine.known(request).tolist() == known_by_hand(run, rows)


def known_by_hand(run: DynamicRun, rows: list[dict[str, Any]]) -> list[bool]:
    known = [row[name] in run.tables[TABLES[name]].vectors for name in ("uid", "item") for row in rows]
    known += [one in run.tables["buys_emb"].vectors for row in rows for one in row["buys"]]
    known += [row["fresh"] in run.tables["fresh_emb"].vectors for row in rows] + [False] * len(rows) + [True] * len(rows)
    return known + [int(one) in run.tables["item_table"].vectors for row in rows for one in row["click__item"].split(";") if one]


@pytest.mark.parametrize("memory", ["private", "mapped", "disk"])
def test_the_artifact_answers_as_the_dictionaries(models: Path, run: DynamicRun, memory: str) -> None:
    require_dictionary(Engine.open(models / "plain", tables=memory), run)


def test_what_the_manifest_says(models: Path) -> None:
    manifest = load_manifest(models / "plain" / "1")
    kinds = {table.name: (table.kind, table.rows) for table in manifest.schema.tables}
    grows = TableKind.DYNAMIC
    assert kinds["uid_emb"] == (grows, 49 + 6 + 64 + 1)
    assert kinds["fresh_emb"] == (grows, 64 + 1)
    assert (kinds["shop_emb"], kinds["tags_emb"]) == ((TableKind.ZCH, 12), (TableKind.STATIC, 10))
    entries = {entry.table: entry.remap for entry in manifest.tables}
    assert {table: (entry.num_ids, entry.spare_rows) for table, entry in entries.items() if entry is not None} == {
        "uid_emb": (49, 70),
        "item_table": (34, 68),
        "buys_emb": (25, 67),
        "fresh_emb": (0, 64),
        "shop_emb": (0, 0),
    }


def test_checkpoints_of_any_number_of_ranks_give_the_same_files(models: Path, run: DynamicRun, tmp_path: Path) -> None:
    other = DynamicRun(tmp_path / "run", run.model)
    other.save(1, run.tables, ranks=3)
    roots = export_model(other.path, tmp_path / "models", "m"), models / "plain" / "1"
    mine, theirs = ({name: entry for name, entry in hash_tree(root).items() if not name.startswith("programs/")} for root in roots)
    assert mine == theirs


def test_each_policy_and_number_type_is_what_was_said(models: Path, run: DynamicRun) -> None:
    engine = Engine.open(models / "told")
    asked = [*ODD_KEYS, 100, 101, 999]
    rows = [{**row, "uid": one, "item": one, "fresh": one, "buys": {one: 2.0}} for row, one in zip(rows_of(IDS), asked, strict=False)]
    found = engine.lookup(engine.encode_rows(rows))["deep"]
    uid, item, buys = (run.tables[TABLES[name]] for name in ("uid", "item", "buys"))
    mean = np.mean(list(item.vectors.values()), axis=0)
    for place, row in enumerate(rows):
        one = int(str(row["uid"]))
        wanted = [uid.vectors.get(one, np.zeros(4)), item.vectors.get(one, mean), buys.vector(one), np.zeros(2)]
        for name, number_type, vector in zip(TABLES, ("int8", "fp16", "int4", "fp32"), wanted, strict=True):
            part, width = found[place, STARTS[name] : STARTS[name] + WIDTHS[name]], WIDTHS[name]
            stored = torch.from_numpy(vector).float().unsqueeze(0)
            stored = decode_rows(encode_rows(stored, number_type), width, number_type)[0] if number_type != "fp32" else stored[0]
            torch.testing.assert_close(part, stored, rtol=0, atol=1e-3 if (name, place) == ("item", 11) else 1e-6)


def test_spare_rows_count_in_no_report(models: Path) -> None:
    report = {one["table"]: one for one in json.loads((models / "told" / "1" / "quality.json").read_text())["tables"]}
    for table, ids in (("uid_emb", 49), ("buys_emb", 25)):
        assert report[table]["rows"] == ids + 1
        assert report[table]["mean_cosine"] < 1
    rows = map_tensors(models / "plain" / "1" / "tables" / "buys_emb.safetensors")["rows"].double()
    rows = torch.cat([rows[:25], rows[-1:]])
    gap = decode_rows(encode_rows(rows.half(), "int4"), 8, "int4").double() - rows
    assert report["buys_emb"]["mean_squared_error"] == pytest.approx(gap.pow(2).mean().item())
    cosines = torch.nn.functional.cosine_similarity(rows, rows + gap, dim=1)
    assert report["buys_emb"]["mean_cosine"] == pytest.approx(cosines.mean().item())


def test_unknown_ids_are_refused_by_name_or_counted(run: DynamicRun, models: Path, tmp_path: Path) -> None:
    refusing = Engine.open(export_model(run.path, tmp_path / "models", "m", unknown=["uid=error"]))
    row = rows_of(IDS)[0]
    with pytest.raises(RequestError, match="id 123456 has no row of its own") as error:
        refusing.lookup(refusing.encode_rows([row, {**row, "uid": 123456}]))
    assert (error.value.feature, error.value.row) == ("uid", 1)
    engine = Engine.open(models / "plain")
    engine.lookup(engine.encode_rows([{**row, "uid": one, "item": 7, "click__item": "5;6;7", "buys": {}} for one in (5, 2**63 - 1, 999)]))
    counts = {table: (found.asked, found.unknown) for table, found in engine.id_counts().items()}
    assert counts["uid_emb"] == (3, 1)
    assert counts["item_table"] == (3 + 9, 3 + 6)
    assert counts["fresh_emb"] == (3, 3)


def other_tables(number: int) -> tuple[list[int], int]:
    """The ids and the seed of the vectors after so many deltas: some went, others came, all vectors of odd deltas are new ones."""
    ids = [one for one in IDS if one % (number + 2) or number == 3]
    return [*ids, *range(1000 * number, 1000 * number + 15 * number)], 1 + number // 2


class Trail:
    """A version, three deltas of it, and after each what it must answer."""

    def __init__(self, root: Path, change: Callable[[int], tuple[list[int], int]]) -> None:
        self.run = new_run(root / "run")
        self.run.save(1, tables_of(IDS, 1))
        self.base, self.states = export_model(self.run.path, root / "models", "m"), [self.run.tables]
        for number in (1, 2, 3):
            self.run.save(1 + number, tables_of(*change(number)), ranks=number)
            export_delta(self.run.path, root / "models", "m", 1)
            self.states.append(self.run.tables)

    def after(self, deltas: int) -> DynamicRun:
        return DynamicRun(self.run.path, self.run.model, self.states[deltas])


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> Trail:
    return Trail(tmp_path_factory.mktemp("trail"), other_tables)


@pytest.mark.parametrize("memory", ["private", "mapped", "disk"])
def test_deltas_bring_new_ids_and_take_gone_ones(trail: Trail, memory: str) -> None:
    """Opened with so many of them, which is also how one goes back, and added one by one to what is served."""
    live = Engine.open(trail.base, deltas=0, tables=memory)
    for number in range(4):
        if number:
            live.apply_delta(trail.base / "deltas" / str(number))
        for engine in (live, Engine.open(trail.base, deltas=number, tables=memory)):
            require_dictionary(engine, trail.after(number))
            assert {table: parts.raw_ids.tolist() for table, parts in engine.artifact.ids.items() if table != "shop_emb"} == {
                table: sorted(found.vectors) for table, found in trail.states[number].items()
            }


def test_deltas_hold_no_more_than_what_changed(trail: Trail) -> None:
    """The second one keeps the vectors of ids that stay: rows of these are not in it."""
    manifest, _ = load_delta_manifest(trail.base / "deltas" / "3")
    change = next(change for change in manifest.tables if change.table == "uid_emb")
    before, after = (set(state["uid_emb"].vectors) for state in trail.states[2:])
    assert change.ids is not None
    assert (change.ids.came, change.ids.went, change.ids.num_ids) == (len(after - before), len(before - after), len(after))
    # Seeds of 2 and 3 are equal, so vectors too: written are rows of new ids, and of gone ones whose rows none of these got.
    assert len(after - before) <= change.rows <= max(len(after - before), len(before - after))


def test_no_room_is_refused_and_nothing_is_published(trail: Trail, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(trail.base, models / "m" / "1", ignore=shutil.ignore_patterns("deltas"))
    run = DynamicRun(tmp_path / "run", trail.run.model)
    run.save(9, tables_of([*IDS, *range(5000, 5071)], 1))
    message = r"table 'uid_emb': 71 ids are new, and the version has room for 70 \(70 were spare, and 0 ids went\); export a whole"
    with pytest.raises(ExportError, match=message):
        export_delta(run.path, models, "m", 1)
    assert not list((models / "m" / "1").rglob("deltas/*"))
    run.save(10, tables_of([*IDS, *range(5000, 5070)], 1))
    export_delta(run.path, models, "m", 1)
    require_dictionary(Engine.open(models / "m"), run)


def test_a_table_of_another_kind_is_no_delta(trail: Trail, tmp_path: Path) -> None:
    text = CONFIG.replace(f'"user:uid" embedding_dim: 4 {GROWS}', '"user:uid" embedding_dim: 4 zch { zch_size: 12 eviction_interval: 1 lfu {} }')
    other = new_run(tmp_path / "run", text)
    other.save(9, {name: table for name, table in tables_of(IDS, 1).items() if name != "uid_emb"}, text=text)
    with pytest.raises(ExportError, match=r"cannot become a delta.*table 'uid_emb': kind is zch, in the artifact dynamic"):
        export_delta(other.path, trail.base.parent.parent, "m", 1)


def test_one_id_is_followed_through_artifact_and_checkpoint(models: Path, run: DynamicRun, trail: Trail) -> None:
    for one in (5, 2**63 - 1, 77):
        vector = run.tables["uid_emb"].vector(one)
        row = sorted(IDS).index(one) if one in IDS else 119
        (served,), (stored,) = explain(models / "plain", "uid", str(one)), explain(run.path, "uid", str(one))
        assert served["row"] == row
        for facts in (served, stored):
            assert (facts["kind"], facts["known"]) == ("dynamic", one in IDS)
            assert facts["reads"] == ("its own row" if one in IDS else "the table's default vector (fallback)")
            np.testing.assert_allclose(np.array(facts["vector"]), vector, rtol=0, atol=1e-6)
            assert "part" not in facts
    assert (stored["reads_that_count_for_admission"], "row" in stored) == (3, False)
    (stored,) = explain(run.path, "uid", "5")
    assert (stored["last_seen"], stored["score"], stored["scored_by"]) == ("in step 5 of 9", 0, "STEP")
    (told,) = explain(models / "told", "item", "77")
    assert told["reads"] == "the row of the table's mean (mean)"
    (gone,) = explain(trail.base, "uid", "-1") if -1 not in trail.states[3]["uid_emb"].vectors else [{"known": False}]
    assert gone["known"] is False


def test_the_commands_tell_of_such_tables(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = describe(models / "plain")
    (line,) = [line for line in lines if line.split()[:2] == ["uid_emb", "dynamic"]]
    assert "49, 70 rows spare" in line
    assert any("uid_emb (sum); unknown ids: fallback" in line for line in lines)
    (told,) = list(verify(models / "plain"))
    assert "all as they were published; the golden sample gives the same answers" in told
    assert main(["explain", str(models / "plain"), "uid", "77"]) == 0
    assert "the table's default vector (fallback)" in capsys.readouterr().out


TOWERS = """
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" embedding_dim: 4 GROWS } }
feature_configs { id_feature { feature_name: "shown" expression: "item:shown" embedding_dim: 8 embedding_name: "both_emb" GROWS } }
feature_configs { id_feature { feature_name: "liked" expression: "user:liked" embedding_dim: 8 embedding_name: "both_emb" GROWS } }
model_config {
  feature_groups { group_name: "u" feature_names: "liked" feature_names: "uid" }
  feature_groups { group_name: "i" feature_names: "shown" }
  dssm {
    user_tower { input: "u" mlp { hidden_units: [8] } } item_tower { input: "i" mlp { hidden_units: [8] } }
    output_dim: 6 similarity: COSINE temperature: 0.2
  }
}
""".replace("GROWS", GROWS)


def test_a_tower_takes_its_own_tables_and_their_deltas(tmp_path: Path) -> None:
    run, models = new_run(tmp_path / "run", TOWERS), tmp_path / "models"
    run.save(1, {"uid_emb": grown(IDS, 4, 1), "both_emb": grown(IDS[::2], 8, 1)}, ranks=2, text=TOWERS)
    item = Engine.open(export_model(run.path, models, "item", tower="item"))
    assert [table.name for table in item.schema.tables] == ["both_emb"]
    both, asked = run.tables["both_emb"], [*IDS, 999]
    found = item.lookup(item.encode_rows([{"shown": one} for one in asked]))["i"]
    np.testing.assert_allclose(found.double().numpy(), [both.vector(one) for one in asked], rtol=0, atol=1e-6)
    export_model(run.path, models, "user", tower="user")
    run.save(2, {"uid_emb": grown([*IDS[3:], 777], 4, 2), "both_emb": grown(IDS[::3], 8, 2)}, text=TOWERS)
    export_delta(run.path, models, "user", 1)
    user, (uid, both) = Engine.open(models / "user"), (run.tables[table] for table in ("uid_emb", "both_emb"))
    asked = [*IDS, 777, 999]
    found = user.lookup(user.encode_rows([{"uid": one, "liked": [one, 100]} for one in asked]))["u"]
    wanted = [np.concatenate([both.vector(one) + both.vector(100), uid.vector(one)]) for one in asked]
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=0, atol=1e-6)
