"""The run's folder: one run at a time, and the same config."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.features import EmbeddingConstraints, IdFeatureConfig
from emberline.train.job_folder import LOCK_NAME, check_same_config, claim_folder, differences
from emberline.train.sharding import Ranks
from tests.train.conftest import config_text

MakeConfig = Callable[..., PipelineConfig]


def test_a_new_folder_is_made_and_taken_away_where_nothing_came_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with claim_folder(folder, resume=False):
        assert [path.name for path in folder.iterdir()] == [LOCK_NAME]
    assert not folder.exists()
    with claim_folder(folder, resume=False):
        (folder / "result.json").write_text("{}")
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_NAME, "result.json"]


def test_an_empty_folder_stays(tmp_path: Path) -> None:
    with claim_folder(tmp_path, resume=False):
        pass
    with claim_folder(tmp_path, resume=False):
        pass
    assert tmp_path.exists()


def test_a_folder_with_something_in_it_needs_resume(tmp_path: Path) -> None:
    for name in ("c", "a", "b", "d"):
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=r"is not empty \(a, b, c, \.\.\.\); add --resume"), claim_folder(tmp_path, resume=False):
        pass
    with claim_folder(tmp_path, resume=True):
        pass
    assert len(list(tmp_path.iterdir())) == 5


def test_drafts_of_a_killed_run_go_when_it_is_resumed(tmp_path: Path) -> None:
    (tmp_path / ".draft-step-3").mkdir()
    with pytest.raises(ConfigError, match="is not empty"), claim_folder(tmp_path, resume=False):
        pass
    assert (tmp_path / ".draft-step-3").exists()
    with claim_folder(tmp_path, resume=True):
        assert not (tmp_path / ".draft-step-3").exists()


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = str(tmp_path / LOCK_NAME)
    code = f"import fcntl, sys; file = open({lock!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another training process is writing there"), claim_folder(tmp_path, resume=True):
            pass
        other.communicate()
    with claim_folder(tmp_path, resume=True):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="cannot be written as the output folder"), claim_folder(tmp_path / "run", resume=False):
        pass


def test_differences_are_named(make_config: MakeConfig) -> None:
    old = make_config()
    assert differences(old, make_config(train="num_epochs: 5 num_steps: 7 keep_checkpoint_max: 2", save=1, log=2)) == []
    replanned = "planner { storage_reserve: 0.3 } global_embedding_constraints { sharding_types: 'row_wise' }"
    assert differences(old, make_config(train=replanned)) == []
    first = cast(IdFeatureConfig, old.feature_configs[0])
    pinned = replace(first, embedding_constraints=EmbeddingConstraints(ranks=(0,)))
    assert differences(old, replace(old, feature_configs=(pinned, *old.feature_configs[1:]))) == []
    assert differences(old, make_config(data_config="shuffle_buffer_rows: 7 eval_batch_size: 3")) == ["data.shuffle_buffer_rows: was 65536, is 7"]
    assert differences(old, make_config(dense="sgd_optimizer { lr: 0.01 }"))[0].startswith("train.dense_optimizer.optimizer: was AdamConfig(")


def test_a_step_keeps_its_rows_on_more_ranks(finished_run: Path, train_data: Path) -> None:
    checkpoint, text = store.find_checkpoint(finished_run), config_text(train_data, train="num_steps: 4")
    for batch_size, world_size in ((32, 1), (32, 2), (16, 2), (8, 4)):  # one rank had 32 rows a step
        check_same_config(parse_config(text.replace("batch_size: 32", f"batch_size: {batch_size}")), checkpoint, world_size)
    for batch_size, world_size in ((16, 1), (16, 4), (64, 2)):
        with pytest.raises(CheckpointError, match=f"data.batch_size: was 32, is {batch_size}"):
            check_same_config(parse_config(text.replace("batch_size: 32", f"batch_size: {batch_size}")), checkpoint, world_size)


def test_features_differ_by_name(make_config: MakeConfig) -> None:
    features = 'feature_configs { raw_feature { feature_name: "age" } } feature_configs { raw_feature { feature_name: "price" } }'
    groups, model = 'feature_groups { group_name: "dense" feature_names: "age" }', "custom_model { class_path: 'torch.nn.Linear' }"
    old = make_config(features=features, groups=groups, model=model)
    changed = make_config(features=features.replace('"age"', '"age" value_dim: 2'), groups=groups, model=model)
    assert differences(old, changed) == ["feature_configs[age].value_dim: was 1, is 2"]
    fewer = make_config(features=features[: features.rindex("feature_configs")], groups=groups, model=model)
    assert differences(old, fewer) == ["feature_configs[price] was taken out"]
    assert differences(fewer, old) == ["feature_configs[price] was added"]
    one, other = features.split("feature_configs")[1:]
    swapped = make_config(features=f"feature_configs {other} feature_configs {one}", groups=groups, model=model)
    assert differences(old, swapped) == ["feature_configs: the order changed"]


def test_a_launch_that_starts_anew_goes_on_in_its_own_folder_only(tmp_path: Path) -> None:
    def start(launch: str, restarts: int) -> Ranks:
        return Ranks(0, 1, launch=launch, restarts=restarts)

    with claim_folder(tmp_path, resume=False, ranks=start("one", 0)) as goes_on:
        assert not goes_on
        (tmp_path / "step-1").mkdir()
    with claim_folder(tmp_path, resume=False, ranks=start("one", 1)) as goes_on:
        assert goes_on
    for launch, restarts in (("two", 1), ("", 1), ("two", 0), ("two", 1), ("one", 0), ("one", 1)):  # a refused start is not the one that began
        with pytest.raises(ConfigError, match="is not empty"), claim_folder(tmp_path, resume=False, ranks=start(launch, restarts)):
            pass
    with claim_folder(tmp_path, resume=True, ranks=start("three", 0)) as goes_on:
        assert goes_on
    with claim_folder(tmp_path, resume=False, ranks=start("three", 2)) as goes_on:
        assert goes_on


def test_room_of_dynamic_tables_may_change_and_what_scores_mean_may_not() -> None:
    def config(growth: str) -> PipelineConfig:
        feature = f'feature_name: "a" expression: "user:a" embedding_dim: 4 dynamicemb {{ {growth} }}'
        return parse_config(f"feature_configs {{ id_feature {{ {feature} }} }}")

    old = config("max_capacity: 100 score_strategy: 'LFU'")
    assert (
        differences(old, config("max_capacity: 90 score_strategy: 'LFU' bucket_capacity: 64 init_capacity_per_rank: 8 cache_load_factor: 0.5")) == []
    )
    assert differences(old, config("max_capacity: 100 score_strategy: 'STEP'")) == ["feature_configs[a].dynamicemb.score_strategy: was LFU, is STEP"]
    (found,) = differences(old, config("max_capacity: 100 score_strategy: 'LFU' eval_initializer_args { mode: 'CONSTANT' value: 1 }"))
    assert found.startswith("feature_configs[a].dynamicemb.eval_initializer_args: was None, is ")
