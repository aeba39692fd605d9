"""What workers count, added up."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from emberline.serving.metrics import Metrics
from emberline.serving.scheduler import BatchReport
from emberline.serving.tallies import Tally
from emberline.serving.workers.merging import merge_metrics, merge_statistics


def values(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text.decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def counted(*seconds: float) -> str:
    metrics = Metrics()
    for second in seconds:
        metrics.count_request("m", "http", "ok", second)
        metrics.batch_tallies("m").add(BatchReport(2, 300, 0.0, second))
    return metrics.render().decode()


def test_counts_and_histograms_are_added_up() -> None:
    merged = values(merge_metrics([counted(0.002, 0.2), counted(0.0001, 40.0, 0.2)], shared_tables=False))
    both = values(counted(0.002, 0.2, 0.0001, 40.0, 0.2).encode())
    ours = [key for key in both if key[0].startswith("emberline_") and not key[0].endswith("_created")]
    assert len(ours) > 40
    assert {key: merged[key] for key in ours} == pytest.approx({key: both[key] for key in ours})
    labels = (("model", "m"), ("protocol", "http"))
    assert merged["emberline_requests_total", (*labels, ("status", "ok"))] == 5
    assert merged["emberline_request_seconds_bucket", (("le", "0.0025"), *labels)] == 2
    assert merged["emberline_request_seconds_bucket", (("le", "+Inf"), *labels)] == 5


def test_what_all_workers_share_is_not_added_up() -> None:
    texts = [
        f'# TYPE {name} gauge\n{name}{{model="m"}} {value}\n' for name, value in (("emberline_table_bytes", 7.0), ("emberline_table_bytes", 9.0))
    ]
    key = ("emberline_table_bytes", (("model", "m"),))
    assert values(merge_metrics(texts, shared_tables=True))[key] == 9
    assert values(merge_metrics(texts, shared_tables=False))[key] == 16
    versions = [f'# TYPE emberline_model_version gauge\nemberline_model_version{{model="m"}} {value}\n' for value in (3, 2)]
    assert values(merge_metrics(versions, shared_tables=False))["emberline_model_version", (("model", "m"),)] == 2


def test_no_worker_gives_no_metrics() -> None:
    assert merge_metrics([], shared_tables=False) == b""


def entry(count: int, last: int, delta: int) -> dict[str, Any]:
    success = {"count": count, "ns": 10 * count}
    ids = [{"table": "a", "asked": count, "unknown": 1}, {"table": "b", "asked": 0, "unknown": 0}]
    return {"name": "m", "version": "4", "last_inference": last, "inference_stats": {"success": success}, "delta": delta, "table_ids": ids}


def test_statistics_are_added_up() -> None:
    assert merge_statistics([entry(3, 20, 2), entry(5, 10, 1)]) == {
        **entry(8, 20, 1),
        "table_ids": [
            {"table": "a", "asked": 8, "unknown": 2},
            {"table": "b", "asked": 0, "unknown": 0},
        ],
    }


def test_a_tally_counts_each_value_once_at_its_bound() -> None:
    tally = Tally((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, float("inf")):
        tally.add(value)
    assert tally.read() == ([2, 2, 2], float("inf"))
