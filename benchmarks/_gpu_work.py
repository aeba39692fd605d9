"""The work that `gpu.py` measures: tables whose blocks of rows are alike, bags of ids, and the forms that look them up.

Letters: T tables, B bags of each, N ids of a batch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.errors import MissingDependencyError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, LookupSpec, ModelSchema, Pooling, TableSpec
from emberline.serving.lookup import Bags, LookupBackend, choose_finder, choose_lookup
from emberline.serving.lookup.bags import PackedBags
from emberline.serving.quantized import STORED_DTYPES, encode_rows, stored_width

BLOCK = 4096
"""Rows of a table are those of its first block, again and again: so few are made, and so few are needed to check answers."""
FUSED, PLAIN, FBGEMM = "fused", "torch", "fbgemm"
CHECKED_BAGS = 64


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tables and batches of one kind.

    Args:
        dim: numbers of a row.
        dtype: the number type of the tables.
        skewed: ids go by Zipf's law; else they are uniform.
        ids_per_bag: of every bag.
        rows: of each table.
        tables: T.
        num_ids: N.
    """

    dim: int
    dtype: str
    skewed: bool
    ids_per_bag: int
    rows: int
    tables: int
    num_ids: int

    @property
    def num_bags(self) -> int:
        """B."""
        return max(1, self.num_ids // self.ids_per_bag // self.tables)

    @property
    def moved_bytes(self) -> int:
        """What a batch must read and write at least: rows, ids, offsets and sums."""
        count = self.num_bags * self.tables
        row_bytes = stored_width(self.dim, self.dtype) * STORED_DTYPES[self.dtype].itemsize
        return count * (self.ids_per_bag * (row_bytes + 8) + 8 + 4 * self.dim)

    def __str__(self) -> str:
        return f"| {self.dim} | {self.dtype} | {'Zipf' if self.skewed else 'uniform'} | {self.ids_per_bag} |"


def schema_of(case: Case) -> ModelSchema:
    """Features that each read a table of their own by sum."""
    names = [f"t{number}" for number in range(case.tables)]
    return ModelSchema(
        features=tuple(FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=BucketEncoder(rows=case.rows)) for name in names),
        tables=tuple(TableSpec(name=name, rows=case.rows, dim=case.dim) for name in names),
        lookups=tuple(LookupSpec(key=name, feature=name, table=name, pooling=Pooling.SUM, dim=case.dim) for name in names),
        groups=(),
    )


def make_blocks(case: Case) -> dict[str, Tensor]:
    """The first rows of each table, on the CPU."""
    draw = torch.Generator().manual_seed(1)
    return {f"t{number}": encode_rows(torch.randn(min(BLOCK, case.rows), case.dim, generator=draw), case.dtype) for number in range(case.tables)}


def make_tables(case: Case, blocks: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """All rows, on the device."""
    return {name: block.to(device).repeat(-(-case.rows // len(block)), 1)[: case.rows].contiguous() for name, block in blocks.items()}


def make_bags(case: Case, device: torch.device, seed: int) -> Bags:
    """A batch. Ids of Zipf's law are spread over the table, as those of a real one are: it is not the first rows that are read most."""
    draw, count = torch.Generator(device).manual_seed(seed), case.num_bags * case.ids_per_bag
    share = torch.rand(case.tables * count, generator=draw, device=device, dtype=torch.float64)
    ranks = (case.rows**share if case.skewed else share * case.rows).long().clamp_(max=case.rows - 1)
    ids = ranks * 2654435761 % case.rows
    offsets = torch.arange(0, count + 1, case.ids_per_bag, device=device).repeat(case.tables, 1)
    return Bags.of(PackedBags(ids, offsets, None), [count] * case.tables)


def make_forms(case: Case, tables: Mapping[str, Tensor], device: torch.device, left_out: dict[str, str]) -> dict[str, Callable[[Bags], Tensor]]:
    """What looks the bags up, by name; why others do not goes to `left_out`."""
    schema, types, found = schema_of(case), dict.fromkeys(tables, case.dtype), dict[str, Callable[[Bags], Tensor]]()
    for name in (FUSED, PLAIN, FBGEMM):
        try:
            found[name] = _form(schema, choose_lookup(schema, tables, types, device, name))
        except MissingDependencyError as error:
            left_out[name] = str(error)
    return found


def check(case: Case, blocks: Mapping[str, Tensor], bags: Bags, answers: Mapping[str, Tensor]) -> None:
    """Compare the sums of some bags with those of torch on the CPU; by all forms, or nothing is timed."""
    count, cpu = min(CHECKED_BAGS, bags.num_rows), torch.device("cpu")
    ids = torch.cat([own[: count * case.ids_per_bag] for own in bags.ids]).cpu() % BLOCK
    offsets = bags.packed.offsets[:, : count + 1].cpu().contiguous()
    few = Bags.of(PackedBags(ids, offsets, None), offsets[:, -1].tolist())
    schema = schema_of(case)
    want = _form(schema, choose_lookup(schema, blocks, dict.fromkeys(blocks, case.dtype), cpu, PLAIN))(few)
    for name, answer in answers.items():
        torch.testing.assert_close(answer[:count].cpu(), want, rtol=1e-4, atol=1e-4, msg=f"{case} by {name}: the sums differ from those on the CPU")


def _form(schema: ModelSchema, lookup: LookupBackend) -> Callable[[Bags], Tensor]:
    finder = choose_finder(schema, {}, lookup)
    return lambda bags: lookup.pooled(finder(bags))


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of the best of some calls, after some that do not count; on a device by its own clock, from the first launch to the end of the last."""
    for _ in range(2 if repeats > 1 else 1):
        call()
    if device.type != "cuda":
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        return best
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    for start_event, end_event in events:
        start_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize(device)
    return min(float(start_event.elapsed_time(end_event)) for start_event, end_event in events) / 1e3


def copy_bandwidth(device: torch.device, num_bytes: int, repeats: int) -> float:
    """Bytes a second that a plain copy reads and writes."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds(lambda: target.copy_(source), device, repeats)
