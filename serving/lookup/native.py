"""The lookup backend in C, `kernel.c`: one call for all lookups of a batch on a CPU, and the same answers as torch's to the bit.

A machine without it looks up by torch: `emberline doctor` tells which it is. See `emberline.compiled`.
"""

import ctypes
import platform
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from emberline.compiled import Kernel
from emberline.schema import LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup.rows import BagRows
from emberline.serving.lookup.steps import Steps
from emberline.serving.overlaid_rows import OverlaidRows
from emberline.serving.quantized import STORED_DTYPES
from emberline.serving.rows_on_disk import TableRows, rows_needed

IDS_PER_THREAD = 8192
"""A batch of fewer ids than twice this is looked up by one thread: starting another takes as long as some thousand ids."""
_KINDS = {name: number for number, name in enumerate(("fp32", "fp16", "bf16", "int8", "int4"))}
_ADDRESS, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class ReadOfTable(ctypes.Structure):
    """`Read` of `kernel.c`."""

    _fields_ = (
        ("rows", _ADDRESS),
        ("num_rows", _INT64),
        ("row_bytes", _INT64),
        ("pitch", _INT64),
        ("dim", _INT32),
        ("kind", _INT32),
        ("mean", _INT32),
        ("weighted", _INT32),
    )

    def point_to(self, table: Tensor) -> None:
        """Read these rows, [R, width], each without gaps, which must stay where they are."""
        assert (table.device.type, table[:1].is_contiguous()) == ("cpu", True), (table.device, table.stride())
        self.rows, self.num_rows = table.data_ptr(), table.shape[0]
        self.row_bytes, self.pitch = table.shape[1] * table.element_size(), table.stride(0) * table.element_size()


def _declare(library: ctypes.CDLL) -> None:
    pool = library.emberline_lookup_pool
    pool.argtypes, pool.restype = (_ADDRESS, _ADDRESS, _INT32, _INT64, _INT32), _INT32


def compiler_flags() -> Sequence[str]:
    """For the instructions that this processor has. A library made for others has another name, and is not loaded here."""
    strict = ("-ffp-contract=off", "-Wno-psabi")
    if platform.machine() == "x86_64" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        return (*strict, "-mavx2", "-mfma", "-mf16c")
    return strict


KERNEL = Kernel(
    Path(__file__).with_name("kernel.c"), _declare, stand_in="torch", without="rows are looked up by torch, which is slower", flags=compiler_flags
)


class NativeLookup:
    """All lookups of a batch by one call, in float32, each written where it belongs in the answer; without Python's lock.

    Args:
        schema: the model's description.
        tables: stored rows of each table, on the CPU, or elsewhere: `rows_needed` brings those that a batch needs then.
        types: the number type of each table; float32 where one is not there.
        library: the kernel; see `KERNEL`.

    Attributes:
        pool_address: where `emberline_lookup_pool` of it is.
        in_memory: whether all tables are, with the rows that changed beside them.
    """

    name = "native"

    def __init__(self, schema: ModelSchema, tables: Mapping[str, TableRows], types: Mapping[str, str] | None, library: ctypes.CDLL) -> None:
        order = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        self._tables, self._types, self._library = tables, types or {}, library
        self.pool_address = ctypes.cast(library.emberline_lookup_pool, _ADDRESS).value
        self.in_memory = all(isinstance(table, Tensor | OverlaidRows) for table in tables.values())
        self._reads = [(order[lookup.feature], lookup) for lookup in schema.lookups]
        self._step_reads = [(order[lookup.feature], lookup) for lookup in schema.sequence_lookups]
        self._described = self.describe(schema.lookups)
        self._steps_described = [self.describe([lookup]) for lookup in schema.sequence_lookups]
        ends = list(accumulate((lookup.dim for lookup in schema.lookups), initial=0))
        self._columns, self._width = ends[:-1], ends[-1]

    def pooled(self, rows: BagRows) -> Tensor:
        """The lookups of a batch; see `LookupBackend`."""
        found = _new(rows.bags.num_rows, self._width)
        batch, start = _Batch(rows, self._described), found.data_ptr()
        for (feature, lookup), column in zip(self._reads, self._columns, strict=True):
            batch.ask(self._tables[lookup.table], feature, lookup, rows.bags.offsets[feature], start + 4 * column, self._width)
        self._run(batch, rows.bags.num_rows)
        return found

    def stepped(self, rows: BagRows, steps: Steps) -> dict[str, Tensor]:
        """The lookups that keep steps; see `LookupBackend`."""
        found = {}
        for (feature, lookup), described in zip(self._step_reads, self._steps_described, strict=True):
            offsets = steps.offsets[lookup.feature]
            num_steps = rows.bags.ids[feature].numel() if offsets is None else offsets.numel() - 1
            found[lookup.key] = values = _new(num_steps, lookup.dim)
            batch = _Batch(rows, described)
            batch.ask(self._tables[lookup.table], feature, lookup, offsets, values.data_ptr(), lookup.dim)
            self._run(batch, num_steps)
        return found

    def part(self, schema: ModelSchema) -> "NativeLookup":
        """A backend for some features of the model; see `LookupBackend`."""
        return NativeLookup(schema, self._tables, self._types, self._library)

    def overlaid(self, table: str) -> OverlaidRows | None:
        """A table some rows of which changed and lie beside it; None for any other."""
        found = self._tables[table]
        return found if isinstance(found, OverlaidRows) else None

    def describe(self, lookups: Sequence[LookupSpec], *, apart: bool = False) -> "ctypes.Array[ReadOfTable]":
        """What of some lookups no batch changes: `Read` of `kernel.c` for each. The tables must be kept.

        Args:
            lookups: any of the model's.
            apart: where a table has changed rows beside it, read these; else the table as it was.
        """
        described = (ReadOfTable * len(lookups))()
        for read, lookup in zip(described, lookups, strict=True):
            table, dtype = self._tables[lookup.table], self._types.get(lookup.table, "fp32")
            assert table.dtype == STORED_DTYPES[dtype], (lookup.table, table.dtype)
            read.dim, read.kind = lookup.dim, _KINDS[dtype]
            read.mean, read.weighted = lookup.pooling is Pooling.MEAN, lookup.weighted
            if isinstance(table, OverlaidRows):
                table = table.rows if apart else table.base
            if isinstance(table, Tensor):
                read.point_to(table)
        return described

    def _run(self, batch: "_Batch", num_bags: int) -> None:
        num_threads = max(1, min(torch.get_num_threads(), batch.num_ids // IDS_PER_THREAD))
        asked = batch.asked.buffer_info()[0]
        fault = self._library.emberline_lookup_pool(batch.described, asked, len(batch.described), num_bags, num_threads)
        if fault >= 0:
            raise RuntimeError(f"lookup {fault}: an id reads a row that its table lacks")


def _new(num_rows: int, width: int) -> Tensor:
    """Memory for what the kernel writes, whatever the process has as torch's defaults."""
    return torch.empty(num_rows, width, dtype=torch.float32, device="cpu")


class _Batch:
    """What one call asks for.

    Args:
        rows: of the batch's ids.
        described: the lookups, in the order in which they are asked.
    """

    def __init__(self, rows: BagRows, described: "ctypes.Array[ReadOfTable]") -> None:
        self.described = described
        self.asked = array("q")
        self.num_ids = 0
        self._rows, self._number, self._kept = rows, 0, list[Tensor]()

    def ask(self, table: TableRows, feature: int, lookup: LookupSpec, offsets: Tensor | None, out: int, stride: int) -> None:
        """Add the next lookup: `Bags` of `kernel.c`."""
        ids, weights = self._rows.of(feature, lookup.table), self._rows.bags.weights
        if not isinstance(table, Tensor):
            ids = self._bring(table, ids)
        told = weights[feature].data_ptr() if lookup.weighted and weights is not None else 0
        self.asked.extend((ids.data_ptr(), 0 if offsets is None else offsets.data_ptr(), told, out, stride))
        self.num_ids += ids.numel()
        self._number += 1

    def _bring(self, table: TableRows, ids: Tensor) -> Tensor:
        """Have the rows of some ids in memory, and where they are there."""
        held, places = rows_needed(table, ids)
        if not self._kept:
            self.described = type(self.described).from_buffer_copy(self.described)
        self.described[self._number].point_to(held)
        self._kept += [held, places]
        return places


if __name__ == "__main__":
    sys.exit(KERNEL.main())
