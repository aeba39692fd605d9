"""The short form of `benchmarks/soak.py`; and what it sends is what it says."""

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from benchmarks._serving_model import ANSWER, NAME, Data, write_model
from benchmarks._serving_servers import LENGTH
from benchmarks._soak_grpc import bad_calls, good_calls
from benchmarks._soak_live import reload_often
from benchmarks._soak_requests import bad_requests, good_requests
from benchmarks._soak_versions import Versions
from benchmarks.soak import PROTOCOLS, Report, figures, run, run_live
from emberline.serving import Engine, PackedRequest
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
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


@pytest.mark.slow
def test_versions_and_deltas_come_and_a_worker_goes_while_requests_are_answered() -> None:
    report, live = run_live(PROTOCOLS, connections=8, seconds=1.0, switch_s=0.3, workers=2, reloads=0, table_rows=200, kill_after=1)
    assert report.failures == []
    assert {"2+0", "2+1", "3+0", "3+1"} <= live.seen.keys() <= {f"{version}+{deltas}" for version in (1, 2, 3, 5, 6) for deltas in (0, 1)}
    assert {"version 4, damaged", "a worker is killed"} <= {what for _, what in live.events}
    assert sum(live.seen.values()) == sum(report.good.values()) > 0
    assert report.refused
    assert figures(report, live)["answers"] == dict(live.seen)


def answered(version: int) -> dict[str, str]:
    return {LENGTH.lower(): "0", "x-model-version": str(version)}


class Looked:
    """A server of which it is written down what it serves whenever its memory is looked at."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rpartition(":")[2])
        self.versions: list[str] = []

    def memory_mib(self) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/repository/index", data=b"{}") as answer:
            self.versions += [model["version"] for model in json.load(answer)]
        return 10.0


def test_a_server_is_reloaded_as_often_as_is_said(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "models", tmp_path / "drafts", 50, 2)
    versions.publish(2)
    with EmbeddedServer(versions.models, settings=ServerSettings(num_threads=1, version_poll_s=0, delta_poll_s=0)) as server:
        found = Looked(server.http_url)
        assert reload_often(found, versions, [1, 2], 5) == ([10.0] * 5, [])
    assert found.versions == ["1", "2", "1", "2", "1"]


def test_an_answer_of_another_version_than_it_names_is_wrong(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "models", tmp_path / "drafts", 50, 3)
    request = next(good for good in good_requests(versions.data, "embedded") if good.name == "binary, seven rows")
    for version in (1, 2, 3):
        for place, want in enumerate(versions.answers[version]["seven rows"]):
            body = want.tobytes()
            assert versions.judge(request, answered(version), body) == f"{version}+{place if version > 1 else 0}"
            assert versions.judge(request, answered(version % 3 + 1), body) == ""
            assert versions.judge(request, {LENGTH.lower(): "0"}, body) == ""
    half = np.concatenate([versions.answers[2]["seven rows"][0][:3], versions.answers[2]["seven rows"][1][3:]])
    assert versions.judge(request, answered(2), half.tobytes()) == ""  # half of a delta is none


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
