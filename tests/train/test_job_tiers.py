"""Jobs whose tables grow: rows in a second tier beside all in memory, and batches that wait for others of their step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.config import PipelineConfig
from emberline.train.data import Batch
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.job import run_training
from emberline.train.sharding.prefetching import Prefetcher
from tests.train.conftest import FEATURES
from tests.train.job_runs import logged, tensors_of

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
ZCH = "zch { zch_size: 40 eviction_interval: 2 lfu {} }"
MODEL = "dlrm { dense_mlp { hidden_units: [8] } final { hidden_units: [8] } }"


def growing(options: str = "") -> str:
    """The standard features, of which one grows."""
    return FEATURES.replace(ZCH, f"dynamicemb {{ max_capacity: 200 {options} }}")


def train(config: PipelineConfig, output: Path, *, pipelined: bool | None = None) -> dict[str, torch.Tensor]:
    """Nothing is evaluated; what the newest checkpoint has."""
    run_training(replace(config, eval_input_path=""), output, pipelined=pipelined)
    return tensors_of(output)


def test_a_second_tier_changes_no_number_and_hears_of_every_batch_before(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    inner = Prefetcher.prefetch

    def hear(prefetcher: Prefetcher, batch: Batch) -> None:
        heard.append(batch.num_rows)
        inner(prefetcher, batch)

    monkeypatch.setattr(Prefetcher, "prefetch", hear)
    plain = train(make_config(train="num_steps: 10", features=growing(), model=MODEL), tmp_path / "plain")
    assert heard == []
    tiered = train(make_config(train="num_steps: 10", features=growing("cache_load_factor: 0.3"), model=MODEL), tmp_path / "tiered")
    assert heard == [32] * 10
    assert plain.keys() == tiered.keys()
    assert [name for name, value in plain.items() if not torch.equal(tiered[name], value)] == []
    (*_, one), (*_, other) = logged(tmp_path / "plain"), logged(tmp_path / "tiered")
    ids = len(plain["dynamic/user_emb/keys"])
    assert one["dynamic/user_emb/size"] == one["dynamic/user_emb/admitted"] == ids > 20
    assert one["dynamic/user_emb/seen"] == 320
    assert one["dynamic/user_emb/memory_bytes"] == ids * 8 * 4 * 2
    more = {name.rpartition("/")[2] for name in other.keys() - one.keys()}
    assert more == {"fast_rows", "fast_bytes", "slow_bytes", "fast_reads", "slow_reads", "fast_share"}
    assert other["dynamic/user_emb/fast_share"] < 1
    assert {name: other[name] for name in one} == one


def test_the_pipeline_tells_a_second_tier_of_each_batch_before_its_turn(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, list[int]]] = []
    learned: list[tuple[int, list[int]]] = []
    prefetch, forward = BatchedDynamicEmbeddingTables.prefetch, BatchedDynamicEmbeddingTables.forward

    def hear(tables: BatchedDynamicEmbeddingTables, indices: torch.Tensor, *others: Any) -> None:
        told.append((tables.step, indices.tolist()))
        prefetch(tables, indices, *others)

    def read(tables: BatchedDynamicEmbeddingTables, indices: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        learned.append((tables.step, indices.tolist()))
        return forward(tables, indices, *others, **named)

    config = make_config(train="num_steps: 10", features=growing("cache_load_factor: 0.3"), model=MODEL)
    plain = train(config, tmp_path / "plain", pipelined=False)
    monkeypatch.setattr(BatchedDynamicEmbeddingTables, "prefetch", hear)
    monkeypatch.setattr(BatchedDynamicEmbeddingTables, "forward", read)
    pipelined = train(config, tmp_path / "pipelined", pipelined=True)
    assert [name for name, value in plain.items() if not torch.equal(pipelined[name], value)] == []
    assert len(learned) == 10
    assert told == learned, "each when the forward of the one before was over"


def test_batches_of_a_step_wait_where_no_row_changes_owner(make_config: MakeConfig, tmp_path: Path) -> None:
    parts = {"features": growing("score_strategy: 'NO_EVICTION'"), "model": MODEL, "dense": "sgd_optimizer { lr: 0.1 }"}
    several = train(make_config(train="num_steps: 8 gradient_accumulation_steps: 4", **parts), tmp_path / "several")
    whole = make_config(train="num_steps: 2", **parts)
    one = train(replace(whole, data=replace(whole.data, batch_size=128)), tmp_path / "one")
    for name in ("keys", "weight", "sum"):
        torch.testing.assert_close(several[f"dynamic/user_emb/{name}"], one[f"dynamic/user_emb/{name}"], rtol=1e-5, atol=1e-6)


def test_rows_that_may_go_to_other_ids_cannot_wait(make_config: MakeConfig, tmp_path: Path) -> None:
    message = (
        r"gradient_accumulation_steps: rows of dynamicemb tables \(user_emb\) may go to other ids within a step; leave it out, or set score_strat"
    )
    with pytest.raises(ConfigError, match=message):
        train(make_config(train="gradient_accumulation_steps: 2", features=growing()), tmp_path / "run")
