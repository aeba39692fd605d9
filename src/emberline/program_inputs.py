"""What an artifact's programs take: one list, from the schema, that exporter, engine and every program format go by.

Letters: B rows, P width of the pooled lookups, D width of the dense features that are no sequences, N steps of all rows, L steps of the longest.

    # an input           dtype    dims                what it holds
    pooled               float32  B, P                the pooled lookups side by side
    dense                float32  B, D                the dense features that are no sequences side by side
    steps.<key>          float32  N.<stream>, width   a lookup that keeps steps: each step's vector, row after row
    steps.<feature>      float32  N.<stream>, width   a dense sequence: each step's numbers, row after row
    lengths.<stream>     int64    B                   steps of each row; they add up to N.<stream>
    positions.<stream>   int64    L.<stream>          0, 1, ... L - 1; L is at least each row's number of steps. Only of streams that are padded
"""

from dataclasses import dataclass
from typing import Literal

from emberline.schema import ModelSchema

LOOKUP_PREFIX = "lookup."
"""A group tensor's name among a model's answers is `lookup.<group>`."""
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
        *(ProgramInput(name=f"steps.{key}", dtype="float32", dims=(f"N.{stream}", dim)) for key, stream, dim in step_inputs(schema)),
        *(ProgramInput(name=f"lengths.{stream.name}", dtype="int64", dims=(ROWS,)) for stream in schema.streams),
        *(ProgramInput(name=f"positions.{stream.name}", dtype="int64", dims=(f"L.{stream.name}",)) for stream in schema.streams if stream.padded),
    )


def step_inputs(schema: ModelSchema) -> list[tuple[str, str, int]]:
    """What has steps: the key of each lookup that keeps them and the name of each dense sequence that a group reads, its stream, and its width."""
    streams = {feature: stream.name for stream in schema.streams for feature in stream.features}
    looked_up = [(lookup.key, streams[lookup.feature], lookup.dim) for lookup in schema.sequence_lookups]
    return looked_up + [(feature.name, streams[feature.name], feature.value_dim) for feature in schema.dense_sequences if feature.name in streams]


def full_inputs(schema: ModelSchema) -> tuple[ProgramInput, ...]:
    """The inputs of a `full` program, in the order that it takes them: rows of tables where others take what was looked up.

    # an input           dtype    dims                what it holds
    rows.<key>           int64    N.<key>             a pooled lookup: the row of each id, bag after bag
    lengths.<key>        int64    B                   ids of each bag
    weights.<key>        float32  N.<key>             the weight of each id, of weighted lookups
    step_rows.<key>      int64    M.<key>             a lookup that keeps steps: the row of each id, step after step
    step_lengths.<key>   int64    S.<stream>          ids of each step
    step_weights.<key>   float32  M.<key>             the weight of each id, of weighted lookups
    dense                float32  B, D                the dense features that are no sequences side by side
    steps.<feature>      float32  S.<stream>, width   a dense sequence: each step's numbers, row after row
    step_counts.<stream> int64    B                   steps of each row
    positions.<stream>   int64    L.<stream>          0, 1, ... L - 1; L is at least each row's number of steps. Only of streams that are padded
    """
    found: list[ProgramInput] = []
    for lookup in schema.lookups:
        found.append(ProgramInput(name=f"rows.{lookup.key}", dtype="int64", dims=(f"N.{lookup.key}",)))
        found.append(ProgramInput(name=f"lengths.{lookup.key}", dtype="int64", dims=(ROWS,)))
        if lookup.weighted:
            found.append(ProgramInput(name=f"weights.{lookup.key}", dtype="float32", dims=(f"N.{lookup.key}",)))
    keys = {lookup.key: lookup for lookup in schema.sequence_lookups}
    steps = step_inputs(schema)
    for key, stream, _ in steps:
        if key in keys:
            found.append(ProgramInput(name=f"step_rows.{key}", dtype="int64", dims=(f"M.{key}",)))
            found.append(ProgramInput(name=f"step_lengths.{key}", dtype="int64", dims=(f"S.{stream}",)))
            if keys[key].weighted:
                found.append(ProgramInput(name=f"step_weights.{key}", dtype="float32", dims=(f"M.{key}",)))
    found.append(ProgramInput(name="dense", dtype="float32", dims=(ROWS, schema.dense_dim)))
    found += [ProgramInput(name=f"steps.{key}", dtype="float32", dims=(f"S.{stream}", dim)) for key, stream, dim in steps if key not in keys]
    found += [ProgramInput(name=f"step_counts.{stream.name}", dtype="int64", dims=(ROWS,)) for stream in schema.streams]
    found += [ProgramInput(name=f"positions.{stream.name}", dtype="int64", dims=(f"L.{stream.name}",)) for stream in schema.streams if stream.padded]
    return tuple(found)


def program_outputs(schema: ModelSchema, role: str) -> tuple[str, ...]:
    """The names of what a program of that role gives, in order: `groups` or, of all others, the model's outputs."""
    if role == "groups":
        return tuple(LOOKUP_PREFIX + group.name for group in schema.groups)
    return tuple(output.name for output in schema.outputs)
