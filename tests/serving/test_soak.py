"""The short form of `benchmarks/soak.py`; and what it sends is what it says."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks._serving_model import ANSWER, NAME, Data, write_model
from benchmarks._soak_grpc import bad_calls, good_calls
from benchmarks._soak_requests import bad_requests, good_requests
from benchmarks.soak import PROTOCOLS, Report, run
from emberline.serving import Engine, PackedRequest
from tests.serving.ways import BOTH_SERVERS, same

CONNECTIONS, SECONDS = 32, 3.0


@pytest.mark.parametrize("backend", BOTH_SERVERS)
def test_no_answer_is_wrong_and_no_good_request_fails(backend: str) -> None:
    report = run(backend, PROTOCOLS, connections=CONNECTIONS, seconds=SECONDS)
    assert report.failures == []
    forms = {name.partition(",")[0] for name in report.good}
    assert forms & {"binary", "JSON"}
    assert forms & {"raw", "typed"}
    assert report.refused
    start, end = report.memory_from_to
    assert end < 1.5 * start + 64


def test_growth_and_failures_are_seen() -> None:
    flat = Report(memory_mib=[50, 90, 100, 101, 100, 100, 103, 104])
    assert (flat.memory_from_to, flat.memory_grew) == ((100.5, 103.5), False)
    assert Report(memory_mib=[100.0 + 3 * second for second in range(40)]).memory_grew


def test_good_requests_get_what_the_engine_answers(tmp_path: Path) -> None:
    data = Data(write_model(tmp_path, 500))
    engine = Engine.open(tmp_path / NAME, num_threads=1)
    source = np.random.default_rng(3)
    for num_rows in (0, 1, 9):
        ids = data.draw(num_rows, source)
        request = PackedRequest(ids=ids.reshape(-1), lengths=np.ones(ids.size, np.int32))
        same(engine.lookup(request)[ANSWER.removeprefix("lookup.")].numpy(), data.answer(ids))
    kinds = {request.name.partition(",")[0] for request in good_requests(data, "embedded")}
    assert kinds == {"binary", "JSON", "gzip", "rows"}
    assert len({request.name for request in bad_requests(data)}) == len(bad_requests(data)) == 23
    assert {request.name.partition(",")[0] for request in good_calls(data)} == {"raw", "with an id", "gzip", "typed"}
    for backend, count in (("embedded", 26), ("triton", 25)):
        assert len({request.name for request in bad_calls(data, backend)}) == len(bad_calls(data, backend)) == count
