"""What several workers count, as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_ALIKE: Mapping[str, Callable[[list[float]], float]] = {
    "emberline_model_version": min,
    "emberline_model_delta": min,
    "emberline_model_lookup": max,
    "emberline_model_version_age_seconds": max,
    "process_start_time_seconds": min,
    "process_max_fds": min,
}
"""What is not added up. Of versions and deltas, the one that all of them have."""
_TABLES = ("emberline_table_bytes", "emberline_table_huge_page_bytes")


def merge_metrics(texts: Sequence[str], *, shared_tables: bool) -> bytes:
    """Texts that Prometheus could scrape, as one.

    Args:
        texts: of the workers.
        shared_tables: whether the workers' tables are the same memory.
    """
    registry = CollectorRegistry()
    registry.register(_Merged(texts, shared_tables))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, texts: Sequence[str], shared_tables: bool) -> None:
        self._texts, self._shared_tables = texts, shared_tables

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        values: defaultdict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = defaultdict(list)
        for text in self._texts:
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    values[family.name, sample.name, tuple(sample.labels.items())].append(sample.value)
        for (family_name, name, labels), found in values.items():
            families[family_name].add_sample(name, dict(labels), self._rule(name)(found))
        return families.values()

    def _rule(self, name: str) -> Callable[[list[float]], float]:
        if name.endswith("_created") or (name in _TABLES and self._shared_tables):
            return min if name.endswith("_created") else max
        return _ALIKE.get(name, sum)


def merge_statistics(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of one model's statistics, one of each worker, as one: counts and times are added up."""
    merged = dict(entries[0])
    for name, value in merged.items():
        values = [entry[name] for entry in entries]
        if isinstance(value, Mapping):
            merged[name] = merge_statistics(values)
        elif isinstance(value, list):
            merged[name] = [merge_statistics(parts) for parts in zip(*values, strict=False)]
        elif isinstance(value, int):
            merged[name] = {"last_inference": max, "delta": min}.get(name, sum)(values)
    return merged
