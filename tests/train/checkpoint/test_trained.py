"""A trained model out of a checkpoint: exact weights, and clear words where it cannot be had."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.manifest import hash_tree, read_manifest, write_manifest
from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.tensors import read_tensors, save_tensors
from emberline.train.config import PipelineConfig
from emberline.train.data import DataReader
from emberline.train.job import run_training
from emberline.train.zch import zch_modules

MakeConfig = Callable[..., PipelineConfig]


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def seal(path: Path) -> None:
    """Make a changed checkpoint's manifest fit again."""
    data = read_manifest(path)
    write_manifest(path, {**data, "files": {name: asdict(entry) for name, entry in hash_tree(path).items()}})


def test_weights_are_those_of_the_checkpoint(run: Path) -> None:
    for step in (2, 4):
        trained = load_trained(run, step)
        assert (trained.step, trained.path.name) == (step, f"step-{step}")
        stored = read_tensors(run / f"step-{step}" / "tensors")
        tables = trained.model.embedding_group.pooled.table_weights()
        assert sorted(tables) == ["hour_emb", "item_emb", "tags_emb", "user_emb"]
        assert all(torch.equal(weight, stored[f"tables/{name}/weight"]) for name, weight in tables.items())
        for name, value in trained.model.head.state_dict().items():
            assert torch.equal(value, stored[f"dense/head.{name}"])
        state = zch_modules(trained.model)["user_emb"].state_for_checkpoint()
        assert all(torch.equal(value, stored[f"zch/user_emb/{name}"].view(value.shape)) for name, value in state.items())
    assert load_trained(run).step == 4
    assert load_trained(run / "step-2").step == 2


def test_reading_changes_nothing(run: Path) -> None:
    trained = load_trained(run)
    before = {name: value.clone() for name, value in trained.model.state_dict().items() if isinstance(value, torch.Tensor)}
    config = replace(trained.config, data=replace(trained.config.data, shuffle=False))
    with torch.no_grad():
        answers = [trained.model(batch)["logits"] for batch in DataReader(config.data, trained.features, config.eval_input_path)]
        again = [trained.model(batch)["logits"] for batch in DataReader(config.data, trained.features, config.eval_input_path)]
    assert all(torch.equal(one, other) for one, other in zip(answers, again, strict=True))
    after = trained.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_checkpoint_travels(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(run / "step-4", moved)
    assert load_trained(moved).step == 4


def test_vocabulary_files_travel_along(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("i1\ni2\ni3\n")
    features = """
    feature_configs { id_feature {
      feature_name: "item" expression: "item:item" embedding_dim: 8 vocab_file: "words.txt" default_bucketize_value: 0
    } }
    feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
    """
    groups = 'feature_groups { group_name: "dense" feature_names: "age" } feature_groups { group_name: "sparse" feature_names: "item" }'
    config = make_config(features=features, groups=groups, train="num_steps: 2")
    run_training(config, tmp_path / "run")
    (tmp_path / "words.txt").unlink()
    assert load_trained(tmp_path / "run").features[0].rows == 3


def test_damage_is_an_error_not_an_older_model(run: Path) -> None:
    (run / "step-4" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step-4 is damaged: state\.json has 2 bytes"):
        load_trained(run)
    assert load_trained(run, 2).step == 2


def test_tensors_that_do_not_fit_are_named(run: Path) -> None:
    path = run / "step-4"
    tensors = read_tensors(path / "tensors")
    del tensors["tables/item_emb/weight"]
    tensors["tables/other/weight"] = torch.zeros(1, 4)
    shutil.rmtree(path / "tensors")
    save_tensors(path / "tensors", tensors)
    seal(path)
    with pytest.raises(CheckpointError, match=r"tables/item_emb/weight is missing; tables/other/weight is not in the model"):
        load_trained(run)


def test_a_config_that_reads_otherwise_is_refused(run: Path) -> None:
    path = run / "step-4"
    schema = json.loads((path / "schema.json").read_text())
    schema["tables"][0]["rows"] += 1
    (path / "schema.json").write_text(json.dumps(schema))
    seal(path)
    with pytest.raises(CheckpointError, match="its config now gives other tables than when it was trained"):
        load_trained(run)
    (path / "schema.json").write_text("{}")
    seal(path)
    with pytest.raises(CheckpointError, match=r"schema\.json is not of this release"):
        load_trained(run)


@pytest.mark.parametrize(("name", "text"), [("config.pbtxt", "nonsense {"), ("state.json", '{"steps": 3}'), ("state.json", "{")])
def test_files_that_cannot_be_read_are_named(run: Path, name: str, text: str) -> None:
    path = run / "step-4"
    (path / name).write_text(text)
    seal(path)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_trained(run)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        load_trained(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no complete checkpoint here"):
        load_trained(tmp_path)


def test_versions_are_in_the_manifest(run: Path) -> None:
    versions = store.read_checkpoint(run / "step-4").versions
    assert versions["torch"].startswith(torch.__version__.split("+")[0])
    assert "torchrec" in versions
