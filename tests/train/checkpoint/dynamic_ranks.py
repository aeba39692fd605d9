"""What one of several ranks does for the tests of tables that grow; started with torchrun's variables.

    dynamic_ranks.py FOLDER

On R ranks: trains to FOLDER/run-R, with increments; takes up FOLDER/run-N of as many and of fewer ranks, goes on for a step, and saves that as
FOLDER/from-N-on-R. Each rank reads its own ids of each batch, as an exchange would give it; a vector's gradient depends on id and step alone.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint import store
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.live_dynamic import dynamic_tensors, notes_of, restore_dynamic
from emberline.train.checkpoint.run_growth import RunGrowth
from emberline.train.checkpoint.run_state import Progress, RunContent, read_layout, write_run
from emberline.train.dynamic.options import DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from emberline.train.dynamic.state import DynamicTable
from emberline.train.dynamic.tables import BatchedDynamicEmbeddingTables
from emberline.train.kernels.optimizers import Adam, RowOptimizer
from emberline.train.sharding import process_group

DIM, STEPS, SAVED, EVERY, CAPACITY = 4, 8, (3, 8), 2, 36
UNIFORM = Initializer(mode=InitializerMode.UNIFORM, lower=-1.0, upper=1.0)
OPTIONS = {
    "large": DynamicEmbOptions(max_capacity=1000, initializer=UNIFORM, eval_initializer=UNIFORM),
    "full": DynamicEmbOptions(max_capacity=CAPACITY, initializer=UNIFORM, score_strategy=ScoreStrategy.LFU),
    "waits": DynamicEmbOptions(
        max_capacity=500, initializer=UNIFORM, admission=FrequencyAdmission(threshold=3, initializer=UNIFORM, counter_capacity=300)
    ),
}
Held = dict[str, BatchedDynamicEmbeddingTables]


def build(
    ranks: int, options: dict[str, DynamicEmbOptions] | None = None, optimizer: RowOptimizer | None = None, dtype: torch.dtype = torch.float32
) -> Held:
    """All tables of a rank in one kernel."""
    tables = []
    for name, own in (options or OPTIONS).items():
        counted = 0 if own.admission is None else -(-own.admission.counter_capacity // ranks)
        tables.append(DynamicTable(name, DIM, own, -(-own.max_capacity // ranks), counted))
    kernel = BatchedDynamicEmbeddingTables(tables, range(len(tables)), optimizer or Adam(lr=0.1), dtype)
    return dict.fromkeys((table.name for table in tables), kernel)


def batch(table: str, step: int) -> Tensor:
    """The ids of a table in a step, of all ranks: any 64 bits, some of them often."""
    generator = torch.Generator().manual_seed(1000 * step + len(table))
    common = torch.randint(-6, 6, (8,), generator=generator)
    rare = torch.randint(-(2**62), 2**62, (4,), generator=generator) * 2
    return torch.cat([common, rare, torch.tensor([-(2**63), 2**63 - 1])])


def train(held: Held, step: int, rank: int, ranks: int) -> None:
    """One step with this rank's ids."""
    (kernel,) = {id(kernel): kernel for kernel in held.values()}.values()
    ids = [own[owner_of(own, ranks, MIXED) == rank] for own in (batch(table, step) for table in held)]
    offsets = torch.arange(sum(map(len, ids)) + 1)
    sizes = [len(own) for own in ids]
    vectors = kernel.train()(torch.cat(ids), offsets, batch_sizes=sizes).view(-1, DIM)
    wanted = (torch.cat(ids) % 97 + step).double().unsqueeze(1) / 50 - torch.arange(DIM) / 3
    (vectors * wanted.float()).sum().backward()


def save(run: Path, held: Held, progress: Progress) -> None:
    """A checkpoint of the tables alone."""
    ranks = dist.get_world_size()
    layout = Layout(world_size=ranks, columns={}, zch_routing={}, dynamic=notes_of(held))
    texts = {store.STATE_NAME: progress.text(), store.CONFIG_NAME: "#\n", store.SCHEMA_NAME: "{}"}
    write_run(run, RunContent(progress.step, dynamic_tensors(held), texts, {"layout": asdict(layout)}))


def restore(checkpoint: Path, held: Held) -> list[str]:
    return restore_dynamic(held, checkpoint / "tensors", read_layout(checkpoint).dynamic, dist.get_rank(), dist.get_world_size())


def run(folder: Path, rank: int, ranks: int) -> None:
    """Steps 1 to 8, full saves after 3 and 8, increments at 4, 6 and 8."""
    held = build(ranks)
    with RunGrowth(folder / f"run-{ranks}", held, EVERY) as growth:
        for step in range(1, STEPS + 1):
            train(held, step, rank, ranks)
            growth.after_step(step, pending=False)
            if step in SAVED:
                found = growth.at_save(step)
                save(folder / f"run-{ranks}", held, Progress(step=step, run=found.run, mark=found.mark, times=found.times))


def go_on(folder: Path, source: int, rank: int, ranks: int) -> None:
    """A further step after the checkpoint of other ranks."""
    held = build(ranks)
    notes = restore(folder / f"run-{source}" / f"step-{STEPS}", held)
    (folder / f"notes-{source}-on-{ranks}-{rank}.json").write_text(json.dumps(notes))
    save(folder / f"as-{source}-on-{ranks}", held, Progress(step=STEPS))
    train(held, STEPS + 1, rank, ranks)
    save(folder / f"from-{source}-on-{ranks}", held, Progress(step=STEPS + 1))


def work(folder: Path, rank: int, ranks: int) -> None:
    run(folder, rank, ranks)
    for source in range(1, ranks + 1):
        go_on(folder, source, rank, ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        work(Path(sys.argv[1]), group.rank, group.world_size)
