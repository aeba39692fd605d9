"""The work that `lookup.py` measures: tables, batches, and the forms that look them up; and a model of 26 tables for small calls.

Letters: T tables, B rows, N ids of a batch.
"""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from torch import Tensor

from benchmarks._serving_model import write_rest
from emberline.compiled import library_folders, open_library
from emberline.manifest import TableEntry
from emberline.memory import aligned_memory
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, GroupKind, GroupSpec, LookupSpec, ModelSchema, Pooling, TableSpec
from emberline.serving import PackedRequest
from emberline.serving.lookup import BagRows, Bags, RowFinder, choose_lookup
from emberline.serving.quantized import STORED_DTYPES, encode_rows, stored_width
from emberline.serving.request import CheckedRequest, RequestValidator
from emberline.serving.row_layout import lines_of, pitch_of
from emberline.serving.tables import write_table

PROBE = Path(__file__).with_name("_lines.c")
AHEAD = (8, 16, 32)
MOST_THREADS = 64
CPU = torch.device("cpu")
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tables and batches of one kind.

    Args:
        dtype: the number type of the tables.
        dim: numbers of a row.
        rows: of each table.
        tables: T; each has a feature of its own.
        batch: B.
        ids_per_bag: of every bag.
    """

    dtype: str
    dim: int
    rows: int
    tables: int = 4
    batch: int = 512
    ids_per_bag: int = 20

    @property
    def row_bytes(self) -> int:
        """Of a stored row."""
        return stored_width(self.dim, self.dtype) * STORED_DTYPES[self.dtype].itemsize

    @property
    def pitch(self) -> int:
        """Bytes from a row to the next in an engine's private tables."""
        return pitch_of(self.row_bytes, STORED_DTYPES[self.dtype].itemsize)

    @property
    def num_ids(self) -> int:
        """N."""
        return self.tables * self.batch * self.ids_per_bag

    @property
    def lines(self) -> float:
        """Lines of 64 bytes that a row touches on average."""
        return lines_of(self.row_bytes, self.pitch)

    @property
    def read_bytes(self) -> int:
        """Of the rows of a batch."""
        return self.num_ids * self.row_bytes


def schema_of(names: Sequence[str], rows: int, dim: int) -> ModelSchema:
    """Features that each read a table of their own by sum."""
    return ModelSchema(
        features=tuple(FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=BucketEncoder(rows=rows)) for name in names),
        tables=tuple(TableSpec(name=name, rows=rows, dim=dim) for name in names),
        lookups=tuple(LookupSpec(key=name, feature=name, table=name, pooling=Pooling.SUM, dim=dim) for name in names),
        groups=(GroupSpec(name="deep", kind=GroupKind.DEEP, dim=dim * len(names)),),
    )


def make_tables(case: Case) -> dict[str, Tensor]:
    """Random rows, on huge pages where the system has some, as far apart as an engine has them."""
    found, draw = {}, torch.Generator().manual_seed(1)
    for number in range(case.tables):
        table = _room_for(case, case.pitch)
        for start in range(0, case.rows, _BLOCK_ROWS):
            part = table[start : start + _BLOCK_ROWS]
            part.copy_(encode_rows(torch.randn(len(part), case.dim, generator=draw), case.dtype))
        found[f"t{number}"] = table
    return found


def _room_for(case: Case, pitch: int) -> Tensor:
    memory = torch.frombuffer(aligned_memory(case.rows * pitch), dtype=STORED_DTYPES[case.dtype])
    return memory.view(case.rows, -1)[:, : stored_width(case.dim, case.dtype)]


def make_batches(case: Case, num: int) -> list[CheckedRequest]:
    """Batches of uniform ids."""
    draw = np.random.default_rng(7)
    lengths = np.full(case.tables * case.batch, case.ids_per_bag, np.int32)
    validator = RequestValidator(schema_of([f"t{number}" for number in range(case.tables)], case.rows, case.dim))
    return [validator.check(PackedRequest(draw.integers(0, case.rows, case.num_ids), lengths)) for _ in range(num)]


@dataclass(frozen=True, eq=False)
class Form:
    """One way to look up.

    Args:
        name: as the table shows it.
        look_up: the number of a batch -> float32 [B, T * dim], or what else it makes.
        answers: whether that is so.
    """

    name: str
    look_up: Callable[[int], object]
    answers: bool = True


def make_forms(case: Case, tables: dict[str, Tensor], batches: Sequence[CheckedRequest]) -> list[Form]:
    """Ours, by the kernel and by torch; fbgemm's; a plain gather of the same rows; and a loop that only reads their lines."""
    schema = schema_of(list(tables), case.rows, case.dim)
    cut = [RowFinder(schema, {})(Bags.cut(batch, case.tables, CPU)) for batch in batches]
    types = dict.fromkeys(tables, case.dtype)
    kernel, plain = (choose_lookup(schema, tables, types, CPU, name) for name in ("native", "torch"))
    return [
        Form("emberline, kernel", lambda number: kernel.pooled(cut[number])),
        *([_side_by_side(case, tables, cut)] if case.pitch > case.row_bytes else []),
        Form("emberline, torch", lambda number: plain.pooled(cut[number])),
        _fbgemm(case, tables, batches),
        _gather(case, tables, cut),
        *_probes(case, tables, cut),
    ]


def _side_by_side(case: Case, tables: dict[str, Tensor], cut: Sequence[BagRows]) -> Form:
    """Ours, with nothing between the rows."""
    dense = {name: _room_for(case, case.row_bytes).copy_(table) for name, table in tables.items()}
    kernel = choose_lookup(schema_of(list(tables), case.rows, case.dim), dense, dict.fromkeys(tables, case.dtype), CPU, "native")
    return Form("the kernel, rows side by side", lambda number: kernel.pooled(cut[number]))


def _fbgemm(case: Case, tables: dict[str, Tensor], batches: Sequence[CheckedRequest]) -> Form:
    """Fbgemm's table-batched kernel, with the same rows in the memory that it takes by itself."""
    kind = SparseType[case.dtype.upper()]
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        [(name, case.rows, case.dim, kind, EmbeddingLocation.HOST) for name in tables],
        device=CPU,
        bounds_check_mode=BoundsCheckMode.NONE,
        output_dtype=SparseType.FP32,
    )
    module.initialize_weights()
    for (held, _), table in zip(module.split_embedding_weights(split_scale_shifts=False), tables.values(), strict=True):
        held.copy_(table.view(torch.uint8)[:, : held.shape[1]])
    ids = [torch.from_numpy(batch.ids) for batch in batches]
    offsets = torch.arange(0, case.num_ids + 1, case.ids_per_bag)
    return Form("fbgemm, its own memory", lambda number: module(ids[number], offsets))


def _gather(case: Case, tables: dict[str, Tensor], cut: Sequence[BagRows]) -> Form:
    """The rows of all ids copied one after the other, table by table, and not pooled."""
    width = next(iter(tables.values())).shape[1]
    found = [torch.empty(case.batch * case.ids_per_bag, width, dtype=STORED_DTYPES[case.dtype]) for _ in tables]

    def gather(number: int) -> None:
        for table, ids, out in zip(tables.values(), cut[number].bags.ids, found, strict=True):
            torch.index_select(table, 0, ids, out=out)

    return Form("index_select of the rows", gather, answers=False)


def _probes(case: Case, tables: dict[str, Tensor], cut: Sequence[BagRows]) -> list[Form]:
    """Loops that read the first number of each line of 64 bytes of the rows, asking for another number of lines ahead, on as many threads as torch
    has: the floor.
    """
    library, _ = open_library(PROBE, library_folders(PROBE))
    library.touch.argtypes, library.touch.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    places = [[_lines_of(case, ids) for ids in rows.bags.ids] for rows in cut]
    pool = ThreadPoolExecutor(MOST_THREADS)

    def probe(ahead: int) -> Callable[[int], object]:
        def touch(part: tuple[Tensor, Tensor]) -> int:
            return int(library.touch(part[1].data_ptr(), part[1].numel(), part[0].data_ptr(), ahead))

        def share(number: int, part: int, of: int) -> int:
            pairs = zip(tables.values(), places[number], strict=True)
            return sum(touch((table, lines.tensor_split(of)[part])) for table, lines in pairs)

        def touch_all(number: int) -> int:
            count = torch.get_num_threads()
            if count == 1:
                return share(number, 0, 1)
            return sum(pool.map(lambda part: share(number, part, count), range(count)))

        return touch_all

    return [Form("reading their lines", probe(ahead), answers=False) for ahead in AHEAD]


def _lines_of(case: Case, ids: Tensor) -> Tensor:
    """The lines that rows lie in, those of a row one after the other."""
    first, last = ids * case.pitch // 64, (ids * case.pitch + case.row_bytes - 1) // 64
    counts = last - first + 1
    ends = counts.cumsum(0)
    return torch.repeat_interleave(first - (ends - counts), counts) + torch.arange(int(ends[-1]))


def write_small_model(root: Path, tables: int, rows: int, dim: int) -> None:
    """An artifact whose one group is what was looked up."""
    schema = schema_of([f"t{number}" for number in range(tables)], rows, dim)
    for folder in ("tables", "programs"):
        (root / folder).mkdir(parents=True)
    values = {table.name: torch.randn(rows, dim, generator=torch.Generator().manual_seed(number)) for number, table in enumerate(schema.tables)}
    entries = tuple(TableEntry(table=name, file=f"tables/{name}.safetensors", dtype="fp32") for name in values)
    for entry in entries:
        write_table(root / entry.file, values[entry.table])
    ids = torch.arange(tables) % rows
    answer = torch.cat([values[f"t{number}"][number % rows] for number in range(tables)])[None]
    golden = {"ids": ids, "lengths": torch.ones(tables, dtype=torch.int32), "group.deep": answer}
    write_rest(root, "lookups", schema, entries, golden, {})
