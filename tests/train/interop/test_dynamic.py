"""The dynamic tables of a TorchEasyRec checkpoint, written as NVIDIA's kernel does by several ranks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.dynamic.options import DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
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


def kernel(rows: int = 20, admission: FrequencyAdmission | None = None) -> BatchedDynamicEmbeddingTables:
    constant = Initializer(mode=InitializerMode.CONSTANT, value=0.5)
    options = DynamicEmbOptions(
        max_capacity=rows, initializer=constant, eval_initializer=constant, score_strategy=ScoreStrategy.LFU, admission=admission
    )
    return BatchedDynamicEmbeddingTables([DynamicTable("t", DIM, options, rows, 0 if admission is None else rows)], [0], Adam())


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


def test_an_id_on_two_ranks_is_the_first_ones_and_one_with_a_row_is_not_counted(tmp_path: Path) -> None:
    for rank in range(2):
        values = np.full((2, DIM), rank + 1, np.float32)
        parts = {"emb_keys": np.array([4, 5 + rank]), "emb_values": values, "emb_scores": np.array([1, 1])}
        parts |= {"counter_keys": np.array([5, 8 + rank]), "counter_frequencies": np.array([1 + rank, 1])}
        for part, array in parts.items():
            (tmp_path / f"t_{part}.rank_{rank}.world_size_2").write_bytes(array.tobytes())
    waiting = FrequencyAdmission(threshold=3, counter_capacity=20)
    held = kernel(admission=waiting)
    fill_dynamic(DynamicFiles.of(tmp_path), {"t": held}, 9, with_moments=False)
    state = held.dump("t")
    assert (state.keys.tolist(), state.weights[:, 0].tolist()) == ([4, 5, 6], [1.0, 1.0, 2.0])
    assert (state.counted_keys.tolist(), state.counts.tolist()) == ([8, 9], [1, 1])


@pytest.mark.parametrize("part", ["emb_keys", "emb_scores", "counter_keys", "counter_frequencies"])
def test_files_of_other_lengths_are_named(tmp_path: Path, part: str) -> None:
    write(tmp_path / "a")
    path = tmp_path / "a" / f"t_{part}.rank_0.world_size_3"
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-8], whole + b"12345678"):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"{tmp_path}/a/t_{part.split('_')[0]}.*(numbers|counts)"):
            fill_dynamic(DynamicFiles.of(tmp_path), {"t": kernel()}, 9, with_moments=True)


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
