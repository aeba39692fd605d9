"""Every sparse optimiser, as a config names it, against loops in float64: pooled tables and tables of sequences, weights and moments."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.kernels import (
    AdaDelta,
    Adagrad,
    Adam,
    Lamb,
    LarsSgd,
    PartialRowWiseAdam,
    PartialRowWiseLamb,
    RmsProp,
    RowOptimizer,
    RowWiseAdagrad,
    Sgd,
)
from tests.train.checkpoint.table_runs import BATCH_ROWS, OPTIMIZERS, TABLES, build, make_batch, save, steps_under
from tests.train.kernels.by_hand import RowByHand, begin, update

STEPS = 20

# What the settings of `table_runs` mean.
RULES: dict[str, RowOptimizer] = {
    "sgd": Sgd(lr=0.2),
    "adagrad": Adagrad(lr=0.2),
    "rowwise_adagrad": RowWiseAdagrad(lr=0.2),
    "adam": Adam(lr=0.1, beta2=0.9, weight_decay=0.1),
    "partial_rowwise_adam": PartialRowWiseAdam(lr=0.1, beta1=0.8),
    "lamb": Lamb(lr=0.1, beta1=0.8, weight_decay=0.1),
    "partial_rowwise_lamb": PartialRowWiseLamb(lr=0.1, beta2=0.9),
    "lars_sgd": LarsSgd(lr=20, momentum=0.8, weight_decay=0.1),
    "adadelta": AdaDelta(lr=2, rho=0.8, eps=0.01, weight_decay=0.1),
    "rmsprop": RmsProp(lr=0.05, alpha=0.8, weight_decay=0.1),
}


def by_loops(rule: RowOptimizer, weights: dict[str, Tensor]) -> dict[str, list[RowByHand]]:
    """The rows of each table after the steps."""
    tables = {name: [begin(rule, row) for row in weight.double().tolist()] for name, weight in weights.items()}
    for step in range(STEPS):
        ids, pooled, steps = make_batch(step)
        for name, rows in tables.items():
            total: dict[int, Tensor] = {}
            for row in range(BATCH_ROWS):
                for place, identity in enumerate(ids[name][row].tolist()):
                    gradient = {"a": pooled[row, :8], "b": pooled[row, 8:], "s": steps[row, place]}[name].double()
                    total[identity] = total.get(identity, torch.zeros_like(gradient)) + gradient
            for identity, gradient in total.items():
                update(rule, rows[identity], gradient.tolist(), rule.lr, step + 1)
    return tables


def assert_as_by_loops(optimizer: str, before: Path, after: Path) -> None:
    rule, found = RULES[optimizer], read_tensors(after)
    expected = by_loops(rule, {name: read_tensors(before)[f"tables/{name}/weight"] for name in TABLES})
    names = {"weight", *(moment.name for moment in rule.moments), *(("step",) if rule.moments else ())}
    assert set(found) == {f"tables/{table}/{name}" for table in TABLES for name in names}
    for table, rows in expected.items():
        wanted = {"weight": torch.tensor([row.weights for row in rows], dtype=torch.float64)}
        for place, moment in enumerate(rule.moments):
            values = torch.tensor([row.moments()[place] for row in rows], dtype=torch.float64)
            wanted[moment.name] = values.flatten() if moment.per_row else values
        for name, value in wanted.items():
            torch.testing.assert_close(found[f"tables/{table}/{name}"].double(), value, atol=1e-5, rtol=1e-5, msg=f"{optimizer} {table} {name}")
        if rule.moments:
            assert found[f"tables/{table}/step"].tolist() == [STEPS]


def test_every_optimiser_is_here() -> None:
    assert RULES.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("optimizer", list(RULES))
def test_twenty_steps_are_those_of_loops(optimizer: str, tmp_path: Path) -> None:
    save(build(optimizer, "table_wise"), tmp_path / f"{optimizer}-0")
    steps_under("table_wise", tmp_path, optimizer, STEPS)
    assert_as_by_loops(optimizer, tmp_path / f"{optimizer}-0", tmp_path / f"{optimizer}-table_wise")
