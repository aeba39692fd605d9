"""One value followed through an artifact and its checkpoint: each step against the tables, the maps and hashes worked out here."""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import xxhash

from emberline.cli import main
from emberline.errors import ArtifactError, RequestError
from emberline.export.explain import explain
from emberline.export.export import export_model
from emberline.serving.engine import Engine
from emberline.train.checkpoint import store
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.zch import remap_entries, zch_modules
from tests.export.conftest import SmallRun


@pytest.fixture(scope="module")
def models(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for name in ("fallback", "zeros", "mean", "error"):
        export_model(small_run.path, models, name, unknown=[name])
    return models


def bytes_of(vector: torch.Tensor) -> str:
    return struct.pack(f"<{len(vector)}f", *vector.tolist()).hex()


def by_table(found: list[dict[str, object]]) -> Mapping[object, dict[str, object]]:
    return {facts["table"]: facts for facts in found}


@pytest.mark.parametrize("source", ["artifact", "checkpoint"])
@pytest.mark.parametrize("uid", [5, -5, 2**63 - 2, 499, 2**63 - 1])
def test_a_raw_id_reads_the_row_that_the_map_gives(models: Path, small_run: SmallRun, source: str, uid: int) -> None:
    model = small_run.load().model
    found = by_table(explain(models / "fallback" if source == "artifact" else small_run.path, "uid", str(uid)))
    assert sorted(map(str, found)) == ["uid_emb", "uid_emb_wide"]
    for table, module in zch_modules(model).items():
        if table == "buys_emb":
            continue
        ids, rows, _, (fallback,) = (part.tolist() for part in remap_entries(module))
        facts, known = found[table], uid in ids
        row = rows[ids.index(uid)] if known else fallback
        vector = model.embedding_group.table_weights()[table][row].detach()
        assert (facts["id"], facts["known"], facts["row"]) == (uid, known, row)
        assert facts["reads"] == ("its own row" if known else "the trained fallback row of its part (fallback)")
        assert str(facts["part"]).startswith("0 of 1, routed by ")
        assert facts["vector"] == vector.tolist()
        assert facts["bytes"] == bytes_of(vector)
        assert facts["type"] == "fp32, not quantised: no scale"


def test_a_checkpoint_tells_how_often_and_when_an_id_was_seen(small_run: SmallRun) -> None:
    tensors = read_tensors(store.find_checkpoint(small_run.path) / store.TENSORS_NAME, "zch/")
    for feature, value in (("uid", 5), ("uid", 110), ("buys", int(tensors["zch/buys_emb/raw_ids"][0]))):
        table = f"{feature}_emb"
        place = tensors[f"zch/{table}/raw_ids"].tolist().index(value)
        facts = by_table(explain(small_run.path, feature, str(value)))[table]
        batch = int(tensors[f"zch/{table}/iteration"][0])
        if feature == "uid":  # LFU
            assert facts["seen"] == facts["score"] == int(tensors[f"zch/{table}/counts"][place])
            assert sum(row["uid"] == value for row in small_run.rows) == facts["seen"]
        else:  # LRU
            assert facts["last_seen"] == f"in batch {int(tensors[f'zch/{table}/last_access_iter'][place])} of {batch}"
            assert "seen" not in facts
    assert by_table(explain(small_run.path, "uid", "499"))["uid_emb"]["reads_since_the_last_round"] == 0


@pytest.mark.parametrize(("policy", "reads"), [("zeros", "the row of zeros"), ("mean", "the row of the table's mean")])
def test_an_unknown_id_reads_what_the_artifact_says(models: Path, small_run: SmallRun, policy: str, reads: str) -> None:
    facts = by_table(explain(models / policy, "uid", "499"))["uid_emb"]
    engine = Engine.open(models / policy)
    vector = engine.lookup(engine.encode_rows([dict(small_run.rows[0], uid=499)]))["deep"][0, :4]
    assert (facts["known"], facts["reads"], facts["row"], facts["vector"]) == (False, f"{reads} ({policy})", 40, vector.tolist())


def test_a_refused_id_reads_nothing(models: Path) -> None:
    facts = by_table(explain(models / "error", "uid", "499"))["uid_emb"]
    assert facts["reads"] == "nothing: such a request is refused (error)"
    assert "row" not in facts
    assert by_table(explain(models / "error", "uid", "5"))["uid_emb"]["known"] is True


@pytest.mark.parametrize("source", ["artifact", "checkpoint"])
def test_static_tables_are_followed_too(models: Path, small_run: SmallRun, source: str) -> None:
    path = models / "fallback" if source == "artifact" else small_run.path
    weights = small_run.load().model.embedding_group.table_weights()

    def row_of(feature: str, value: str) -> list[object]:
        (facts,) = explain(path, feature, value) if feature != "cross" else explain(path, feature, value)[:1]
        assert facts["vector"] == weights[str(facts["table"])][int(str(facts["row"]))].tolist()
        return [facts["id"], facts["row"]]

    bucket = xxhash.xxh64_intdigest(b"bern") % 20
    assert row_of("city", "bern") == [bucket, bucket]
    assert row_of("clicks", "7:0.5") == [7, 7]
    assert row_of("age", "39.5") == [1, 1]
    red, blue, other = (row_of("color", word)[0] for word in ("red", "blue", "green"))
    assert len({red, blue, other}) == 3
    assert [facts["id"] for facts in explain(path, "color", "red\x1dblue")] in ([red, blue], [other])
    cross = row_of("cross", '{"city": "bern", "color": "red"}')[0]
    assert cross in range(64)
    assert cross != row_of("cross", '{"city": "lima", "color": "red"}')[0]


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        ("uuid", "5", "unknown feature 'uuid'; did you mean 'uid'?"),
        ("price", "5", "feature 'price': it has numbers, not ids"),
        ("tags", "10", "feature 'tags': row 0"),
        ("uid", "", "is no id: the bag is empty"),
        ("cross", "bern", "feature 'cross': it is computed from city, color: give a JSON object of them, not 'bern'"),
        ("cross", "[1]", "give a JSON object of city, color"),
        ("cross", '{"town": "bern"}', "'town'"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(models: Path, feature: str, value: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        explain(models / "fallback", feature, value)
    assert message in str(error.value)


def test_nothing_is_told_of_what_is_not_there_or_damaged(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no such folder"):
        explain(tmp_path / "gone", "uid", "5")
    root = shutil.copytree(models / "fallback" / "1", tmp_path / "1")
    (root / "remap" / "uid_emb.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"remap/uid_emb\.safetensors is missing"):
        explain(root, "uid", "5")


def test_the_command_prints_a_table_for_each_or_json(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", str(models / "zeros"), "uid", "-6"]
    assert main(arguments) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in first.splitlines()}
    assert (lines["step"], lines["given"], lines["id"], lines["known"], lines["vector"]) == ("what", "-6", "-6", "no", "0 0 0 0")
    assert "uid_emb_wide" in first + second
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == explain(models / "zeros", "uid", "-6")
    assert main(["explain", str(models / "zeros"), "iud", "5"]) == 1
    assert "did you mean 'uid'?" in capsys.readouterr().err
