"""The lookup backend of CUDA devices that finds rows of raw ids and pools them in one launch: `fused_kernel.py`, in the Triton language.

It needs the package `triton`, which comes with torch's builds for CUDA. What it is not for, torch does: steps of sequences, tables of 2^31 rows or
more with raw ids, and tables while the rows of a delta still lie beside them.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Self

import torch
from torch import Tensor

from emberline.errors import MissingDependencyError
from emberline.routing import MIXED, range_size
from emberline.schema import LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup.bags import Bags, PackedBags
from emberline.serving.lookup.rows import BagRows, RowFinder
from emberline.serving.lookup.steps import Steps
from emberline.serving.lookup.torch_backend import TorchLookup
from emberline.serving.quantized import BITS
from emberline.serving.remap import HashedRemap, RemapIndex
from emberline.serving.rows_on_disk import RowsOnDisk, TableRows

MOST_COLUMNS, LEAST_COLUMNS = 256, 4
"""Of one program: wider rows are read by several."""
NUMBERS = 512
"""A program sums about so many numbers side by side: 16 of each of a warp's threads."""
MOST_BAGS = 32
"""Of one program. Where lines of maps are read too, so many ids at a time: they need registers."""
UNROLL = 4
"""Ids of a bag whose rows are asked for together, where there are more ids than bags."""
_ALIGNMENT, _HEADER_BYTES = 16, 4


@dataclass(frozen=True, eq=False)
class PooledRows(BagRows):
    """The rows of a batch, and what was summed of them as they were found.

    Args:
        pooled: float32 [B, P], in the order of the schema's lookups.
    """

    pooled: Tensor


class FusedLookup:
    """Pooled lookups in one launch for each number type and width of rows; see `fused_kernel.py`. Make one with `of`.

    Args:
        schema: the model's description.
        tables: stored rows of each table.
        types: the number type of each table; float32 where one is not there.
        device: where tables are.
        kernel: the module `fused_kernel`.
    """

    name = "fused"

    def __init__(
        self, schema: ModelSchema, tables: Mapping[str, TableRows], types: Mapping[str, str], device: torch.device, kernel: ModuleType
    ) -> None:
        self._schema, self._tables, self._types, self._device, self._kernel = schema, tables, types, device, kernel
        self._plain = TorchLookup(schema, tables, types)

    @classmethod
    def of(cls, schema: ModelSchema, tables: Mapping[str, TableRows], types: Mapping[str, str], device: torch.device) -> Self:
        """The backend of a device.

        Raises:
            MissingDependencyError: it does not work here; the message says why.
        """
        reason = "lookup 'fused' does not work here: "
        if any(isinstance(rows, RowsOnDisk) for rows in tables.values()):
            raise MissingDependencyError(f"{reason}it needs tables in memory, and these stay on disk")
        try:
            from emberline.serving.lookup import fused_kernel
        except ImportError as error:
            raise MissingDependencyError(
                f"{reason}it needs the package triton, which comes with torch for CUDA and does not load: {error}"
            ) from error
        if device.type != "cuda" and not fused_kernel.is_interpreted():
            raise MissingDependencyError(f"{reason}it is for CUDA, and the device is {str(device)!r}")
        return cls(schema, tables, types, device, fused_kernel)

    def finder(self, remaps: Mapping[str, RemapIndex]) -> RowFinder:
        """What finds the rows of batches, and sums them on the way where that works.

        Args:
            remaps: raw id -> row, for each ZCH or dynamic table.
        """
        plain = RowFinder(self._schema, remaps)
        places = {feature.name: place for place, feature in enumerate(self._schema.sparse_features)}
        pooled = {(places[lookup.feature], lookup.table) for lookup in self._schema.lookups}
        names = {table for _, table in pooled}
        tables = {name: table for name in names if isinstance(table := self._tables[name], Tensor)}
        raw = {(feature, table): index for feature, table, index in plain.reads if (feature, table) in pooled}
        maps = {key: index for key, index in raw.items() if isinstance(index, HashedRemap)}
        if not names or len(tables) < len(names) or len(maps) < len(raw):
            return plain
        finder = FusedFinder(self._schema, remaps, _Describer(self._schema, tables, self._types, maps, self._device), self._kernel)
        if self._device.type == "cuda":
            finder.compile()
        return finder

    def pooled(self, rows: BagRows) -> Tensor:
        """The lookups of a batch; see `LookupBackend`."""
        return rows.pooled if isinstance(rows, PooledRows) else self._plain.pooled(rows)

    def stepped(self, rows: BagRows, steps: Steps) -> dict[str, Tensor]:
        """The lookups that keep steps; see `LookupBackend`."""
        return self._plain.stepped(rows, steps)

    def part(self, schema: ModelSchema) -> "FusedLookup":
        """A backend for some features of the model; see `LookupBackend`."""
        return FusedLookup(schema, self._tables, self._types, self._device, self._kernel)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Group:
    """Parts that one launch reads.

    Args:
        parts: int64 [L, DESCRIBED], on the device.
        kind: as `fused_kernel` numbers it.
        columns: W, of numbers.
        has_maps: whether some part's ids are raw.
        aligned: whether rows of all tables begin at 16 bytes each.
        aligned_out: whether all columns of the answer are multiples of 4, and so is its width.
    """

    parts: Tensor
    kind: int
    columns: int
    has_maps: bool
    aligned: bool
    aligned_out: bool

    def bags(self, unroll: int) -> int:
        """M."""
        return max(1, min(MOST_BAGS // unroll if self.has_maps else MOST_BAGS, NUMBERS // self.columns))


class FusedFinder(RowFinder):
    """Finds the rows of batches, and sums them on the way.

    Args:
        schema: the model's description.
        remaps: raw id -> row, for each ZCH or dynamic table.
        described: its lookups.
        kernel: the module `fused_kernel`.
    """

    def __init__(self, schema: ModelSchema, remaps: Mapping[str, RemapIndex], described: "_Describer", kernel: ModuleType) -> None:
        super().__init__(schema, remaps)
        self._described, self._kernel, self._device = described, kernel, described.device
        self._groups, self._width = described.groups(kernel), schema.pooled_dim
        self._weighted = any(lookup.weighted for lookup in schema.lookups)
        self._others = [(feature, table, index) for feature, table, index in self.reads if (feature, table) not in described.slots]

    def __call__(self, bags: Bags) -> PooledRows:
        """The rows of a batch's ids, and their sums."""
        ends = list(accumulate((ids.numel() for ids in bags.ids), initial=0))
        pooled, rows, known = self.launch(bags.packed)
        found = {(feature, table): index(bags.ids[feature]) for feature, table, index in self._others}
        for (feature, table), slot in self._described.slots.items():
            own = slice(ends[feature], ends[feature + 1])
            found[feature, table] = rows[slot, own], known[slot, own]
        return PooledRows(bags, found, pooled)

    def launch(self, bags: PackedBags) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of a batch, and what was found of the ids that are raw.

        Returns:
            float32 [B, P]; rows int64 [S, N]; and whether each is the id's own, bool [S, N]. S is as `_Describer.slots` has it.
        """
        num_bags, num_ids, num_slots = bags.offsets.shape[1] - 1, bags.ids.numel(), self._described.num_slots
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            pooled = torch.empty(num_bags, self._width, dtype=torch.float32, device=self._device)
            rows = torch.empty(num_slots, num_ids, dtype=torch.int64, device=self._device)
            known = torch.empty(num_slots, num_ids, dtype=torch.bool, device=self._device)
            ends = bags.offsets[:, -1].cumsum(0)
            unroll = UNROLL if num_ids > num_bags * bags.offsets.shape[0] else 1
            outs = (pooled, rows, known.view(torch.uint8), num_bags, num_ids, self._width)
            for group in self._groups:
                self._run(group, (bags.ids, bags.offsets, ends), bags.weights if self._weighted else None, outs, unroll)
        return pooled, rows, known

    def compile(self) -> None:
        """Have all kernels that batches may need."""
        for unroll in (1, UNROLL):
            for weighted in (False, True) if self._weighted else (False,):
                ids, num_features = torch.zeros(unroll - 1, dtype=torch.int64, device=self._device), self._described.num_features
                offsets = torch.zeros(num_features, 1, dtype=torch.int64, device=self._device)
                self.launch(PackedBags(ids, offsets, ids.float() if weighted else None))

    def _run(self, group: _Group, bags: tuple[Tensor, Tensor, Tensor], weights: Tensor | None, outs: Sequence[Tensor | int], unroll: int) -> None:
        ids, offsets, ends = bags
        assert (ids.is_contiguous(), offsets.is_contiguous()) == (True, True), (ids.stride(), offsets.stride())
        num_bags = group.bags(unroll)
        grid = (-(-(offsets.shape[1] - 1) // num_bags), group.parts.shape[0])
        self._kernel.pool_bags[grid](
            *(ids, offsets, ends, ends if weights is None else weights, group.parts),
            *outs,
            kind=group.kind,
            bags=num_bags,
            columns=group.columns // (2 if group.kind == self._kernel.INT4 else 1),
            unroll=unroll,
            has_maps=group.has_maps,
            has_weights=weights is not None,
            aligned=group.aligned,
            aligned_out=group.aligned_out,
            num_warps=1,
        )


class _Describer:
    """What of a model's lookups no batch changes, as `pool_bags` reads it; keeps what it points to.

    Args:
        schema: the model's description.
        tables: stored rows of each table that is read.
        types: number types by table.
        maps: those of raw ids, by feature (its place) and table.
        device: where all of them are.

    Attributes:
        slots: where the rows of raw ids are written, by feature and table: a feature's tables one after the other.
        num_slots: S, the most that any feature has.
    """

    def __init__(
        self,
        schema: ModelSchema,
        tables: Mapping[str, Tensor],
        types: Mapping[str, str],
        maps: Mapping[tuple[int, str], HashedRemap],
        device: torch.device,
    ) -> None:
        self.device, self.num_features = device, len(schema.sparse_features)
        self._schema, self._tables, self._types, self._maps = schema, tables, types, maps
        places = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        self._features = [places[lookup.feature] for lookup in schema.lookups]
        self.slots = dict[tuple[int, str], int]()
        for feature, table in maps:
            self.slots[feature, table] = sum(of == feature for of, _ in self.slots)
        self.num_slots = max(self.slots.values(), default=-1) + 1

    def groups(self, kernel: ModuleType) -> list[_Group]:
        """The launches of a batch."""
        found = dict[tuple[int, int], list[tuple[list[int], LookupSpec]]]()
        written, end = set[tuple[int, str]](), 0
        for feature, lookup in zip(self._features, self._schema.lookups, strict=True):
            kind = getattr(kernel, self._types.get(lookup.table, "fp32").upper())
            columns = min(MOST_COLUMNS, max(LEAST_COLUMNS, 1 << (lookup.dim - 1).bit_length()))
            for at in range(0, lookup.dim, columns):
                key = feature, lookup.table
                part = self._part(feature, lookup, at, end, writes=key not in written, kernel=kernel)
                found.setdefault((kind, columns), []).append((part, lookup))
                written.add(key)
            end += lookup.dim
        return [self._group(kind, columns, parts, kernel) for (kind, columns), parts in found.items()]

    def _group(self, kind: int, columns: int, parts: Sequence[tuple[list[int], LookupSpec]], kernel: ModuleType) -> _Group:
        described = torch.tensor([part for part, _ in parts], dtype=torch.int64)
        assert described.shape[1] == kernel.DESCRIBED, described.shape
        tables = [self._tables[lookup.table] for _, lookup in parts]
        return _Group(
            parts=described.to(self.device),
            kind=kind,
            columns=columns,
            has_maps=any(lookup.table == table for _, lookup in parts for _, table in self._maps),
            aligned=all(table.data_ptr() % _ALIGNMENT == 0 and table.stride(0) * table.element_size() % _ALIGNMENT == 0 for table in tables),
            aligned_out=self._schema.pooled_dim % 4 == 0 and all(part[4] % 4 == part[5] % 4 == 0 for part, _ in parts),
        )

    def _part(self, feature: int, lookup: LookupSpec, at: int, end: int, *, writes: bool, kernel: ModuleType) -> list[int]:
        """The numbers of one part: columns from `at` on of a lookup whose first column of the answer is `end`."""
        table, dtype = self._tables[lookup.table], self._types.get(lookup.table, "fp32")
        assert table.stride(1) == 1, table.stride()
        assert table.device.type == self.device.type, table.device
        start = _HEADER_BYTES + at * BITS[dtype] // 8 if dtype in BITS else at
        place = [feature, table.data_ptr(), table.stride(0), start, lookup.dim - at, end + at]
        pooling = [int(lookup.pooling is Pooling.MEAN), int(lookup.weighted)]
        index = self._maps.get((feature, lookup.table))
        assert index is None or {index.lines.device.type, index.fallback.rows.device.type} == {self.device.type}, index.lines.device
        found = [*place, *pooling, *(_map_numbers(index, self.slots[feature, lookup.table] if writes else -1, kernel) if index else ())]
        return found + [0] * (kernel.DESCRIBED - len(found))


def _map_numbers(index: HashedRemap, slot: int, kernel: ModuleType) -> list[int]:
    """Of a part whose ids are raw: its lines, where found rows are written, and the rows of all other ids."""
    fallback = index.fallback
    mode = kernel.SAME
    if not fallback.same_for_all:
        mode = kernel.BY_RANGE if fallback.routing is None else kernel.MIXED if fallback.routing == MIXED else kernel.ROUTED
    num_parts = fallback.rows.numel()
    size = range_size(num_parts)
    rows = [fallback.first, mode, num_parts, fallback.starts.data_ptr(), fallback.rows.data_ptr()]
    return [index.lines.data_ptr(), slot, index.num_homes, index.seed, *rows, size, size * num_parts - 2**63, 2**63 % num_parts]
