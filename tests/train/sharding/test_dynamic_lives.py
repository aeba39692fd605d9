"""Random lives of tables that grow on two ranks: they train, evict, lose and move ids as a dictionary of rows on each rank does, to the bit."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.jobs import TIMEOUT_S, Job
from tests.train.rank_runs import forked_results, start_forked

SCRIPT = str(Path(__file__).with_name("lives_on_ranks.py"))
KINDS, READS = 8, 3
COMMON = [0, 1, 2, 3, -1, -2, 2**63 - 1, -(2**63), 2**32]
RARE = list(range(100, 130))

BAGS = st.one_of(st.lists(st.sampled_from(COMMON), max_size=3), st.lists(st.sampled_from([*COMMON, *RARE]), min_size=1, max_size=2))
ROWS = st.lists(st.tuples(*[BAGS] * READS), min_size=1, max_size=2)
BATCHES = st.tuples(ROWS, ROWS)
TRAIN = st.tuples(st.just("train"), st.tuples(BATCHES))
OPERATIONS = st.one_of(
    *[TRAIN] * 6,
    st.tuples(st.just("look"), st.tuples(BATCHES)),
    st.tuples(st.just("remove"), st.tuples(st.lists(st.sampled_from([*COMMON, *RARE]), max_size=3))),
    st.tuples(st.just("expire"), st.tuples(st.integers(3, 8))),
    st.tuples(st.just("move"), st.just(())),
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TextIO]]:
    """Two, which wait for lives."""
    folder = tmp_path_factory.mktemp("lives")
    jobs = [Job(2, [SCRIPT, str(folder / "lives")])]
    with ExitStack() as stack:
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.settimeout(TIMEOUT_S)
        waiting.bind(str(folder / "lives"))
        waiting.listen(2)
        script = start_forked(folder, jobs)
        found = list[TextIO]()
        for _ in range(2):
            rank = stack.enter_context(waiting.accept()[0])
            rank.settimeout(TIMEOUT_S)
            found.append(stack.enter_context(rank.makefile("rw")))
        yield found
        stack.close()
        assert [status for status, _ in forked_results(script, folder, jobs)[0]] == [0, 0]


def test_two_ranks_live_as_dictionaries_do(ranks: list[TextIO]) -> None:
    """After each operation ids, steps, scores, counts, counters, weights and sums are compared, and vectors of each lookup: all are equal."""
    lived = {"operations": 0, "trained": 0, "evicted": 0}

    @settings(max_examples=56, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, KINDS - 1), st.lists(OPERATIONS, min_size=36, max_size=44))
    def live(kind: int, operations: list[tuple[str, Any]]) -> None:
        for rank in ranks:
            rank.write(json.dumps([kind, operations]) + "\n")
            rank.flush()
        first, second = (json.loads(rank.readline()) for rank in ranks)
        assert first["differs"] + second["differs"] == []
        assert (first["trained"], first["evicted"]) == (second["trained"], second["evicted"])
        lived["operations"] += len(operations)
        for what in ("trained", "evicted"):
            lived[what] += first[what]

    live()
    assert lived["operations"] >= 2000
    assert lived["trained"] > 300, lived
    assert lived["evicted"] > 50, lived
