"""What a plan means: each table's place and cost, each rank's memory and work, and what all of it was reckoned with."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from torchrec.distributed.planner.types import ShardingOption

from emberline.text_table import columns
from emberline.train.dynamic.options import CUSTOMIZED_COMPUTE_KERNEL
from emberline.train.features.placement import TableConstraints
from emberline.train.sharding.dynamic_storage import growth_sizes, tier_names
from emberline.train.sharding.dynamic_variants import DynamicEmbShardingOption, Mode, chosen, mode_of
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.planner import TablePlanner
from emberline.train.sharding.reservation import Reserved
from emberline.train.sharding.sizes import size_text

_MOST_RANKS = 16
"""So many ranks are listed one by one."""


@dataclass(frozen=True, kw_only=True)
class GrowthReport:
    """Where the rows of a dynamic table are, when it is full. Bytes are those of each rank, alike on all.

    Args:
        mode: `HBM_ONLY`, all in the fast memory; `CACHING`, all in the one behind it and copies of some in the fast one; `HYBRID`, each in one.
        cache_load_factor: share of their bytes that the fast memory holds.
        fast: the fast memory: `hbm` of GPUs, `ddr` of CPUs.
        slow: what is behind it: `ddr`, or `disk`, which is no memory, and in no other number here.
        values: vectors and moments in the fast memory.
        keys: keys, scores and counters there.
        slow_values: vectors and moments behind it.
    """

    mode: str
    cache_load_factor: float
    fast: str
    slow: str
    values: int
    keys: int
    slow_values: int

    @property
    def name(self) -> str:
        """For a terminal: `HYBRID 0.3`."""
        return self.mode if self.mode == Mode.HBM_ONLY else f"{self.mode} {self.cache_load_factor:g}"


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """One table.

    Args:
        table: its full path.
        rows: vectors.
        dim: width of each.
        sharding_type: how it is cut.
        compute_kernel: what holds each shard.
        cache_load_factor: share of the rows that a GPU keeps, or the fast memory of a dynamic table; None where there is no cache.
        ranks: of the shards, in order.
        shards: sizes of the shards, [rows, columns], in order.
        hbm: GPU bytes of each shard, with moments, and ids and vectors in flight.
        ddr: host bytes, likewise.
        cost_ms: estimated milliseconds a step of each shard.
        ids_a_row: mean, by feature.
        ids_from: where each of those numbers comes from.
        growth: of a dynamic table, where its rows are; None of others.
    """

    table: str
    rows: int
    dim: int
    sharding_type: str
    compute_kernel: str
    cache_load_factor: float | None
    ranks: tuple[int, ...]
    shards: tuple[tuple[int, int], ...]
    hbm: tuple[int, ...]
    ddr: tuple[int, ...]
    cost_ms: tuple[float, ...]
    ids_a_row: Mapping[str, float]
    ids_from: Mapping[str, str]
    growth: GrowthReport | None = None

    @property
    def held_by(self) -> str:
        """For a terminal: the kernel, with the share that is cached."""
        if self.growth is not None:
            return f"{CUSTOMIZED_COMPUTE_KERNEL} {self.growth.name}"
        return self.compute_kernel if self.cache_load_factor is None else f"{self.compute_kernel} {self.cache_load_factor:g}"

    @property
    def memory(self) -> str:
        """For a terminal: bytes on all ranks, by what they are in."""
        sizes = {"hbm": sum(self.hbm), "ddr": sum(self.ddr)}
        if self.growth is not None and self.growth.slow not in sizes:
            sizes[self.growth.slow] = self.growth.slow_values * len(self.shards)
        return " + ".join(f"{size_text(size)} {name}" for name, size in sizes.items() if size)


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """One rank: bytes and milliseconds a step of all its shards."""

    rank: int
    hbm: int
    ddr: int
    cost_ms: float


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A plan and its numbers.

    Args:
        hardware: the ranks.
        batch_size: rows that each rank reads in a step.
        reserved: what is kept free on each rank.
        tables: in the model's order.
        ranks: all of them, in order.
        loose: by table, what is asked of all tables, or of a feature's wider one, and does not bind it.
    """

    hardware: Hardware
    batch_size: int
    reserved: Reserved
    tables: tuple[TableReport, ...]
    ranks: tuple[RankReport, ...]
    loose: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def cost_ms(self) -> float:
        """Estimated milliseconds a step of the slowest rank's tables."""
        return max((rank.cost_ms for rank in self.ranks), default=0.0)

    @property
    def on_gpu(self) -> bool:
        """Whether the tables' own memory is that of GPUs."""
        return self.hardware.device == "cuda"

    def used(self, rank: RankReport) -> int:
        """Bytes of the tables' own memory that they take on a rank."""
        return rank.hbm if self.on_gpu else rank.ddr

    def text(self) -> str:
        """As JSON."""
        speeds = self.hardware.speeds
        whole = {
            "hardware": {
                **{name: value for name, value in asdict(self.hardware).items() if name != "bandwidths"},
                "bandwidths_gb_per_s": speeds.as_dict(),
                "bandwidths_from": {name: speeds.sources.get(name, "assumed") for name in speeds.as_dict()},
            },
            "batch_size": self.batch_size,
            "reserved": asdict(self.reserved),
            "cost_ms": self.cost_ms,
            "tables": [asdict(table) for table in self.tables],
            "ranks": [asdict(rank) for rank in self.ranks],
        }
        return json.dumps(whole, indent=1) + "\n"

    def lines(self) -> list[str]:
        """For a terminal."""
        return [*self._hardware_lines(), "", *columns(list(self._table_rows())), "", *columns(list(self._rank_rows())), "", *self._notes()]

    def _hardware_lines(self) -> Iterator[str]:
        about, speeds = self.hardware.lines()
        yield f"{about}; {self.batch_size} rows a step"
        yield speeds
        kept = self.reserved
        yield (
            f"kept free on each rank: {size_text(kept.total)} "
            f"(share {size_text(kept.share)}, dense part {size_text(kept.dense)}, ids in flight {size_text(kept.ids)})"
        )

    def _table_rows(self) -> Iterator[tuple[str, ...]]:
        yield ("table", "rows", "dim", "sharding", "kernel", "ranks", "shards", "memory", "ms a step")
        for table in self.tables:
            yield (
                table.table,
                f"{table.rows:,}",
                str(table.dim),
                table.sharding_type,
                table.held_by,
                spans(table.ranks),
                str(len(table.shards)),
                table.memory,
                f"{max(table.cost_ms):.3g}",
            )

    def _rank_rows(self) -> Iterator[tuple[str, ...]]:
        yield ("rank", "hbm", "ddr", "used", "ms a step")
        shown: Sequence[RankReport] = self.ranks
        if len(shown) > _MOST_RANKS:
            shown = sorted(
                {min(shown, key=self.used): None, max(shown, key=self.used): None, max(shown, key=_cost): None}, key=lambda rank: rank.rank
            )
        for rank in shown:
            used = self.used(rank) / max(1, self.hardware.table_memory)
            yield (str(rank.rank), size_text(rank.hbm), size_text(rank.ddr), f"{used:.0%}", f"{rank.cost_ms:.3g}")

    def _notes(self) -> Iterator[str]:
        used = [self.used(rank) for rank in self.ranks]
        if len(used) > _MOST_RANKS:
            yield f"of {len(used)} ranks, those with least and most memory and work are shown; mean memory {size_text(sum(used) / len(used))}"
        for table, names in self.loose.items():
            yield f"{table}: {' and '.join(names)} of all tables, or of a feature's wider one, do not bind it: it cannot be so"
        yield f"slowest rank: {self.cost_ms:.3g} ms a step, as estimated"
        assumed = sorted({name for table in self.tables for name, source in table.ids_from.items() if source == "assumed"})
        if assumed:
            more = f" and {len(assumed) - 5} more" if len(assumed) > 5 else ""
            yield f"ids a row are assumed for {', '.join(assumed[:5])}{more}: give pooling_factor, or measure them (--sample-batches)"


def report_plan(planner: TablePlanner) -> PlanReport:
    """The report of what the planner chose last."""
    tables = tuple(_table_report(option, planner) for option in planner.chosen)
    count = planner.hardware.world_size
    hbm, ddr, cost = [0] * count, [0] * count, [0.0] * count
    for table in tables:
        for place, rank in enumerate(table.ranks):
            hbm[rank] += table.hbm[place]
            ddr[rank] += table.ddr[place]
            cost[rank] += table.cost_ms[place]
    loose = {path: tuple(sorted(names)) for path, names in planner.options.loose.items()}
    ranks = tuple(RankReport(rank=rank, hbm=hbm[rank], ddr=ddr[rank], cost_ms=cost[rank]) for rank in range(count))
    return PlanReport(hardware=planner.hardware, batch_size=planner.batch_size, reserved=planner.reserved, tables=tables, ranks=ranks, loose=loose)


def spans(ranks: Sequence[int]) -> str:
    """Ranks in short: `0-7`, `3`, `0, 2`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _table_report(option: ShardingOption, planner: TablePlanner) -> TableReport:
    constraints = planner.options.constraints_of(option.fqn)
    readers, sources = (constraints.readers, constraints.pooling_sources) if isinstance(constraints, TableConstraints) else ((), ())
    return TableReport(
        table=option.fqn,
        rows=option.tensor.shape[0],
        dim=option.tensor.shape[1],
        sharding_type=option.sharding_type,
        compute_kernel=option.compute_kernel,
        cache_load_factor=option.cache_load_factor,
        ranks=tuple(shard.rank for shard in option.shards),
        shards=tuple((shard.size[0], shard.size[1]) for shard in option.shards),
        hbm=tuple(shard.storage.hbm for shard in option.shards),
        ddr=tuple(shard.storage.ddr for shard in option.shards),
        cost_ms=tuple(float(shard.perf.total) for shard in option.shards),
        ids_a_row=dict(zip(readers, constraints.pooling_factors, strict=False)),
        ids_from=dict(zip(readers, sources, strict=True)),
        growth=_growth_report(option, planner.hardware) if isinstance(option, DynamicEmbShardingOption) else None,
    )


def _growth_report(option: DynamicEmbShardingOption, hardware: Hardware) -> GrowthReport:
    growth = chosen(option.growth, option.tensor, hardware.world_size, hardware.device)
    sizes = growth_sizes(growth, option.tensor, hardware.world_size, hardware.device)
    fast, slow = tier_names(hardware.device)
    return GrowthReport(
        mode=mode_of(growth),
        cache_load_factor=1.0 if growth.cache_load_factor is None else growth.cache_load_factor,
        fast=fast,
        slow=slow,
        values=sizes.fast_values,
        keys=sizes.keys,
        slow_values=sizes.slow,
    )


def _cost(rank: RankReport) -> float:
    return rank.cost_ms
