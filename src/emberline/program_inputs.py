"""What an artifact's programs take: one list, from the schema, that exporter, engine and every program format go by.

Letters: B rows, U users of a tiled request, P width of the pooled lookups, D width of the dense features that are no sequences, N steps of all rows,
L steps of the longest.

    # an input           dtype    dims                what it holds
    pooled               float32  B, P                the pooled lookups side by side
    dense                float32  B, D                the dense features that are no sequences side by side
    steps.<key>          float32  N.<stream>, width   a lookup that keeps steps: each step's vector, row after row
    steps.<feature>      float32  N.<stream>, width   a dense sequence: each step's numbers, row after row
    lengths.<stream>     int64    B                   steps of each row; they add up to N.<stream>
    positions.<stream>   int64    L.<stream>          0, 1, ... L - 1; L is at least each row's number of steps. Only of streams that are padded
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from emberline.schema import ModelSchema, StreamSpec

LOOKUP_PREFIX = "lookup."
"""A group tensor's name among a model's answers is `lookup.<group>`."""
ROWS = "B"
"""The dimension that every answer begins with: rows of the batch."""
USERS = "U"
"""The dimension of what a tiled program takes once for each user."""
TILED = "tiled_"
"""How the roles of programs for tiled requests begin: `tiled_outputs` gives what `outputs` gives."""


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
    return (*_matrices(schema, ROWS), *_steps(schema), *_lengths(schema, ROWS), *_positions(schema))


@dataclass(frozen=True, kw_only=True)
class TiledStream:
    """A stream as tiled programs take it.

    Args:
        whole: all of it.
        user: the name of the user side's part; None where it has none.
        item: of all others.
        jagged: whether some group has its steps without padding.
    """

    whole: StreamSpec
    user: str | None
    item: str | None
    jagged: bool


def tiled_streams(schema: ModelSchema) -> list[TiledStream]:
    """Every stream, in order."""
    parts = {name: stream.name for per_user in (True, False) for stream in schema.part(per_user=per_user).streams for name in stream.features}
    users = {feature.name for feature in schema.features if feature.is_per_user}
    jagged = {group.stream for group in schema.groups if group.is_jagged}
    found = []
    for stream in schema.streams:
        user, item = (next((parts[name] for name in stream.features if (name in users) == side), None) for side in (True, False))
        found.append(TiledStream(whole=stream, user=user, item=item, jagged=stream.name in jagged))
    return found


def tiled_inputs(schema: ModelSchema) -> tuple[ProgramInput, ...]:
    """The inputs of a program for tiled requests, in the order that it takes them; `ModelSchema.part` says what belongs to whom.

    # an input           dtype    dims                what it holds
    user.pooled          float32  U, P                the pooled lookups of the users' features side by side
    user.dense           float32  U, D                the users' dense features that are no sequences
    pooled               float32  B, P                the pooled lookups of all other features
    dense                float32  B, D                all other dense features that are no sequences
    rows                 int64    B                   the user of each row
    steps.<key>          float32  N.<stream>, width   as of other programs, users' first; a stream is that of one side, under the name of its first
    lengths.<stream>     int64    U or B              steps of each user, or of each row
    positions.<stream>   int64    L.<stream>          as of other programs; a stream with sequences of both sides has one for both
    places.<stream>      int64    M.<stream>          which of the users' steps each step of the rows is, row after row. Only of users' streams that
                                                      stand in a group without padding; M is the rows' N where rows have a part of the stream
    """
    user, item = schema.part(per_user=True), schema.part(per_user=False)
    return (
        *(ProgramInput(name=f"user.{given.name}", dtype=given.dtype, dims=given.dims) for given in _matrices(user, USERS)),
        *_matrices(item, ROWS),
        ProgramInput(name="rows", dtype="int64", dims=(ROWS,)),
        *(given for part in (user, item) for given in _steps(part)),
        *(given for part, rows in ((user, USERS), (item, ROWS)) for given in _lengths(part, rows)),
        *_positions(schema),
        *(
            ProgramInput(name=f"places.{stream.user}", dtype="int64", dims=(f"N.{stream.item}" if stream.item else f"M.{stream.user}",))
            for stream in tiled_streams(schema)
            if stream.jagged and stream.user
        ),
    )


def _matrices(schema: ModelSchema, rows: str) -> Iterator[ProgramInput]:
    yield ProgramInput(name="pooled", dtype="float32", dims=(rows, schema.pooled_dim))
    yield ProgramInput(name="dense", dtype="float32", dims=(rows, schema.dense_dim))


def _steps(schema: ModelSchema) -> Iterator[ProgramInput]:
    for key, stream, dim in step_inputs(schema):
        yield ProgramInput(name=f"steps.{key}", dtype="float32", dims=(f"N.{stream}", dim))


def _lengths(schema: ModelSchema, rows: str) -> Iterator[ProgramInput]:
    for stream in schema.streams:
        yield ProgramInput(name=f"lengths.{stream.name}", dtype="int64", dims=(rows,))


def _positions(schema: ModelSchema) -> Iterator[ProgramInput]:
    for stream in schema.streams:
        if stream.padded:
            yield ProgramInput(name=f"positions.{stream.name}", dtype="int64", dims=(f"L.{stream.name}",))


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
    """The names of what a program of that role gives, in order: `groups`, tiled or not, or, of all others, the model's outputs."""
    if gives_groups(role):
        return tuple(LOOKUP_PREFIX + group.name for group in schema.groups)
    return tuple(output.name for output in schema.outputs)


def gives_groups(role: str) -> bool:
    """Whether programs of that role give the group tensors, and not the model's outputs."""
    return role.removeprefix(TILED) == "groups"
