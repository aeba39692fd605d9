"""Static tables and tables that grow in one model, on 1 to 3 ranks, against a dictionary of rows that learn in float64."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emberline.routing import MIXED, owner_of
from emberline.train.dynamic.initial_values import first_vectors, stream
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.sharding.growing_on_ranks import (
    DENSE_RATE,
    EPSILON,
    FIRST_SUM,
    OPTIONS,
    PARTS,
    POOLED,
    RATE,
    ROWS,
    SEED,
    STEPPED,
    STEPS,
    TABLES,
    UNKNOWN,
    Growing,
    Rows,
    rows_of,
    static_values,
)

SCRIPT = str(Path(__file__).with_name("growing_on_ranks.py"))
COUNTS = tuple(PARTS)
GROWN = [name for name, table in TABLES.items() if table.grows]


class Oracle:
    """The same model, its tables a dictionary of float64 rows."""

    def __init__(self) -> None:
        dense = Growing().dense
        self.dense = [parameter.detach().double().requires_grad_() for parameter in (dense.weight, dense.bias)]
        self.rows: dict[tuple[str, int], Tensor] = {}
        self.sums: dict[tuple[str, int], Tensor] = {}
        self.read: dict[tuple[str, int], int] = {}

    def out(self, rows: Rows, step: int | None) -> Tensor:
        """[rows]; in training of that step, counted from 1, ids that are new get a row."""
        pooled = []
        for feature, (name, table) in POOLED.items():
            pooled.append(torch.stack([self._bag(name, table.dim, bag, table.mean, step) for bag in rows[feature]]))
        out = (torch.cat(pooled, 1) @ self.dense[0].T + self.dense[1]).squeeze(1)
        for feature, name in STEPPED.items():
            out = out + torch.stack([self._bag(name, 4, bag, False, step, by_position=True).sum() for bag in rows[feature]])
        return out

    def learn(self, step: int) -> float:
        """A step, which ends with the loss."""
        rows, counted = rows_of(step)
        loss = (self.out(rows, step + 1) * counted.double()).sum()
        leaves = [*self.dense, *self.rows.values()]
        gradients = dict(zip([*range(2), *self.rows], torch.autograd.grad(loss, leaves, allow_unused=True), strict=True))
        with torch.no_grad():
            for key, row in self.rows.items():
                gradient = gradients[key]
                if gradient is not None:
                    self.sums[key] += gradient.square()
                    row -= RATE * gradient / (self.sums[key].sqrt() + EPSILON)
            for place, parameter in enumerate(self.dense):
                parameter -= DENSE_RATE * gradients[place]
        return float(loss.detach())

    def _bag(self, name: str, dim: int, bag: list[tuple[int, float]], mean: bool, step: int | None, *, by_position: bool = False) -> Tensor:
        total = torch.zeros(dim, dtype=torch.float64)
        for one, weight in bag:
            vector = self._vector(name, dim, one, step)
            total = total + (vector.sin() if by_position else vector * weight)
        return total / len(bag) if mean and bag else total

    def _vector(self, name: str, dim: int, one: int, step: int | None) -> Tensor:
        key = (name, one)
        if key not in self.rows:
            if not TABLES[name].grows:
                first = static_values(name)[one]
            elif step is None:
                return torch.full((dim,), UNKNOWN, dtype=torch.float64)
            else:
                ids = torch.tensor([one]).numpy()
                first = torch.from_numpy(first_vectors(OPTIONS.initializer, stream(SEED, name, "rows"), ids, dim))[0]
            self.rows[key] = first.double().requires_grad_()
            self.sums[key] = torch.full((dim,), FIRST_SUM, dtype=torch.float64)
        if step is not None:
            self.read[key] = step
        return self.rows[key]


@pytest.fixture(scope="module")
def oracle() -> tuple[Oracle, list[float], Tensor]:
    model = Oracle()
    losses = [model.learn(step) for step in range(STEPS)]
    return model, losses, model.out(rows_of(1000)[0], None).detach()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    folder = tmp_path_factory.mktemp("growing")
    run_forked(folder, [Job(count, [SCRIPT, str(folder)]) for count in COUNTS])
    return {count: [torch.load(folder / f"{count}-{rank}.pt") for rank in range(count)] for count in COUNTS}


@pytest.mark.parametrize("count", COUNTS)
def test_losses_rows_and_moments_are_those_of_a_dictionary(
    found: dict[int, list[Any]], oracle: tuple[Oracle, list[float], Tensor], count: int
) -> None:
    model, losses, _ = oracle
    for rank, own in enumerate(found[count]):
        assert own["losses"] == pytest.approx(losses, rel=1e-5, abs=1e-5)
        for parameter, wanted in zip(own["dense"].values(), model.dense, strict=True):
            torch.testing.assert_close(parameter.double(), wanted.detach(), rtol=1e-4, atol=1e-5)
        for name, key, weights, sums, step in _rows(own):
            assert int(owner_of(torch.tensor(key), count, MIXED)) == rank
            torch.testing.assert_close(weights.double(), model.rows[name, key].detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(sums.double(), model.sums[name, key], rtol=1e-4, atol=1e-5)
            assert model.read[name, key] == step
    held = sorted((name, key) for own in found[count] for name, key, *_ in _rows(own))
    assert held == sorted(key for key in model.rows if TABLES[key[0]].grows)
    assert len(held) > 80


@pytest.mark.parametrize("count", COUNTS)
def test_static_tables_beside_them_learn_the_same(found: dict[int, list[Any]], oracle: tuple[Oracle, list[float], Tensor], count: int) -> None:
    for name in set(TABLES) - set(GROWN):
        wanted = static_values(name).double()
        for (table, key), row in oracle[0].rows.items():
            if table == name:
                wanted[key] = row.detach()
        for own in found[count]:
            for first, weights in own["static"][name]:
                torch.testing.assert_close(weights.double(), wanted[first : first + len(weights)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", COUNTS)
def test_ids_that_nobody_knows_read_the_default_in_evaluation(
    found: dict[int, list[Any]], oracle: tuple[Oracle, list[float], Tensor], count: int
) -> None:
    answers = torch.cat([own["answers"] for own in found[count]])
    assert len(answers) == ROWS
    torch.testing.assert_close(answers.double(), oracle[2], rtol=1e-4, atol=1e-4)
    assert all(own["kept"] for own in found[count])


def test_they_are_in_no_state_dict_and_no_parameters(found: dict[int, list[Any]]) -> None:
    wanted = {"bags.embedding_bags.static.weight", "steps.embeddings.places.weight"}
    for ranks in found.values():
        for own in ranks:
            for names in own["names"].values():
                kept = {name.removeprefix("_dmp_wrapped_module.").replace("module.", "") for name in names}
                assert {name for name in kept if "dense" not in name} == wanted


@pytest.mark.parametrize("count", COUNTS)
def test_features_with_other_batch_sizes_are_as_rows_that_have_all_bags(found: dict[int, list[Any]], count: int) -> None:
    for own in found[count]:
        short, whole = own["batched"]
        for out, wanted in zip(short["out"], whole["out"], strict=True):
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)
        for name, (keys, weights) in whole["held"].items():
            is_read = torch.isin(short["held"][name][0], keys)  # the others are in bags that no row has
            assert short["held"][name][0][is_read].tolist() == keys.tolist()
            torch.testing.assert_close(short["held"][name][1][is_read], weights, rtol=1e-5, atol=1e-6)
    assert sum(len(keys) for own in found[count] for keys, _ in own["batched"][0]["held"].values()) > 5


def _rows(own: dict[str, Any]) -> Iterator[tuple[str, int, Tensor, Tensor, int]]:
    for name, (keys, weights, sums, steps) in own["held"].items():
        for key, weight, total, step in zip(keys.tolist(), weights, sums, steps.tolist(), strict=True):
            yield name, key, weight, total, step
