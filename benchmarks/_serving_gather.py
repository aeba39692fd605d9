"""The engine in process beside a bare gather: what `engine_vs_gather` of `serving.py` is."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks._serving_model import ANSWER, DIM, FEATURES, WIDTH, Data
from benchmarks._serving_servers import Ids
from emberline.serving import Engine, PackedRequest

ROWS = 1000
_ROUNDS = 7


def engine_vs_gather(artifact: Path, data: Data, requests: list[Ids], seconds: float) -> tuple[float, float]:
    """Microseconds that `Engine.predict_many` takes for a request of 1,000 rows, and those of the gather, the least of rounds that take turns; one
    thread.

    The gather is one `index_select` of the same rows, found beforehand, out of all tables as one, into memory of the answer's size that is used
    again: the same bytes in the same order, without checks, maps of raw ids and an allocation.

    Raises:
        AssertionError: they do not give the same.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engine = Engine.open(artifact)
        packed = [PackedRequest(ids=ids.reshape(-1), lengths=np.ones(ids.size, np.int32)) for ids in requests]
        whole = torch.cat([data.tables[name] for name in FEATURES])
        found = [torch.from_numpy(_flat_rows(data, ids)) for ids in requests]
        out = torch.empty(ROWS * len(FEATURES), DIM)

        def ask(place: int) -> torch.Tensor:
            (answer,) = engine.predict_many([packed[place]], [(ANSWER,)])
            assert isinstance(answer, dict), answer
            return answer[ANSWER]

        def gather(place: int) -> torch.Tensor:
            return torch.index_select(whole, 0, found[place], out=out).view(ROWS, WIDTH)

        assert all(torch.equal(ask(place), gather(place)) for place in range(len(requests)))
        times: list[list[float]] = [[], []]
        for _ in range(_ROUNDS):
            for way, taken in zip((ask, gather), times, strict=True):
                taken.append(_median_us(way, len(requests), seconds / _ROUNDS))
        return min(times[0]), min(times[1])
    finally:
        torch.set_num_threads(threads)


def _flat_rows(data: Data, ids: Ids) -> Ids:
    """Rows of all tables as one, row after row of the request: int64 [B * F]."""
    sizes = [data.tables[name].shape[0] for name in FEATURES]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    found: Ids = np.stack([data.find_rows(name, ids[place]) + starts[place] for place, name in enumerate(FEATURES)], axis=1).reshape(-1)
    return found


def _median_us(way: Callable[[int], object], count: int, seconds: float) -> float:
    found: list[float] = []
    end, place = time.perf_counter() + seconds, 0
    while not found or time.perf_counter() < end:
        started = time.perf_counter_ns()
        way(place % count)
        found.append((time.perf_counter_ns() - started) / 1e3)
        place += 1
    return statistics.median(found)
