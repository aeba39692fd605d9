"""Training runs whose tables grow: killed, taken up, brought up to date by increments, expired, and measured without an optimiser."""

import shutil
from pathlib import Path

import pytest
import torch

from emberline import cli
from emberline.errors import CheckpointError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.apply_increments import apply_increments
from emberline.train.checkpoint.run_state import read_progress
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import load_config
from emberline.train.job import run_training
from tests.nursery import start_script
from tests.train.conftest import config_text
from tests.train.job_runs import assert_same_end, logged, measured, tensors_of
from tests.train.jobs import TIMEOUT_S

FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 8
  dynamicemb { max_capacity: 60 score_strategy: "LFU" eval_initializer_args { mode: "CONSTANT" value: 0.25 } }
} }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 8
  dynamicemb { max_capacity: 100 frequency_admission_strategy { threshold: 3 counter_capacity: 20 } }
} }
feature_configs { id_feature { feature_name: "hour" expression: "context:hour" embedding_dim: 8 num_buckets: 24 } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
"""
GROUPS = """
  feature_groups { group_name: "dense" feature_names: "age" }
  feature_groups { group_name: "sparse" feature_names: "user" feature_names: "item" feature_names: "hour" }
"""
DLRM = "dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }"
SCRIPT = str(Path(__file__).with_name("killed_increments.py"))
pytestmark = pytest.mark.usefixtures("one_thread")


def text(data: Path, train: str = "num_steps: 20 save_increments_steps: 4", features: str = FEATURES) -> str:
    return config_text(data, features=features, groups=GROUPS, model=DLRM, train=train, save=7)


@pytest.fixture(scope="module")
def runs(train_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end, and one that was killed while it wrote an increment, and went on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("growing")
    (folder / "c.config").write_text(text(train_data))
    killed = start_script([SCRIPT, str(folder / "c.config"), str(folder / "killed")])
    run_training(load_config(folder / "c.config"), folder / "whole")
    assert killed.finish(TIMEOUT_S)[0] == -9
    shutil.copytree(folder / "killed", folder / "left")
    run_training(load_config(folder / "c.config"), folder / "killed", resume=True)
    torch.set_num_threads(threads)
    return folder


def increments_of(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "increments").iterdir())


def test_a_killed_run_ends_with_the_same_bits(runs: Path) -> None:
    assert increments_of(runs / "left") == [".draft-8-12", "7-8"]
    assert store.list_steps(runs / "left") == [7]
    assert_same_end(runs / "whole", runs / "killed")
    names = ["12-14", "14-16", "16-20", "7-8", "8-12"]
    assert increments_of(runs / "whole") == increments_of(runs / "killed") == names


def test_increments_of_a_run_give_its_tables(runs: Path, tmp_path: Path) -> None:
    for run in ("whole", "killed"):
        path = apply_increments(runs / run / "step-7", [runs / run / "increments"], tmp_path / run, print)
        found, wanted, base = (read_tensors(one / "tensors") for one in (path, runs / run / "step-20", runs / run / "step-7"))
        assert found.keys() == base.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, (wanted if name.startswith("dynamic/") else base)[name]), name
    mixed = [runs / "whole" / "increments" / "7-8", runs / "killed" / "increments" / "8-12"]
    with pytest.raises(CheckpointError, match="8-12 is of another run"):
        apply_increments(runs / "whole" / "step-7", mixed, tmp_path / "mixed", print)
    assert cli.main(["train", "--config", str(runs / "c.config"), "--output", str(tmp_path / "whole"), "--resume"]) == 1
    assert measured(tmp_path / "whole") != measured(runs / "whole")


def test_a_checkpoint_is_measured_without_an_optimiser(runs: Path, tmp_path: Path) -> None:
    (told,) = [line["eval"] for line in logged(runs / "whole") if "eval" in line] or [logged(runs / "whole")[-1]]
    found = measured(runs / "whole")
    for name in ("auc", "log_loss"):
        assert found[name] == pytest.approx(told[name], abs=1e-5)
    copy = tmp_path / "bare"
    shutil.copytree(runs / "whole" / "step-20", copy)
    tensors = read_tensors(copy / "tensors")
    assert sorted(name for name in tensors if name.startswith("dynamic/user_emb/")) == [
        f"dynamic/user_emb/{part}"
        for part in ("counted_keys", "counts", "default", "keys", "last_steps", "numbers", "scores", "sum", "unadmitted", "weight")
    ]
    assert tensors["dynamic/user_emb/default"].tolist() == [0.25] * 8


def test_ids_expire_and_the_run_goes_on(runs: Path, tmp_path: Path, train_data: Path) -> None:
    assert cli.main(["expire", str(runs / "whole"), "--before-step", "18", "--output", str(tmp_path / "run")]) == 0
    before, after = tensors_of(runs / "whole"), tensors_of(tmp_path / "run")
    for table in ("user_emb", "item_emb"):
        young = before[f"dynamic/{table}/last_steps"] >= 18
        assert torch.equal(after[f"dynamic/{table}/keys"], before[f"dynamic/{table}/keys"][young])
    wider = FEATURES.replace("max_capacity: 60", "max_capacity: 400")
    train = "num_steps: 22 save_increments_steps: 1"
    (tmp_path / "c.config").write_text(text(train_data, train, wider.replace("threshold: 3", "threshold: 90")))
    (tmp_path / "d.config").write_text(text(train_data, train, wider))
    assert cli.main(["train", "--config", str(tmp_path / "c.config"), "--output", str(tmp_path / "run"), "--resume"]) == 1
    assert cli.main(["train", "--config", str(tmp_path / "d.config"), "--output", str(tmp_path / "run"), "--resume"]) == 0
    assert increments_of(tmp_path / "run") == ["20-21", "21-22"]
    progress = read_progress(store.find_checkpoint(tmp_path / "run"))
    assert (progress.step, progress.run) == (22, read_progress(runs / "whole" / "step-20").run)
    keys = tensors_of(tmp_path / "run")["dynamic/user_emb/keys"]
    assert bool(torch.isin(after["dynamic/user_emb/keys"], keys).all())
