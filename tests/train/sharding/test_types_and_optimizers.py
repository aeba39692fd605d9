"""20 steps of every sharding type with every sparse optimiser, on 1, 2 and 4 ranks, against loops in float64 over one whole table: pooled tables,
those of WIDE groups, tables read step by step, and ZCH tables; weights, moments and counts of updates.

Where a table is cut by columns, optimisers that take a norm or a mean of a row take that of each part (docs/optimisers.md): there the loops are over
the rows of each part.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emberline.train.kernels import RowOptimizer
from emberline.train.zch import FREE_ROW
from tests.train.checkpoint.table_runs import OPTIMIZERS
from tests.train.jobs import Job
from tests.train.kernels.by_hand import RowByHand, begin, update
from tests.train.optim.test_twenty_steps import RULES
from tests.train.rank_runs import run_forked
from tests.train.sharding.every_type import (
    BATCH_ROWS,
    FAR,
    NUM_IDS,
    POOLED_TYPES,
    RANKS,
    STEP_TYPES,
    STEPS,
    ZCH_START,
    Read,
    make_rows,
    make_target,
    num_parts,
    plan_text,
    read_parts,
    reads_of,
    start_weights,
)

SCRIPT = str(Path(__file__).with_name("every_type.py"))
READS = tuple(reads_of(OPTIMIZERS))
WIDTHS = {result: sum(read.dim for read in READS if read.result == result) for result in dict.fromkeys(read.result for read in READS)}
ROWS = [make_rows(READS, step) for step in range(STEPS)]
TARGETS = {result: [make_target(step, result, width).double() for step in range(STEPS)] for result, width in WIDTHS.items()}
KINDS = {"deep": ("deep", POOLED_TYPES), "wide": ("wide", POOLED_TYPES), "steps": ("steps.sequence", STEP_TYPES)}
pytestmark = pytest.mark.slow
CASES = [*((kind, one) for kind, (_, types) in KINDS.items() for one in types), ("deep", "zch"), ("steps", "zch")]
Parts = list[RowByHand]
"""A row, in parts side by side."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Tensor]]:
    """What came of all tables, by the number of ranks."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "optimizers.json").write_text(json.dumps({name: f"{name}_optimizer {{ {text} }}" for name, text in OPTIMIZERS.items()}))
    for ranks in RANKS:
        (folder / f"plan-{ranks}.json").write_text(plan_text(READS, ranks))
    run_forked(folder, [Job(ranks, [SCRIPT, str(folder)], local) for ranks, local in RANKS.items()])
    return {ranks: read_parts(folder, ranks) for ranks in RANKS}


def vector(parts: Parts) -> Tensor:
    return torch.tensor(numbers(parts), dtype=torch.float64)


def numbers(parts: Parts) -> list[float]:
    return [weight for part in parts for weight in part.weights]


def targets_of(read: Read) -> list[Any]:
    """What the vectors of one read are drawn to, as lists: for each step and row, and step of a sequence."""
    first = sum(other.dim for other in READS[: READS.index(read)] if other.result == read.result)
    return [target[..., first : first + read.dim].tolist() for target in TARGETS[read.result]]


def add_gradients(read: Read, rows: list[Parts], step: int, targets: list[Any], totals: dict[int, list[float]]) -> None:
    """The gradients of one read: looked-up vectors minus targets, to each id of a bag or step."""
    for row in range(BATCH_ROWS):
        ids = [one // FAR if read.is_zch else one for one in ROWS[step][read.feature][row]]
        vectors = [numbers(rows[one]) for one in ids]
        share = 1 / len(ids) if read.mean and ids else 1.0
        pooled = [share * sum(column) for column in zip(*vectors, strict=True)]
        for place, one in enumerate(ids):
            found, wanted = (vectors[place], targets[row][place]) if read.by_step else (pooled, targets[row])
            factor = 1.0 if read.by_step else share
            before = totals.get(one, [0.0] * read.dim)
            totals[one] = [total + factor * (value - target) for total, value, target in zip(before, found, wanted, strict=True)]


def by_loops(reads: list[Read], parts: int) -> list[Parts]:
    """A table's rows after the steps."""
    rule, dim = RULES[reads[0].optimizer], reads[0].dim
    width, targets = dim // parts, [targets_of(read) for read in reads]
    start: Tensor = start_weights(reads[0].table, NUM_IDS, dim).double()
    rows = [[begin(rule, row[first : first + width]) for first in range(0, dim, width)] for row in start.tolist()]
    for step in range(STEPS):
        totals: dict[int, list[float]] = {}
        for read, wanted in zip(reads, targets, strict=True):
            add_gradients(read, rows, step, wanted[step], totals)
        for one, total in totals.items():
            for place, part in enumerate(rows[one]):
                update(rule, part, total[place * width : (place + 1) * width], rule.lr, step + 1)
    return rows


def expected_tensors(rule: RowOptimizer, rows: list[Parts]) -> dict[str, Tensor]:
    """As a checkpoint names and shapes them: a moment of each row has a number for each part of the row."""
    found = {"weight": torch.stack([vector(parts) for parts in rows])}
    for place, moment in enumerate(rule.moments):
        values = torch.tensor([[number for part in parts for number in part.moments()[place]] for parts in rows], dtype=torch.float64)
        found[moment.name] = values.flatten() if moment.per_row and values.shape[1] == 1 else values
    return found


def rows_of_ids(found: dict[str, Tensor], table: str, name: str) -> Tensor:
    """A tensor's rows in the order of the ids that own them; nobody has learnt to read any other row."""
    tensor = found[f"tables/{table}/{name}"]
    ids, rows = found[f"zch/{table}/raw_ids"].tolist(), found[f"zch/{table}/rows"].tolist()
    owners = {one // FAR: row for one, row in zip(ids, rows, strict=True) if one != FREE_ROW}
    assert sorted(owners) == list(range(NUM_IDS))
    free = [row for row in range(len(tensor)) if row not in owners.values()]
    assert (tensor[free] == (ZCH_START if name == "weight" else 0.0)).all()
    return tensor[[owners[one] for one in range(NUM_IDS)]]


def test_every_optimiser_is_here() -> None:
    assert RULES.keys() == OPTIMIZERS.keys()
    for result, (_, types) in KINDS.items():
        there = {(read.optimizer, read.kind) for read in READS if read.result.startswith(result)}
        assert there >= {(optimizer, kind) for optimizer in RULES for kind in types}


@pytest.mark.parametrize(("kind", "sharding_type"), CASES)
def test_twenty_steps_are_those_of_loops(tables: dict[int, dict[str, Tensor]], kind: str, sharding_type: str) -> None:
    compared = 0
    for optimizer, rule in RULES.items():
        reads = [read for read in READS if (read.optimizer, read.kind) == (optimizer, sharding_type) and read.result.startswith(kind)]
        (table,) = {read.table for read in reads}
        wanted = {parts: expected_tensors(rule, by_loops(reads, parts)) for parts in {num_parts(reads[0], ranks) for ranks in RANKS}}
        for ranks, found in tables.items():
            own = wanted[num_parts(reads[0], ranks)]
            names = {name.split("/")[2] for name in found if name.startswith(f"tables/{table}/")}
            assert names == {*own, *(("step",) if rule.moments else ())}
            for name, value in own.items():
                read = rows_of_ids(found, table, name) if sharding_type == "zch" else found[f"tables/{table}/{name}"]
                torch.testing.assert_close(read.double(), value, atol=1e-5, rtol=1e-5, msg=lambda text: f"{ranks} ranks, {table} {name}: {text}")  # noqa: B023
                compared += 1
            if rule.moments:
                assert found[f"tables/{table}/step"].tolist() == [STEPS]
    assert compared == len(RANKS) * sum(1 + len(rule.moments) for rule in RULES.values())
