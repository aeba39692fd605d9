"""What reports say and judge, of tallies that were filled by hand."""

import json

import pytest

from emberline.serving.loadtest.report import Report, too_slow
from emberline.serving.loadtest.tally import Tally


def tally(latencies_s: list[float], *, failed: int = 0, late_s: float = 0.0, rate: float | None = 100.0) -> Tally:
    """One request every 10 ms; the last ones failed."""
    found = Tally(rate)
    for number, latency_s in enumerate([*latencies_s, *[0.0] * failed]):
        found.ask(number / 100, late_s)
        found.end(number / 100, latency_s, "overloaded" if number >= len(latencies_s) else "", "4")
    found.finish((len(latencies_s) + failed) / 100)
    return found


STEADY = [0.010] * 98 + [0.050] * 2


@pytest.mark.parametrize(
    ("step", "max_p99_ms", "problem"),
    [
        (tally(STEADY), 51, ""),
        (tally(STEADY), 49, "100: p99 is 50.00 ms; it may be 49 ms"),
        (tally([0.010] * 99, failed=1), 11, ""),
        (tally([0.010] * 98, failed=2), 1e6, "100: p99 is above any, as so many requests failed; it may be 1e+06 ms"),
        (tally(STEADY, late_s=0.02), 1000, "100: the latency is not known, as the load test itself was too slow"),
        (tally(STEADY, late_s=0.009), 51, ""),
        (tally(STEADY, rate=None), 49, "max: p99 is 50.00 ms; it may be 49 ms"),
    ],
)
def test_limits_of_latency(step: Tally, max_p99_ms: float, problem: str) -> None:
    report = Report(settings={}, steps=[tally([0.001]), step], max_p99_s=max_p99_ms / 1e3)
    assert report.broken() == ([problem] if problem else [])
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["broken"] == report.broken()


def test_limits_of_errors_and_of_nothing() -> None:
    assert Report(settings={}, steps=[tally([0.01] * 19, failed=1)], max_errors=0.05).broken() == []
    broken = Report(settings={}, steps=[tally([0.01] * 19, failed=1)], max_errors=0.04).broken()
    assert broken == ["100: 1 of 20 requests failed (5.00%); it may be 4.00%"]
    assert Report(settings={}, steps=[], max_errors=1.0).broken() == ["no request was measured"]
    assert Report(settings={}, steps=[]).broken() == []


def test_late_requests_matter_by_what_they_change() -> None:
    assert not too_slow(tally(STEADY, late_s=0.0009))
    assert not too_slow(tally([0.5] * 100, late_s=0.09))
    assert too_slow(tally([0.5] * 100, late_s=0.11))
    assert too_slow(tally([], failed=5, late_s=0.002))
    assert not too_slow(tally(STEADY, late_s=1.0, rate=None))  # nothing was due


def test_seconds_are_told_one_by_one_or_several_at_once() -> None:
    step = tally([0.01 * (1 + number // 100) for number in range(300)])
    lines = Report(settings={}, steps=[step]).to_text().splitlines()
    told = [line.split() for line in lines[lines.index("at 100 a second") :] if line.strip()[:1].isdigit()]
    assert [line[:3] for line in told] == [["0", "100", "0"], ["1", "100", "0"], ["2", "100", "0"]]
    for number, line in enumerate(told):
        assert [float(one) for one in line[3:]] == pytest.approx([10 * (number + 1)] * 3, rel=0.011)
    many = Report(settings={}, steps=[tally([0.01] * 4100)]).to_text()
    assert "a line for 5 seconds" in many
    assert [line.split()[0] for line in many.splitlines() if line.split()[1:2] == ["500"]] == [str(start) for start in range(0, 40, 5)]


def test_json_has_each_second_and_bucket() -> None:
    told = Report(settings={"url": "x"}, steps=[tally(STEADY, failed=100)]).to_dict()
    (step,) = told["steps"]
    assert (told["url"], step["asked"], step["good"], step["errors"], step["versions"]) == ("x", 200, 100, {"overloaded": 100}, {"4": 100})
    assert [(second["asked"], second["good"], second["errors"]) for second in step["by_second"]] == [(100, 100, {}), (100, 0, {"overloaded": 100})]
    assert step["by_second"][1]["p50_ms"] is None
    assert [count for _, _, count in step["histogram_ms"]] == [98, 2]
    assert step["latency_ms"] == pytest.approx({"p50": 10, "p90": 10, "p99": 50, "p99.9": 50, "max": 50, "mean": 10.8}, rel=0.011)
