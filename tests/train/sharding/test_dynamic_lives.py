"""Random lives of tables that grow on two ranks: they train, evict, lose and move ids as a dictionary of rows on each rank does."""

import re
from pathlib import Path

from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

SCRIPT = str(Path(__file__).with_name("lives_on_ranks.py"))


def test_two_ranks_live_as_dictionaries_do(tmp_path: Path) -> None:
    """What is compared is compared there, after each step."""
    ((first, second),) = run_forked(tmp_path, [Job(2, [SCRIPT])])
    told = re.compile(r"lived (\d+) steps, trained (\d+), evicted (\d+)")
    lived, same = told.search(first), told.search(second)
    assert lived is not None
    assert same is not None
    assert lived.groups() == same.groups()
    assert int(lived[1]) > 450
    assert int(lived[2]) > 200
    assert int(lived[3]) > 100, first
