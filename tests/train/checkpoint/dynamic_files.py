"""Checkpoints and increments of tables that grow, written as so many ranks would, by one process; for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from emberline.manifest import hash_tree, write_manifest
from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint import store
from emberline.train.checkpoint.dynamic_drafts import (
    Place,
    columns_of,
    common_tensors,
    counted_columns,
    name_numbers,
    number_row,
    row_tensors,
)
from emberline.train.checkpoint.increments import FORMAT, TableChanges, changed_tensors, rank_file
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.live_dynamic import COUNTERS
from emberline.train.checkpoint.run_state import Progress
from emberline.train.checkpoint.stored_dynamic import DynamicNotes, StoredDynamic
from emberline.train.checkpoint.tensors import Writable, save_tensors
from emberline.train.dynamic.state import DynamicState

DIM = 3
NOTES = DynamicNotes(max_capacity=100, score_strategy="STEP", numbers=name_numbers(COUNTERS))


def vectors_of(keys: Tensor, version: int = 0) -> Tensor:
    """What each key's vector is at some time: numbers that tell key and time."""
    low = (keys & 0xFFFF).double().unsqueeze(1)
    return (low * 7 + version * 0.5 + torch.arange(DIM).double() / 8).float()


def state_of(
    keys: Sequence[int], *, step: int = 0, version: int = 0, dtype: torch.dtype = torch.float32, counted: Mapping[int, int] | None = None
) -> DynamicState:
    """One rank's, or all ranks', whose every number depends on the key and the version alone."""
    ids, waiting = torch.tensor(sorted(keys), dtype=torch.int64), dict(sorted((counted or {}).items()))
    return DynamicState(
        keys=ids,
        weights=vectors_of(ids, version).to(dtype),
        moments={"sum": vectors_of(ids, version)[:, 0] + 1, "exp_avg": vectors_of(ids, version) + 2},
        last_steps=torch.full_like(ids, step),
        scores=ids % 1000 + version,
        counted_keys=torch.tensor(list(waiting), dtype=torch.int64),
        counts=torch.tensor(list(waiting.values()), dtype=torch.int64),
        default=torch.full((DIM,), 0.25),
        unadmitted=torch.full((DIM,), -0.25),
        counters={name: place + version for place, name in enumerate(COUNTERS)},
        step=step,
    )


def part_of(state: DynamicState, rank: int, ranks: int) -> DynamicState:
    """What one of so many ranks has of it; the first has the counters."""
    own, waiting = (owner_of(keys, ranks, MIXED) == rank for keys in (state.keys, state.counted_keys))
    return replace(
        state,
        keys=state.keys[own],
        weights=state.weights[own],
        moments={name: moment[own] for name, moment in state.moments.items()},
        last_steps=state.last_steps[own],
        scores=state.scores[own],
        counted_keys=state.counted_keys[waiting],
        counts=state.counts[waiting],
        counters={name: count if rank == 0 else 0 for name, count in state.counters.items()},
    )


def tensors_of(table: str, state: DynamicState, ranks: int) -> dict[str, Writable]:
    """What so many ranks write of a table."""
    parts = [part_of(state, rank, ranks) for rank in range(ranks)]
    columns = [columns_of(part) | counted_columns(part.counted_keys, part.counts) for part in parts]
    joined = {name: torch.cat([own[name].read(0, len(state.keys) + len(state.counted_keys)) for own in columns]) for name in columns[0]}
    whole = replace(
        state,
        keys=joined["keys"],
        weights=joined["weight"],
        moments={name: joined[name] for name in state.moments},
        last_steps=joined["last_steps"],
        scores=joined["scores"],
    )
    rows, waiting = len(whole.keys), len(joined["counted_keys"])
    return {
        **row_tensors(table, columns_of(whole), Place(0, rows, rows)),
        **row_tensors(table, counted_columns(joined["counted_keys"], joined["counts"]), Place(0, waiting, waiting)),
        **common_tensors(table, state.default, state.unadmitted, torch.stack([number_row(part, state.step) for part in parts])),
    }


def write_states(run: Path, step: int, states: Mapping[str, DynamicState], ranks: int = 1, progress: Progress | None = None) -> Path:
    """A checkpoint of these tables, and some other tensors."""
    progress = progress or Progress(step=step)
    layout = Layout(world_size=ranks, columns={}, zch_routing={}, dynamic=dict.fromkeys(states, NOTES))
    others = {"dense/head.weight": torch.arange(6.0).view(2, 3) + step, "dense/scalar": torch.tensor(1.5), "tables/item/weight": torch.ones(4, 2)}
    with store.write_checkpoint(run, step, {}, {"layout": asdict(layout)}) as draft:
        tensors = [tensors_of(table, state, ranks) for table, state in states.items()]
        save_tensors(draft / "tensors", {**others, **{name: tensor for found in tensors for name, tensor in found.items()}})
        (draft / store.STATE_NAME).write_text(progress.text())
        (draft / store.CONFIG_NAME).write_text("# a config\n")
        (draft / store.SCHEMA_NAME).write_text("{}")
    return store.step_path(run, step)


def write_changes(
    path: Path,
    steps: tuple[int, int],
    marks: tuple[str, str],
    changes: Mapping[str, tuple[DynamicState, Sequence[int]]],
    ranks: int = 1,
    run: str = "r",
) -> Path:
    """An increment: of each table what was read and what was removed."""
    path.mkdir(parents=True)
    for rank in range(ranks):
        tensors: dict[str, Tensor] = {}
        for table, (state, gone) in changes.items():
            removed = torch.tensor(sorted(gone), dtype=torch.int64)
            own = removed[owner_of(removed, ranks, MIXED) == rank]
            tensors |= changed_tensors(table, TableChanges(part_of(state, rank, ranks), own, state.step))
        save_file(tensors, path / rank_file(rank))
    head = {"format": FORMAT, "run": run, "base": steps[0], "step": steps[1], "base_mark": marks[0], "mark": marks[1], "ranks": ranks}
    files = {name: asdict(entry) for name, entry in hash_tree(path).items()}
    write_manifest(path, {**head, "tables": {table: asdict(NOTES) for table in changes}, "times": [[steps[1], 60 * steps[1]]], "files": files})
    return path


def stored(checkpoint: Path, table: str) -> StoredDynamic:
    """A table of a checkpoint."""
    layout = Layout.of(store.read_checkpoint(checkpoint).notes["layout"])
    return StoredDynamic(checkpoint / "tensors", table, layout.dynamic[table])


def assert_same(found: DynamicState, wanted: DynamicState, tolerance: float = 0.0) -> None:
    """All of two states is the same, to the bit, or but for so much of vectors and moments."""
    pairs = {"weights": (found.weights, wanted.weights), **{name: (found.moments[name], moment) for name, moment in wanted.moments.items()}}
    for name, pair in pairs.items():
        torch.testing.assert_close(*pair, atol=tolerance, rtol=tolerance, msg=name)
    for name in ("keys", "last_steps", "scores", "counted_keys", "counts", "default", "unadmitted"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        assert getattr(found, name).dtype == getattr(wanted, name).dtype, name
    assert found.moments.keys() == wanted.moments.keys()
    assert (dict(found.counters), found.step) == (dict(wanted.counters), wanted.step)
