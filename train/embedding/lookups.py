"""From batches to what was looked up: checked, all sides and data groups in one read of each table.

Letters: B rows of the largest data group, d width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import LookupSpec
from emberline.train.data.batch import Asked, Checked
from emberline.train.data.rows import item_places
from emberline.train.embedding.columns import SequenceColumns
from emberline.train.embedding.inputs import BatchReader, Steps, check_alike
from emberline.train.embedding.jagged import pick, side_by_side
from emberline.train.embedding.layout import SequenceParts
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.sequence import SequenceTables
from emberline.train.embedding.spread import UNTILED, Spread

if TYPE_CHECKING:
    from emberline.train.data import Batch


class Source(NamedTuple):
    """A batch whose rows were found right.

    Args:
        reader: who reads it.
        batch: the batch.
        rows: the number of rows of each data group.
        checked: of a batch that went through `check_source`, what that found; no value is looked at again. None: look.
    """

    reader: BatchReader
    batch: "Batch"
    rows: dict[str, int]
    checked: Checked | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the largest data group."""
        return max(self.rows.values(), default=0)


class Tables(NamedTuple):
    """The modules that hold the tables."""

    pooled: PooledTables
    sequence: SequenceTables


class Looked(NamedTuple):
    """What was looked up and read.

    Args:
        vectors: each pooled lookup's vectors [B, d] by key; those of fewer rows end with zeros.
        numbers: each dense feature's numbers [B, value_dim] by name, alike, where a source has fewer rows than the largest.
        sequences: the steps, each data group and side with its own number of rows.
        rows: the number of rows of each feature that is read.
        spread: how users reach their rows.
    """

    vectors: dict[str, Tensor]
    numbers: dict[str, Tensor]
    sequences: SequenceParts
    rows: dict[str, int]
    spread: Spread

    def own_rows(self, lookups: Sequence[LookupSpec]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Vectors and numbers, each with no more rows than its feature has; features that nobody reads are left out of the numbers."""
        vectors = {lookup.key: self.vectors[lookup.key][: self.rows[lookup.feature]] for lookup in lookups}
        return vectors, {name: values[: self.rows[name]] for name, values in self.numbers.items() if name in self.rows}


def look_up(sources: Sequence[Source], tables: Tables, groups: Sequence[SequenceColumns], spread: Spread = UNTILED) -> Looked:
    """Read batches whose features are different ones.

    Args:
        sources: the batches.
        tables: each is read once.
        groups: the groups of sequences, nested ones included.
        spread: how users reach their rows; its places are found here.

    Raises:
        DataError: as `EmbeddingGroup.forward`.
    """
    rows = {name: count for source in sources for name, count in source.reader.rows_by_feature(source.rows).items()}
    num_rows = max((source.num_rows for source in sources), default=0)
    asked, steps = _asked(sources, tables, num_rows), _steps(sources)
    more, vectors = tables.sequence(asked, num_rows, steps.sizes)
    pooled, values = tables.pooled(asked, num_rows) | more, steps.numbers | vectors
    numbers: dict[str, Tensor] = {}
    for source in sources:
        dense = source.reader.dense(source.batch, source.num_rows)
        numbers.update(columns(dense, [(feature.name, feature.value_dim) for feature in source.reader.dense_features]))
    longest = {stream: length for source in sources if source.checked is not None for stream, length in source.checked.longest.items()}
    parts, places = _sequence_parts(values, steps.lengths, groups, spread, longest)
    return Looked(pooled, numbers, parts, rows, replace(spread, places=places) if places else spread)


def check_source(source: Source, tables: Tables, groups: Sequence[SequenceColumns], by: object) -> Checked:
    """Check what `look_up` checks of an untiled batch, without reading a table.

    Returns:
        what was found, with the mark `by`. The batch itself remembers on the host how many ids each feature has.

    Raises:
        DataError: as `EmbeddingGroup.forward`.
    """
    for _, kjt in source.reader.ids(source.batch):
        kjt.length_per_key()  # remembers them
    asked, steps = _asked([source], tables, source.num_rows), _steps([source])
    source.reader.dense(source.batch, source.num_rows)
    return Checked(by, {stream: _longest(steps.lengths[stream]) for stream in _padded(groups)}, asked)


def _sequence_parts(
    values: dict[str, Tensor], lengths: Mapping[str, Tensor], groups: Sequence[SequenceColumns], spread: Spread, longest: Mapping[str, int]
) -> tuple[SequenceParts, dict[str, Tensor]]:
    """The steps as layouts take them, and the users' steps of each step of the rows, for sequences that are left without padding."""
    streams = {group.name: {run.per_user: run.stream for run in spread.runs(group.sequence)} for group in groups}
    _check_sides(groups, streams, lengths, spread)
    own = {stream: lengths[stream] for found in streams.values() for stream in found.values()}
    found = {stream: longest[stream] if stream in longest else _longest(own[stream]) for stream in _padded(groups)}
    positions = {stream: torch.arange(length, device=own[stream].device) for stream, length in found.items()}
    jagged = dict.fromkeys(streams[group.name][True] for group in groups if group.is_jagged and True in streams[group.name])
    return SequenceParts(values, own, positions), {stream: _places(own[stream], spread) for stream in jagged}


def _asked(sources: Sequence[Source], tables: Tables, num_rows: int) -> Mapping[str, Asked]:
    """What each collection is asked for."""
    if len(sources) == 1 and sources[0].checked is not None:
        return sources[0].checked.asked
    ids = _ids(sources, num_rows)
    return {} if ids is None else tables.sequence.ask(ids) | tables.pooled.ask(ids)


def _ids(sources: Sequence[Source], num_rows: int) -> KeyedJaggedTensor | None:
    """The ids of all features that are read, in one batch of `num_rows`; None where there are none."""
    found = [part for source in sources for part in source.reader.ids(source.batch)]
    parts = [kjt if len(found) == 1 else pick(kjt, names, names) for names, kjt in found]
    return side_by_side(parts, num_rows) if parts else None


def _steps(sources: Sequence[Source]) -> Steps:
    found = [source.reader.steps(source.batch, checked=source.checked is not None) for source in sources]
    return Steps(*({name: value for steps in found for name, value in getattr(steps, field.name).items()} for field in fields(Steps)))


def _check_sides(groups: Sequence[SequenceColumns], streams: Mapping[str, Mapping[bool, str]], lengths: Mapping[str, Tensor], spread: Spread) -> None:
    """Sequences of both sides in one group must have the same number of steps in each row."""
    for group in groups:
        found = streams[group.name]
        if len(found) == 2:
            check_alike([group], {found[True]: spread.in_rows(lengths[found[True]], 1), found[False]: lengths[found[False]]})


def _padded(groups: Sequence[SequenceColumns]) -> list[str]:
    """The streams of padded groups, each once."""
    return list(dict.fromkeys(group.stream for group in groups if group.stream is not None and not group.is_jagged))


def _longest(lengths: Tensor) -> int:
    """Steps of the longest row; 0 of no rows."""
    return int(lengths.max()) if lengths.numel() else 0


def _places(lengths: Tensor, spread: Spread) -> Tensor:
    """Which of the users' steps each step of the rows is, int64 [N]."""
    rows = lengths.new_zeros(spread.num_rows, dtype=torch.int64) if spread.rows is None else spread.rows
    return item_places(lengths, rows)


def columns(matrix: Tensor, parts: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """A matrix [B, sum of widths] cut into named parts."""
    if not parts:
        return {}
    found = torch.split(matrix, [width for _, width in parts], dim=1)
    return {name: found[place] for place, (name, _) in enumerate(parts)}  # by place: a symbolic trace cannot iterate
