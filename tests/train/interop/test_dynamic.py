"""The dynamic tables of a TorchEasyRec checkpoint, written as NVIDIA's kernel does by several ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.dynamic.options import DynamicEmbOptions, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.interop.dynamic import DynamicFiles, fill_dynamic
from emberline.train.kernels.optimizers import Adam

DIM = 4
KEYS = (np.array([5, -3, 2**62]), np.array([], np.int64), np.array([7, -(2**63)]))


def write(folder: Path, ranks: int = 3) -> None:
    """Each rank's keys, with vectors that tell the key, and moments."""
    folder.mkdir(parents=True)
    for rank, keys in enumerate(KEYS[:ranks]):
        values = np.outer(keys % 100, np.ones(DIM)).astype(np.float32)
        moments = np.concatenate([values + 1, values + 2], axis=1)
        parts = {"emb_keys": keys.astype(np.int64), "emb_values": values, "emb_scores": keys % 10, "emb_opt_values": moments}
        parts |= {"counter_keys": keys + 1, "counter_frequencies": keys * 0 + rank + 1}
        for part, array in parts.items():
            (folder / f"t_{part}.rank_{rank}.world_size_{ranks}").write_bytes(array.tobytes())


def kernel(rows: int = 20) -> BatchedDynamicEmbeddingTables:
    constant = Initializer(mode=InitializerMode.CONSTANT, value=0.5)
    options = DynamicEmbOptions(max_capacity=rows, initializer=constant, eval_initializer=constant, score_strategy=ScoreStrategy.LFU)
    return BatchedDynamicEmbeddingTables([DynamicTable("t", DIM, options, rows)], [0], Adam())


@pytest.mark.parametrize("with_moments", [True, False])
def test_all_ids_of_all_ranks(tmp_path: Path, with_moments: bool) -> None:
    write(tmp_path / "module" / "path")
    files, held = DynamicFiles.of(tmp_path), kernel()
    assert (files.ranks, files.problems(["t"])) == ({"t": 3}, [])
    told = fill_dynamic(files, {"t": held}, 9, with_moments=with_moments)
    assert told == [f"table 't': 5 ids of 3 ranks, moments {'too' if with_moments else 'anew'}"]
    state = held.dump("t")
    ids = np.sort(np.concatenate(KEYS))
    assert state.keys.tolist() == ids.tolist()
    vectors = torch.from_numpy(np.outer(ids % 100, np.ones(DIM))).float()
    assert torch.equal(state.weights, vectors)
    assert torch.equal(state.moments["exp_avg"], vectors + 1 if with_moments else torch.zeros_like(vectors))
    assert torch.equal(state.moments["exp_avg_sq"], vectors + 2 if with_moments else torch.zeros_like(vectors))
    assert state.scores.tolist() == (ids % 10).tolist()
    assert (held.step, held.tables.step, set(state.last_steps.tolist())) == (9, 9, {9})
    assert state.default.tolist() == [0.5] * DIM
    full = kernel(3)
    assert fill_dynamic(files, {"t": full}, 9, with_moments=False) == [
        "table 't': 5 ids of 3 ranks, moments anew; 2 of the lowest scores found no room"
    ]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    assert DynamicFiles.of(tmp_path / "none").problems(["t"]) == [f"{tmp_path}/none: dynamic table 't' is missing"]
    write(tmp_path / "a")
    assert DynamicFiles.of(tmp_path).problems(["u"]) == [
        f"{tmp_path}: dynamic table 'u' is missing",
        f"{tmp_path}: t: surplus, the model has no dynamic table of that name",
    ]
    (tmp_path / "a" / "t_emb_values.rank_2.world_size_3").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="1 bytes, and 8 numbers have 32"):
        fill_dynamic(DynamicFiles.of(tmp_path), {"t": kernel()}, 9, with_moments=True)
    (tmp_path / "a" / "t_emb_keys.rank_1.world_size_3").unlink()
    with pytest.raises(CheckpointError, match="there are the ids of rank 0 of 3, rank 2 of 3, not of all ranks of one number"):
        DynamicFiles.of(tmp_path)
