"""What an artifact's programs take: one list, from the schema, that exporter, engine and every program format go by.

Letters: B rows, P width of the pooled lookups, D width of the dense features that are no sequences.
"""

from dataclasses import dataclass
from typing import Literal

from emberline.schema import ModelSchema

ROWS = "B"
"""The dimension that every answer begins with: rows of the batch."""


@dataclass(frozen=True, kw_only=True)
class ProgramInput:
    """One input of a program.

    Args:
        name: unique among a program's inputs.
        dtype: of its numbers.
        dims: a number for each fixed dimension, a name for each that may be any number from 0 up; equal names are equal numbers.
    """

    name: str
    dtype: Literal["float32", "int64"]
    dims: tuple[str | int, ...]


def program_inputs(schema: ModelSchema) -> tuple[ProgramInput, ...]:
    """The inputs of an `outputs` or a `groups` program, in the order that it takes them."""
    return (
        ProgramInput(name="pooled", dtype="float32", dims=(ROWS, schema.pooled_dim)),
        ProgramInput(name="dense", dtype="float32", dims=(ROWS, schema.dense_dim)),
    )
