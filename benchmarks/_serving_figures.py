"""What `serving.py` measured, as a table and as figures.

| figure | is |
|---|---|
| `rows_vs_best_peer_100x8` | rows/s at 100 rows and 8 connections: Emberline's better server over the best peer; above 1 it is faster |
| `p99_vs_best_peer_100x8` | the least p99 of a peer there over that server's; above 1 ours is lower |
| `bound_of_rows_vs_best_peer_100x8` | the same ratio for a model that does nothing on our faster server: no model there can have a higher one |
| `over_floor_vs_best_peer_100x8` | its median above the do-nothing model's on the same server, of the peer with most rows/s, over ours; one worker |
| `triton_over_floor_ms` | median of one row on one connection above the do-nothing model's on Triton, the best of rounds that take turns |
| `http_1row_8conn_per_s` | the embedded server's requests of one row on 8 connections, a second |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks._serving_servers import EMBEDDED, SERVERS, TRITON, Load, Server

ROWS, CONNECTIONS = (1, 100, 1000), (1, 8, 32)
MANY_WORKERS = 4
Cell = tuple[int, int]
"""Rows of a request, and connections."""
_COMPARED: Cell = (100, 8)
_HEAD = ("rows", "connections", "rows/s", "p50, ms", "p99, ms", "floor, ms", "CPU, us/row", "of floor", "of client")
_WIDTHS = (6, 13, 12, 10, 10, 11, 13, 10, 11)
_LEAST_MS = 0.01
"""Less than this above the floor cannot be told from it."""


@dataclass
class Results:
    """What one server did.

    Args:
        loads: by cell.
        floors: the do-nothing model's, by cell.
        memory_mib: by workers.
        over_floor_ms: medians of one row on one connection above the do-nothing model's, of rounds that took turns.
        many: the cell that is compared, with many workers.
    """

    loads: dict[Cell, Load] = field(default_factory=dict)
    floors: dict[Cell, Load] = field(default_factory=dict)
    memory_mib: dict[int, float] = field(default_factory=dict)
    over_floor_ms: list[float] = field(default_factory=list)
    many: Load | None = None

    @property
    def compared(self) -> list[Load]:
        """The cell that the figures compare, by workers."""
        return [load for load in (self.loads[_COMPARED], self.many) if load is not None]

    @property
    def rows_per_s(self) -> float:
        """There, with the number of workers that is better."""
        return max(load.rows_per_s for load in self.compared)

    @property
    def compared_over_floor_ms(self) -> float:
        """Median there, above the do-nothing model's, with one worker."""
        return max(self.loads[_COMPARED].ms(50) - self.floors[_COMPARED].ms(50), _LEAST_MS)


def report(server: Server, results: Results) -> None:
    """Print a server's table."""
    print(f"\n{server.title}")
    print("".join(f"{name:>{width}}" for name, width in zip(_HEAD, _WIDTHS, strict=True)))
    for cell, load in results.loads.items():
        print(f"{cell[0]:>6,}{cell[1]:>13}{_numbers(load)}{results.floors[cell].ms(50):>11.3f}{_cpu(load, results.floors[cell])}")
    if results.many is not None:
        print(f"{100:>6,}{8:>13}{_numbers(results.many)}   {MANY_WORKERS} workers, CPU {results.many.cpu_us_per_row:.2f} us/row")
    memory = ", ".join(f"{mib:,.0f} MiB with {workers} worker{'s' * (workers > 1)}" for workers, mib in results.memory_mib.items())
    print(f"memory: {memory}")
    print(f"one row on one connection: {min(results.over_floor_ms):.3f} ms over the do-nothing model")
    print(f"100 rows on 8 connections: {results.compared_over_floor_ms:.3f} ms over the do-nothing model", flush=True)


def _numbers(load: Load) -> str:
    return f"{load.rows_per_s:>12,.0f}{load.ms(50):>10.3f}{load.ms(99):>10.3f}"


def _cpu(load: Load, floor: Load) -> str:
    return f"{load.cpu_us_per_row:>13.2f}{floor.cpu_us_per_row:>10.2f}{load.client_cpu_us_per_row:>11.2f}"


def figures(all_results: Mapping[str, Results]) -> dict[str, float]:
    """By the names above, of the servers that were measured; comparisons only where there are both sides."""
    found: dict[str, float] = {}
    ours, peers = (_of(all_results, is_ours) for is_ours in (True, False))
    if ours and peers:
        best = max((load for results in ours for load in results.compared), key=lambda load: load.rows_per_s)
        most = max(peers, key=lambda results: results.rows_per_s)
        floor = max(results.floors[_COMPARED].rows_per_s for results in ours)
        found["rows_vs_best_peer_100x8"] = best.rows_per_s / most.rows_per_s
        found["p99_vs_best_peer_100x8"] = min(load.ms(99) for results in peers for load in results.compared) / best.ms(99)
        found["bound_of_rows_vs_best_peer_100x8"] = floor / most.rows_per_s
        found["over_floor_vs_best_peer_100x8"] = most.compared_over_floor_ms / min(results.compared_over_floor_ms for results in ours)
    if EMBEDDED in all_results:
        found["http_1row_8conn_per_s"] = all_results[EMBEDDED].loads[1, 8].requests_per_s
    if TRITON in all_results:
        found["triton_over_floor_ms"] = min(all_results[TRITON].over_floor_ms)
    return found


def _of(all_results: Mapping[str, Results], is_ours: bool) -> Sequence[Results]:
    return [all_results[server.title] for server in SERVERS if server.ours is is_ours and server.title in all_results]
