"""Bandwidths that are measured; between ranks, see `test_run_plan.py`."""

import pytest

from emberline.train.sharding.bandwidth import measure_bandwidths


def test_one_process_measures_its_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberline.train.sharding.bandwidth.time.perf_counter", iter(range(1000)).__next__)  # every copy takes a second
    assert measure_bandwidths("cpu", 1, copy_bytes=500_000_000 // 2**10) == {"ddr": 2 * (500_000_000 // 2**10) / 1e9}


def test_it_is_a_number_that_memory_can_have() -> None:
    assert 0.01 < measure_bandwidths("cpu", 1, copy_bytes=1 << 22)["ddr"] < 10_000
