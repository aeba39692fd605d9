"""One rank's error is the end of all, though others do not notice it by themselves."""

from typing import Any

import pytest

from emberline.errors import DataError
from emberline.train.sharding.process_group import ALONE
from emberline.train.sharding.shared_fate import shared_fate


def test_a_rank_that_hears_nothing_is_ended(checks: dict[str, Any]) -> None:
    _, ((first_status, first), (second_status, second)) = checks["stuck"]
    assert (first_status, second_status) == (1, 1)
    assert first.endswith("emberline: error: rank 1 failed, and so the run ends: a row is bad\n")
    assert "emberline.errors.DataError: rank 1: a row is bad" in second


def test_one_process_keeps_its_error() -> None:
    with pytest.raises(DataError, match=r"^bad$"), shared_fate(ALONE):
        raise DataError("bad")
