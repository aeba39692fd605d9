"""Other sizes of ZCH tables on request: ids keep their row's content, the best stay where there is less room, and a run goes on."""

import shutil
from pathlib import Path

import pytest
import torch

from emberline import cli
from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.resize import resize_tables
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import load_config, parse_config
from emberline.train.config.zch_sizes import with_zch_sizes
from emberline.train.job import run_training
from emberline.train.zch import FREE_ROW
from tests.train.conftest import FEATURES, MakeConfig, config_text
from tests.train.zch.grid_on_ranks import HEAD

pytestmark = pytest.mark.usefixtures("one_thread")


def owned(run: Path, table: str = "user_emb") -> dict[int, list[float]]:
    """Id -> count, vector and moment."""
    tensors = read_tensors(store.find_checkpoint(run) / "tensors")
    ids, rows, counts = (tensors[f"zch/{table}/{name}"].tolist() for name in ("raw_ids", "rows", "counts"))
    parts = [tensors[f"tables/{table}/{name}"] for name in ("weight", "sum")]
    return {
        one: [count, *(number for part in parts for number in part[row].tolist())]
        for one, row, count in zip(ids, rows, counts, strict=True)
        if one != FREE_ROW
    }


@pytest.mark.parametrize("size", [2, 20, 39, 41, 500])
def test_ids_keep_what_they_had_and_the_best_are_kept(finished_run: Path, tmp_path: Path, size: int) -> None:
    told: list[str] = []
    path = resize_tables(finished_run, {"user_emb": size}, tmp_path / "run", told.append)
    before, after = owned(finished_run), owned(path)
    assert all(before[one] == own for one, own in after.items())
    assert len(after) == min(len(before), size - 1)
    lost = [before[one][0] for one in before.keys() - after.keys()]
    assert not lost or max(lost) <= min(own[0] for own in after.values())
    assert told[0] == f"table 'user_emb': {len(after):,} ids in {size:,} rows"
    assert told[1:] == ([f"table 'user_emb': {len(lost)} ids of this rank have no row any more"] if lost else [])
    old, new = (read_tensors(run / "tensors") for run in (store.find_checkpoint(finished_run), path))
    assert new["tables/user_emb/weight"].shape == (size, 8)
    assert torch.equal(new["tables/user_emb/weight"][-1], old["tables/user_emb/weight"][-1])
    assert [name for name in old if "user_emb" not in name and not torch.equal(old[name], new[name])] == []
    assert {row for row, moment in enumerate(new["tables/user_emb/sum"]) if moment.any()} <= set(new["zch/user_emb/rows"].tolist())
    model = load_trained(path).model
    assert model.embedding_group.table_weights()["user_emb"].shape == (size, 8)


def test_a_run_goes_on_with_the_new_size(finished_run: Path, tmp_path: Path, make_config: MakeConfig) -> None:
    features, train = FEATURES.replace("zch_size: 40", "zch_size: 60"), "num_steps: 6"
    config = make_config(features=features, train=train, save=2)
    shutil.copytree(finished_run, tmp_path / "old")
    with pytest.raises(CheckpointError, match=r"feature_configs\[user\].zch.zch_size: was 40, is 60"):
        run_training(config, tmp_path / "old", resume=True)
    resize_tables(finished_run, {"user_emb": 60}, tmp_path / "new", lambda line: None)
    result = run_training(config, tmp_path / "new", resume=True)
    assert result.step == 6
    assert len(owned(tmp_path / "new")) > len(owned(finished_run))


def test_a_model_of_the_users_own_is_found_where_the_config_was(tmp_path: Path, train_data: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "resized_head.py").write_text(HEAD)
    model = 'custom_model { class_path: "resized_head.Total" } losses { binary_cross_entropy {} }'
    groups = 'feature_groups { group_name: "g" feature_names: "user" }'
    (home / "c.pbtxt").write_text(config_text(train_data, model=model, groups=groups, train="num_steps: 2", save=2))
    run_training(load_config(home / "c.pbtxt"), tmp_path / "run")
    path = resize_tables(tmp_path / "run", {"user_emb": 70}, tmp_path / "new", lambda line: None)
    assert owned(path) == owned(tmp_path / "run")
    assert read_tensors(path / "tensors")["tables/user_emb/weight"].shape == (70, 8)


def test_wrong_requests_are_told_and_nothing_is_written(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"--zch-size: unknown ZCH table 'user_em'; did you mean 'user_emb'\?"):
        resize_tables(finished_run, {"user_em": 9}, tmp_path / "run", print)
    with pytest.raises(ConfigError, match="unknown ZCH table 'item_emb'"):
        resize_tables(finished_run, {"item_emb": 9}, tmp_path / "run", print)
    with pytest.raises(CheckpointError, match="no such directory"):
        resize_tables(tmp_path / "none", {"user_emb": 9}, tmp_path / "run", print)
    assert not (tmp_path / "run").exists()
    wrong = {
        "--zch-size user_emb=9": "--zch-size and --output go together",
        "": "say --world-size N",
        f"--zch-size user_emb=9 --zch-size user_emb=8 --output {tmp_path}/x": "table 'user_emb' is given 2 times",
    }
    for arguments, message in wrong.items():
        assert cli.main(["reshard", str(finished_run), *arguments.split()]) != 0
        assert message in capsys.readouterr().err
    for text in ("user_emb", "=3", "user_emb=1", "user_emb=-4"):
        with pytest.raises(SystemExit):
            cli.main(["reshard", str(finished_run), "--zch-size", text, "--output", str(tmp_path / "x")])
    for number in (1, 2**63, 2**64):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.main(["reshard", str(finished_run), "--zch-size", f"user_emb={number}", "--output", str(tmp_path / "x")])
        assert f"table 'user_emb': zch_size must be at least 2 and below 2^63, found {number}" in capsys.readouterr().err


def test_the_command(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reshard", str(finished_run), "--zch-size", "user_emb=50", "--output", str(tmp_path / "run"), "--world-size", "2"]
    assert cli.main(arguments) == 0
    told = capsys.readouterr().out
    assert f"checkpoint: {tmp_path}/run/step-4\n" in told
    assert any(line.split()[:2] == ["user_emb", "50"] for line in told.splitlines())


def test_sizes_in_a_text_of_features_and_sequences() -> None:
    zch = "zch { zch_size: 9 lfu {} }"
    text = f"""
    feature_configs {{ id_feature {{ feature_name: "a" expression: "user:a" embedding_dim: 4 {zch} }} }}
    feature_configs {{ sequence_feature {{ sequence_name: "s" sequence_length: 3
      features {{ id_feature {{ feature_name: "a" expression: "user:a" embedding_dim: 4 {zch} }} }} }} }}
    """
    found = parse_config(with_zch_sizes(text, {"s__a": 70}))
    first, second = found.feature_configs
    assert (first.zch.zch_size, second.features[0].zch.zch_size) == (9, 70)  # type: ignore[union-attr]
