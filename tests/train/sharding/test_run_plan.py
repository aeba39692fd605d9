"""Plans of the planner carried out by several processes over gloo: each rank gets what the unsharded model gives for its batch."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.train.embedding import EmbeddingGroup
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.sharding.cases import deep, group_of, id_feature, steps, steps_feature, zch_feature

SCRIPT = Path(__file__).with_name("run_rank.py")
NODE_TYPES = ("table_row_wise", "table_column_wise", "grid_shard")


def asked(kind: str) -> str:
    return f'sharding_types: "{kind}"'


def run_ranks(folder: Path, text: str, world_size: int, local_world_size: int) -> list[Any]:
    (folder / "model.pbtxt").write_text(text)
    run_forked(folder, [Job(world_size, [str(SCRIPT), str(folder)], local_world_size)])
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(world_size)]


def expected(text: str, rank: int) -> dict[str, torch.Tensor]:
    """The unsharded model's tensors for the batch of one rank."""
    spec = importlib.util.spec_from_file_location("run_rank", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    group: EmbeddingGroup = group_of(text, device=None, optimizer=False)
    with torch.no_grad():
        for name, weight in group.table_weights().items():
            weight.copy_(script.values(name, *weight.shape))
        group.mark_untrained()
        result: dict[str, torch.Tensor] = group(script.batch_of(group, rank))
    return result


def check(folder: Path, text: str, types: dict[str, str], world_size: int, local_world_size: int) -> list[Any]:
    ranks = run_ranks(folder, text, world_size, local_world_size)
    for rank, own in enumerate(ranks):
        assert {name: kind for name, (kind, _) in json.loads(own["types"]).items()} == types
        wanted = expected(text, rank)
        assert list(own["found"]) == list(wanted)
        for name, tensor in wanted.items():
            torch.testing.assert_close(own["found"][name], tensor, atol=1e-5, rtol=1e-5, msg=f"rank {rank}: {name}")
    return ranks


def test_two_ranks_answer_as_the_unsharded_model_does(tmp_path: Path) -> None:
    kinds = ("table_wise", "row_wise", "column_wise", "data_parallel")
    pooled = {f"p_{kind}": kind for kind in (*kinds, *NODE_TYPES)}
    sequences = {f"s_{kind}": kind for kind in kinds}
    text = "".join(id_feature(name, 23, 16, asked(kind)) for name, kind in pooled.items())
    text += "".join(steps_feature(name, 22, 8, asked(kind)) for name, kind in sequences.items())
    pooled["p_grid"] = "grid_shard"
    pooled["p_odd"], sequences["s_odd"] = "column_wise", "column_wise"  # in shards of 3 and of 5 columns
    text += (
        id_feature("p_grid", 23, 6, asked("grid_shard"))
        + id_feature("p_odd", 23, 6, asked("column_wise"))
        + steps_feature("s_odd", 22, 10, asked("column_wise"))
    )
    text += zch_feature("z", 16, 8) + deep(*pooled, "z")
    text += "".join(steps(name).replace("'steps'", f"'{name}'") for name in sequences)
    types = {f"{name}_emb": kind for name, kind in (pooled | sequences | {"z": "row_wise"}).items()}
    ranks = check(tmp_path, text, types, 2, 2)
    assert ranks[0]["types"] == ranks[1]["types"]
    assert ranks[0]["speeds"] == ranks[1]["speeds"]  # the slowest rank's, on all of them
    assert set(ranks[0]["speeds"]) == {"ddr", "intra_node"}
    assert min(ranks[0]["speeds"].values()) > 0


@pytest.mark.slow
def test_types_that_know_machines_run_on_two_of_them(tmp_path: Path) -> None:
    pooled = {f"p_{kind}": kind for kind in NODE_TYPES}
    text = "".join(id_feature(name, 23, 6, asked(kind)) for name, kind in pooled.items()) + deep(*pooled)
    ranks = check(tmp_path, text, {f"{name}_emb": kind for name, kind in pooled.items()}, 4, 2)
    assert sorted(json.loads(ranks[0]["types"])["p_grid_shard_emb"][1]) == [0, 1, 2, 3]
    assert set(ranks[0]["speeds"]) == {"ddr", "intra_node", "inter_node"}
