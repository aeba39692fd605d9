"""Ids on their way to the ranks that own them, against `owner_of`, one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.routing import MIXED, owner_of
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked
from tests.train.sharding.places_on_ranks import CASES, EDGES, KEYS, sent

SCRIPT = str(Path(__file__).with_name("places_on_ranks.py"))
COUNTS = (1, 2, 3)
Bags = list[list[list[tuple[int, float]]]]
"""Of each key, of each row: its ids, and their weights."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    folder = tmp_path_factory.mktemp("places")
    run_forked(folder, [Job(count, [SCRIPT, str(folder)]) for count in COUNTS])
    return {count: [torch.load(folder / f"{count}-{rank}.pt") for rank in range(count)] for count in COUNTS}


def bags(told: dict[str, Any]) -> Bags:
    """The bags of jagged parts, key by key."""
    weights = told["weights"].tolist() if told["weights"] is not None else [1.0] * len(told["ids"])
    pairs = iter(zip(told["ids"].tolist(), weights, strict=True))
    lengths = iter(told["lengths"].tolist())
    return [[[next(pairs) for _ in range(next(lengths))] for _ in range(rows)] for rows in told["rows"]]


@pytest.mark.parametrize("is_sequence", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", COUNTS)
def test_each_rank_gets_the_ids_that_it_owns(found: dict[int, list[Any]], count: int, case: str, is_sequence: bool) -> None:
    """Of every row of every rank, in order, with its weight."""
    by_rank = [bags(ranks[case, is_sequence][0]) for ranks in found[count]]
    for rank, ranks in enumerate(found[count]):
        got = bags(ranks[case, is_sequence][1])
        for key in range(len(KEYS)):
            rows = [row for own in by_rank for row in own[key]]
            wanted = [[pair for pair in row if int(owner_of(torch.tensor(pair[0]), count, MIXED)) == rank] for row in rows]
            assert got[key] == wanted


@pytest.mark.parametrize("count", COUNTS)
def test_vectors_by_position_go_back_where_their_ids_were(found: dict[int, list[Any]], count: int) -> None:
    for ranks in found[count]:
        own, _, positions = ranks["plain", True]
        owners = owner_of(own["ids"], count, MIXED)
        assert own["ids"][: len(EDGES)].tolist() == EDGES
        assert positions.argsort().tolist() == owners.argsort(stable=True).tolist()


def test_ids_of_all_kinds_were_sent() -> None:
    ids = sent("plain", 1).values()
    assert (ids < 0).sum() > 10
    assert (ids.abs() < 50).sum() > 10
    assert (ids.abs() > 2**60).sum() > 10
    assert int(sent("one rank has none", 0).lengths().sum()) == 0


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("step", [1, 64, 2**32, -1])
def test_ids_of_any_pattern_are_spread_evenly(count: int, step: int) -> None:
    """No rank has more or fewer than chance would give it."""
    ids = torch.arange(20_000) * step
    found = torch.bincount(owner_of(ids, count, MIXED), minlength=count)
    mean = len(ids) / count
    assert (found - mean).abs().max() < 4 * mean**0.5
