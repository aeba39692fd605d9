"""The whole model over rows of tables as one program, with the tables inside; the maps of raw ids stay outside.

Lookups are written with operators that every format has, and with the engine's results: a bag's vectors are added one after the other, an empty bag
is zeros, a weighted mean is over the sum of the weights, taken in float64.

Letters: B bags, N ids, d width of a table.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from emberline.errors import ExportError
from emberline.export.formats.check import ProgramSource
from emberline.export.precision import with_precision
from emberline.export.program_options import ProgramOptions
from emberline.export.table_rows import TableRows
from emberline.program_inputs import full_inputs, program_inputs, program_outputs
from emberline.schema import LookupSpec, ModelSchema, Pooling
from emberline.serving.quantized import BITS, decode_rows
from emberline.train.models import DenseProgram, RecModel

STEM = "full"
GIB = 1 << 30
# What was found to be bearable: AOTInductor compiles tables into its file, which takes minutes a gigabyte; ONNX and TorchScript are in memory several
# times while they are written.
LIMITS = {"torchscript": 4 * GIB, "aoti": GIB, "onnx": 2 * GIB}


class FullProgram(nn.Module):
    """From rows of tables to the model's outputs.

    Args:
        dense: the program behind the lookups.
        schema: the model's description, as the artifact has it.
        tables: rows [rows, dim] of each table, of any float type.
    """

    def __init__(self, dense: nn.Module, schema: ModelSchema, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.dense = dense
        self._names = {name: f"table_{place}" for place, name in enumerate(tables)}
        for name, rows in tables.items():
            self.register_buffer(self._names[name], rows)
        self._schema = schema
        self._inputs = tuple(given.name for given in full_inputs(schema))
        self._wanted = tuple(given.name for given in program_inputs(schema))
        self.train(dense.training)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs that `full_inputs` lists -> the outputs in schema order."""
        given = dict(zip(self._inputs, inputs, strict=True))
        pooled = [self._bags(lookup, given, "rows", "lengths", "weights") for lookup in self._schema.lookups]
        made = {"dense": given["dense"], "pooled": torch.cat(pooled, dim=1) if pooled else given["dense"][:, :0]}
        for lookup in self._schema.sequence_lookups:
            made[f"steps.{lookup.key}"] = self._bags(lookup, given, "step_rows", "step_lengths", "step_weights")
        for stream in self._schema.streams:
            made[f"lengths.{stream.name}"] = given[f"step_counts.{stream.name}"]
        found: tuple[Tensor, ...] = self.dense(*(made[name] if name in made else given[name] for name in self._wanted))
        return found

    def _bags(self, lookup: LookupSpec, given: Mapping[str, Tensor], rows: str, lengths: str, weights: str) -> Tensor:
        """A lookup's bags [B, d]."""
        table = self.get_buffer(self._names[lookup.table])
        sizes = given[f"{lengths}.{lookup.key}"]
        vectors = nn.functional.embedding(given[f"{rows}.{lookup.key}"], table).float()
        bags = bag_of_each(sizes, vectors.shape[0])
        mean = lookup.pooling is Pooling.MEAN
        if lookup.weighted:
            weight = given[f"{weights}.{lookup.key}"]
            vectors = vectors * (_over_their_sum(weight, bags, sizes) if mean else weight).unsqueeze(1)
        start = torch.zeros_like(sizes).unsqueeze(1).expand(-1, lookup.dim).float()
        total = start.scatter_add(0, bags.unsqueeze(1).expand(-1, lookup.dim), vectors)
        return total / sizes.clamp(min=1).unsqueeze(1) if mean and not lookup.weighted else total


def bag_of_each(sizes: Tensor, count: int) -> Tensor:
    """The bag that each of `count` ids is in, int64 [N], of ids of each bag [B] that add up to N."""
    ends = sizes.cumsum(0)
    # One more place, for bags that end behind the last id. How many bags have ended at or before an id is the number of its own.
    marks = torch.zeros(count + 1, dtype=torch.int64, device=sizes.device).scatter_add(0, ends, torch.ones_like(ends))
    return marks.cumsum(0)[:count]


def _over_their_sum(weights: Tensor, bags: Tensor, sizes: Tensor) -> Tensor:
    """Each weight over the sum of its bag's, and 0 where that is 0."""
    sums = torch.zeros_like(sizes).double().scatter_add(0, bags, weights.double())
    factors = torch.where(sums == 0, torch.zeros_like(sums), 1 / sums)
    return (weights.double() * factors[bags]).float()


def full_source(model: RecModel, schema: ModelSchema, tables: Sequence[TableRows], options: ProgramOptions) -> Iterator[tuple[str, ProgramSource]]:
    """The full program's source with the stem of its files, where it is asked for.

    Args:
        model: in eval mode; its tables are not looked at.
        schema: its description, as the artifact has it.
        tables: as the artifact has them.
        options: what is asked for.

    Raises:
        ExportError: the model has no outputs, or its tables are too large for a format.
    """
    if not options.full:
        return
    if not schema.outputs:
        raise ExportError("--full needs a model with outputs: this one has an embedding system only")
    size = sum(table.num_rows * table.spec.dim * (2 if table.number_type in ("fp16", "bf16") else 4) for table in tables)
    for format in options.formats:
        if size > LIMITS[format]:
            message = f"{size / GIB:.1f} GiB of tables are too much for a full program of format {format!r}, which may hold {LIMITS[format] / GIB:g}"
            raise ExportError(f"{message}: leave out --full, and serve the programs that have no tables inside")
    rows = {table.spec.name: _rows(table) for table in tables}
    program = FullProgram(with_precision(DenseProgram(model).eval(), options.precision), schema, rows)
    reads = (("rows", schema.lookups), ("step_rows", schema.sequence_lookups))
    limits = {f"{kind}.{lookup.key}": rows[lookup.table].shape[0] for kind, lookups in reads for lookup in lookups}
    yield STEM, ProgramSource(program, full_inputs(schema), program_outputs(schema, "full"), "full", limits)


def _rows(table: TableRows) -> Tensor:
    """All rows of a table [rows, dim], those of whole numbers decoded."""
    rows = torch.cat(list(table.blocks()))
    return decode_rows(rows, table.spec.dim, table.number_type) if table.number_type in BITS else rows
