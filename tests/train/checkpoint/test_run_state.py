"""What does not fit a run is refused by name before anything is filled."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.manifest import hash_tree, read_manifest, write_manifest
from emberline.train.checkpoint import store
from emberline.train.checkpoint.id_maps import check_sizes
from emberline.train.checkpoint.run_state import RunTensors, read_layout, restore_run
from emberline.train.checkpoint.shards import table_shards
from emberline.train.checkpoint.tensors import describe_tensors, read_tensors, save_tensors
from emberline.train.config import PipelineConfig
from emberline.train.job_build import build_parts
from emberline.train.sharding import process_group
from emberline.train.sharding.saved_plan import read_plan
from tests.train.conftest import FEATURES

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
TWO_MAPS = FEATURES.replace(
    'feature_name: "tags" expression: "item:tags" embedding_dim: 8 num_buckets: 12',
    'feature_name: "tags" expression: "item:tags" embedding_dim: 8 zch { zch_size: 8 eviction_interval: 1 lru {} }',
)


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


@pytest.fixture
def checkpoint(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run / "step-4", tmp_path / "run" / "step-4")
    return tmp_path / "run" / "step-4"


def seal(path: Path, **notes: Any) -> None:
    data = read_manifest(path)
    data["files"] = {name: asdict(entry) for name, entry in hash_tree(path).items()}
    write_manifest(path, data | ({"notes": notes} if notes else {}))


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = read_tensors(path / "tensors")
    change(tensors)
    shutil.rmtree(path / "tensors")
    save_tensors(path / "tensors", tensors)
    seal(path)


def tensors_of(config: PipelineConfig) -> RunTensors:
    parts = build_parts(config)
    return RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())


def refused(path: Path, config: PipelineConfig, message: str) -> None:
    tensors = tensors_of(config)
    before = {shard.table: shard.weight.clone() for shard in table_shards(tensors.sharded)}
    generator = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=message):
        restore_run(path, tensors)
    assert all(torch.equal(before[shard.table], shard.weight) for shard in table_shards(tensors.sharded))
    assert torch.equal(generator, torch.get_rng_state())


def test_another_zch_size_is_refused_with_both(make_config: MakeConfig, checkpoint: Path) -> None:
    config = make_config(features=FEATURES.replace("zch_size: 40", "zch_size: 41"))
    refused(checkpoint, config, r"does not fit the model: table 'user_emb' has zch_size 41, the checkpoint 40; keep zch_size, or start anew")


def test_only_the_table_that_changed_is_named(make_config: MakeConfig, tmp_path: Path) -> None:
    old = tensors_of(make_config(features=TWO_MAPS))
    save_tensors(tmp_path / "t", old.all())
    stored = describe_tensors(tmp_path / "t")
    hint = "keep zch_size, or start anew, or ask for it: emberline reshard CKPT --zch-size tags_emb=9 --output DIR"
    for size, wanted in ((8, []), (9, [f"table 'tags_emb' has zch_size 9, the checkpoint 8; {hint}"])):
        new = tensors_of(make_config(features=TWO_MAPS.replace("zch_size: 8", f"zch_size: {size}")))
        assert check_sizes(new.model, stored) == wanted


@pytest.mark.parametrize("name", ["tables/item_emb/sum", "tables/item_emb/step", "zch/user_emb/counts", "zch/user_emb/ends", "rng/0/torch"])
def test_what_is_missing_is_named(make_config: MakeConfig, checkpoint: Path, name: str) -> None:
    rewrite(checkpoint, lambda tensors: tensors.pop(name))
    refused(checkpoint, make_config(), f"{name} is missing")


def test_each_part_of_an_id_map_is_needed_and_named(make_config: MakeConfig, checkpoint: Path) -> None:
    names = sorted(read_tensors(checkpoint / "tensors", "zch/"))
    parts = ["counters", "counts", "ends", "history_ids", "history_iters", "iteration", "last_eviction_iteration", "raw_ids", "rows"]
    assert names == [f"zch/user_emb/{part}" for part in parts]
    whole = read_tensors(checkpoint / "tensors")
    tensors = tensors_of(make_config())
    for name in names:
        rewrite(checkpoint, lambda found, name=name: (found.update(whole), found.pop(name)))  # type: ignore[misc]
        with pytest.raises(CheckpointError, match=f"does not fit the model: {name} is missing$"):
            restore_run(checkpoint, tensors)


def test_what_is_surplus_is_named(make_config: MakeConfig, checkpoint: Path) -> None:
    rewrite(checkpoint, lambda tensors: tensors.update({"tables/item_emb/exp_avg": torch.zeros(50, 8), "rng/3/torch": torch.get_rng_state()}))
    refused(checkpoint, make_config(), r"does not fit the model: tables/item_emb/exp_avg is not in the model$")


def test_an_unknown_way_of_routing_is_refused_and_another_is_told(make_config: MakeConfig, checkpoint: Path) -> None:
    layout = asdict(read_layout(checkpoint))
    assert layout == {"world_size": 1, "columns": {}, "zch_routing": {"user_emb": "mixed"}, "dynamic": {}}
    seal(checkpoint, layout={**layout, "zch_routing": {"user_emb": "range"}})
    _, notes = restore_run(checkpoint, tensors_of(make_config()))
    assert notes == ["table 'user_emb': ids were routed by 'range', and are by 'mixed' from now on"]
    seal(checkpoint, layout={**layout, "zch_routing": {"user_emb": "by_hand"}})
    refused(checkpoint, make_config(), "ids of table 'user_emb' were routed by 'by_hand', not by 'mixed' or 'range'")
    seal(checkpoint, layout={"world_size": "x"})
    refused(checkpoint, make_config(), "the layout in its manifest is not of this release")


def test_the_plan_of_a_checkpoint_is_one_to_train_by(make_config: MakeConfig, checkpoint: Path) -> None:
    plan = read_plan(checkpoint / store.PLAN_NAME)
    assert (plan.world_size, plan.local_world_size, plan.device) == (1, 1, "cpu")
    assert {path.rpartition(".")[2]: (table.sharding_type, table.rows, table.dim) for path, table in plan.tables.items()} == {
        "hour_emb": ("table_wise", 24, 8),
        "item_emb": ("table_wise", 50, 8),
        "tags_emb": ("table_wise", 12, 8),
        "user_emb": ("row_wise", 40, 8),
    }
    parts = build_parts(make_config(), checkpoint / store.PLAN_NAME)
    progress, notes = restore_run(checkpoint, RunTensors(parts.sharded, parts.model, parts.step.optimizer))
    assert (progress.step, progress.rows, notes) == (4, 128, [])
    assert json.loads((checkpoint / "state.json").read_text())["step"] == 4
