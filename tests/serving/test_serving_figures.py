"""The figures of `benchmarks/serving.py`, of loads whose numbers are known."""

import numpy as np
import pytest

from benchmarks._serving_figures import CONNECTIONS, ROWS, Results, figures, report
from benchmarks._serving_servers import EMBEDDED, SERVERS, TRITON, Load

PEER, OTHER_PEER = (server.title for server in SERVERS if not server.ours and server.start == "triton-peer")


def load(rows: int, p50_ms: float, per_s: float, cpu_us: float = 1.0) -> Load:
    """100 answers, of which the slowest two take twice as long."""
    latencies = np.full(100, p50_ms / 1e3, np.float32)
    latencies[:2] *= 2
    return Load(rows, 100 / per_s, latencies, cpu_us * 1e-6 * 100 * rows, 2e-6 * 100 * rows)


def results(p50_ms: float, per_s: float, floor_ms: float, floor_per_s: float, many_per_s: float | None = None) -> Results:
    cells = [(rows, connections) for rows in ROWS for connections in CONNECTIONS]
    return Results(
        loads={cell: load(cell[0], p50_ms, per_s) for cell in cells},
        floors={cell: load(cell[0], floor_ms, floor_per_s) for cell in cells},
        memory_mib={1: 100.0},
        over_floor_ms=[0.3, 0.2, 0.4],
        many=None if many_per_s is None else load(100, p50_ms, many_per_s),
    )


def test_figures_compare_the_better_of_ours_with_the_best_peer() -> None:
    found = figures(
        {
            EMBEDDED: results(3.0, 4000, 1.0, 9000, many_per_s=5000),
            TRITON: results(2.5, 3000, 2.0, 8000),
            PEER: results(8.0, 1000, 2.0, 8000, many_per_s=900),
            OTHER_PEER: results(6.0, 800, 5.0, 8000),
        }
    )
    assert found == {
        "rows_vs_best_peer_100x8": pytest.approx(5000 / 1000),
        "p99_vs_best_peer_100x8": pytest.approx(12.0 / 6.0),
        "bound_of_rows_vs_best_peer_100x8": pytest.approx(9000 / 1000),
        "over_floor_vs_best_peer_100x8": pytest.approx((8 - 2) / (2.5 - 2)),
        "http_1row_8conn_per_s": pytest.approx(4000),
        "triton_over_floor_ms": 0.2,
    }


def test_what_was_not_measured_is_not_compared() -> None:
    assert list(figures({EMBEDDED: results(3.0, 4000, 1.0, 9000)})) == ["http_1row_8conn_per_s"]
    assert figures({PEER: results(8.0, 1000, 2.0, 8000)}) == {}
    quick = figures({EMBEDDED: results(1.0, 4000, 1.0, 9000), PEER: results(8.0, 1000, 2.0, 8000)})
    assert quick["over_floor_vs_best_peer_100x8"] == pytest.approx(6 / 0.01)


def test_the_table_has_processor_time_by_who_spent_it(capsys: pytest.CaptureFixture[str]) -> None:
    report(SERVERS[0], results(3.0, 4000, 1.0, 9000, many_per_s=5000))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-8:] == ["floor,", "ms", "CPU,", "us/row", "of", "floor", "of", "client"]
    assert lines[7].split() == ["100", "8", "400,000", "3.000", "6.000", "1.000", "1.00", "1.00", "2.00"]
    assert lines[-3] == "memory: 100 MiB with 1 worker"
