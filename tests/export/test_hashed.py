"""Tables with maps by hashes, from a training run to an artifact: what it answers, and what people are told of it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from emberline.cli import main
from emberline.encoding import columns_from_rows, encode
from emberline.errors import CheckpointError
from emberline.export.answers import model_answers
from emberline.export.explain import explain
from emberline.export.export import export_model
from emberline.serving.engine import Engine
from emberline.train.checkpoint import Trained, load_trained, store
from emberline.train.checkpoint.report import reshard_lines
from emberline.train.checkpoint.resize import resize_tables
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.checkpoint.warm_start import WarmStart, choose_parts
from emberline.train.config import load_config
from emberline.train.job import run_training
from emberline.train.zch import FREE_ROW, HashedZchModule, owner_of, zch_modules
from emberline.train.zch.hashed import hour_now
from tests.export.conftest import CONFIG, make_table

UIDS = [5, -5, 2**62, -(2**63), 2**63 - 2, 100, 119, -1, 499, 500, 995, -6, 7, 2**63 - 1]
BUCKETS = {"uid_emb": 12, "uid_emb_wide": 12, "buys_emb": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: 12 buckets by default, three that are far too small, and two ways to lose a row."""
    folder = tmp_path_factory.mktemp("hashed")
    table = make_table(320, seed=1)
    pq.write_table(table, folder / "rows.parquet")
    text = CONFIG.replace("zch { zch_size: 40 eviction_interval: 1 lfu {} }", 'zch { zch_size: 41 kind: "mpzch" ttl { hours: 24 } }')
    text = text.replace("zch { zch_size: 16 eviction_interval: 1 lru {} }", 'zch { zch_size: 16 kind: "mpzch" buckets: 3 max_probe: 2 lru {} }')
    text = f'train_input_path: "DATA"\n{text}'.replace("DATA", str(folder / "rows.parquet"))
    (folder / "pipeline.config").write_text(text)
    run_training(load_config(folder / "pipeline.config"), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def trained(run: Path) -> Trained:
    return load_trained(run)


@pytest.fixture(scope="module")
def artifact(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(run, tmp_path_factory.mktemp("models"), "hashed")


def rows_of(trained: Trained, uids: list[int]) -> list[dict[str, object]]:
    row: dict[str, object] = {"tags": [1], "city": "bern", "color": "red", "clicks": {1: 1.0}, "price": [0.5, 1.0], "score": 0.5, "age": 30}
    return [{**row, "uid": uid, "buys": {uid % 40: 1.0}} for uid in uids]


def test_the_run_filled_the_maps(trained: Trained) -> None:
    maps = zch_modules(trained.model)
    assert {table: module.num_parts for table, module in maps.items()} == BUCKETS
    assert all(isinstance(module, HashedZchModule) for module in maps.values())
    counters = {table: module.counters for table, module in maps.items()}
    assert counters["uid_emb"] == counters["uid_emb_wide"]
    assert counters["uid_emb"].seen == 320
    assert counters["buys_emb"].dropped > 0
    assert maps["uid_emb"].rows_in_use > 10


def test_the_artifact_answers_as_the_trained_model_for_known_and_unknown_ids(trained: Trained, artifact: Path) -> None:
    engine = Engine.open(artifact)
    schema, rows = trained.model.schema(), rows_of(trained, UIDS)
    encoded = engine.encode_rows(rows)
    outputs, groups = model_answers(trained.model, schema, encode(schema.features, *columns_from_rows(schema.features, rows)))
    found = engine.lookup(encoded)
    assert all(torch.equal(found[name], groups[name]) for name in ("deep", "wide"))
    predicted = engine.predict(encoded)
    assert all(torch.allclose(predicted[name], answer, atol=1e-6) for name, answer in outputs.items())
    own = dict(zip(*(part.tolist() for part in zch_modules(trained.model)["uid_emb"].owners()), strict=True))
    ends = zch_modules(trained.model)["uid_emb"].ends
    weight = trained.model.embedding_group.table_weights()["uid_emb"].detach()
    buckets = owner_of(torch.tensor(UIDS), 12, "mixed").tolist()
    assert len(set(buckets)) > 5
    for one, bucket, vector in zip(UIDS, buckets, found["deep"], strict=True):
        assert torch.equal(vector[:4], weight[own.get(one, ends[bucket + 1] - 1)]), one
    assert schema.features[0].name == "uid"
    known = engine.known(encoded)[: len(UIDS)].tolist()
    assert known == [one in own for one in UIDS]
    assert 3 < sum(known) < len(UIDS) - 3


@pytest.mark.parametrize("uid", [5, 499, -1, 2**63 - 1])
def test_one_id_is_explained(run: Path, trained: Trained, artifact: Path, uid: int) -> None:
    bucket = int(owner_of(torch.tensor([uid]), 12, "mixed"))
    (row,) = zch_modules(trained.model)["uid_emb"].rows_of(torch.tensor([uid])).tolist()
    vector = trained.model.embedding_group.table_weights()["uid_emb"][row].tolist()
    for path in (artifact, run):
        facts = next(facts for facts in explain(path, "uid", str(uid)) if facts["table"] == "uid_emb")
        assert (facts["part"], facts["known"], facts["row"], facts["vector"]) == (f"{bucket} of 12, routed by 'mixed'", uid == 5, row, vector)
    assert "reads_since_the_last_round" not in facts
    if uid == 5:
        stored = read_tensors(store.find_checkpoint(run) / store.TENSORS_NAME, "zch/uid_emb/")
        place = stored["zch/uid_emb/raw_ids"].tolist().index(5)
        assert facts["seen"] == int(stored["zch/uid_emb/counts"][place])
        assert abs(int(stored["zch/uid_emb/last_seen_hour"][place]) - hour_now()) < 24
        assert str(facts["last_seen"]).endswith("h UTC")
        assert facts["score"] == int(stored["zch/uid_emb/last_seen_hour"][place])


def test_a_checkpoints_maps_are_shown(run: Path, trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run), "--zch"]) == 0
    shown = capsys.readouterr().out
    used = zch_modules(trained.model)["uid_emb"].rows_in_use
    assert f"uid_emb: {used} ids in 29 rows that can have one, occupancy {used / 29:.1%}" in shown
    assert "12 buckets, ids routed by 'mixed'; occupancy" in shown
    assert "3 buckets" in shown
    assert "wait for the next round" not in shown
    assert "h UTC" in shown


def test_other_numbers_of_ranks_share_whole_buckets(run: Path) -> None:
    lines = reshard_lines(run, 3)
    (uid,) = (line for line in lines if line.startswith("uid_emb "))
    assert uid.split()[-2:] == ["0", "0"]  # no id changes its row, and none is dropped


@pytest.mark.parametrize("size", [600, 14])
def test_another_size_puts_ids_into_buckets_anew(run: Path, trained: Trained, tmp_path: Path, size: int) -> None:
    told: list[str] = []
    path = resize_tables(run, {"uid_emb": size, "uid_emb_wide": size}, tmp_path / "other", told.append)
    other = load_trained(path)
    before, after = zch_modules(trained.model)["uid_emb"], zch_modules(other.model)["uid_emb"]
    old, new = (dict(zip(*(part.tolist() for part in module.owners()), strict=True)) for module in (before, after))
    lost = old.keys() - new.keys()
    assert after.num_parts == (12 if size == 600 else 6)
    assert (len(lost) > 0) == (size == 14)
    assert [line for line in told if f"'uid_emb': {len(lost)} ids" in line] or not lost
    was, now = (model.model.embedding_group.table_weights()["uid_emb"].detach() for model in (trained, other))
    assert len(new) > 5
    assert all(torch.equal(was[old[one]], now[row]) for one, row in new.items())
    counts = []
    for where in (store.find_checkpoint(run), path):
        stored = read_tensors(where / store.TENSORS_NAME, "zch/uid_emb/")
        pairs = zip(*(stored[f"zch/uid_emb/{name}"].tolist() for name in ("raw_ids", "counts")), strict=True)
        counts.append({one: count for one, count in pairs if one != FREE_ROW})
    assert all(counts[0][one] == count for one, count in counts[1].items())
    assert after.counters == before.counters


def test_another_kind_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    text = (run.parent / "pipeline.config").read_text().replace('zch { zch_size: 41 kind: "mpzch" ttl { hours: 24 } }', "zch { zch_size: 41 lfu {} }")
    (tmp_path / "pipeline.config").write_text(text)
    config = load_config(tmp_path / "pipeline.config")
    with pytest.raises(CheckpointError, match="tables/uid_emb is a ZCH table of kind mpzch there, and a ZCH table of kind mch here"):
        choose_parts(WarmStart(checkpoint=run), config)
    with pytest.raises(CheckpointError, match=r"feature_configs\[uid\].zch.kind: was mpzch, is mch"):
        run_training(config, run, resume=True)
