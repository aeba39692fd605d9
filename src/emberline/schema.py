"""What a model is made of, as plain frozen data: features, tables, lookups, groups, outputs.

Training builds these from a config, an artifact's manifest carries them as JSON, and serving reads them back: no layer
behind the config sees a proto. `asdict` turns all of it into JSON, and `emberline.plain` that back.

Letters used in shapes: B rows of a batch, N ids of a batch, F sparse features, P summed width of all pooled lookups, D summed width of all dense
features that are no sequences, L steps of the longest row, S steps of all rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from emberline.plain import from_plain

INT64_MAX = 2**63 - 1
RAW_ID_SPACE = 2**63 - 1
"""Hashed raw ids lie in [0, RAW_ID_SPACE): never the largest int64, which TorchRec uses to mark free rows."""


class FeatureKind(StrEnum):
    """Whether a feature is a list of ids or a vector of floats for each row."""

    SPARSE = "sparse"
    DENSE = "dense"


class Pooling(StrEnum):
    """How the vectors of one bag become one: weighted sum, or weighted sum over the sum of weights."""

    SUM = "sum"
    MEAN = "mean"


class TableKind(StrEnum):
    """Where a table's rows come from: the id itself, zero-collision hashing, or a growing table."""

    STATIC = "static"
    ZCH = "zch"
    DYNAMIC = "dynamic"


class UnknownIds(StrEnum):
    """What an id reads that has no row of its own in a ZCH or dynamic table.

    The trained fallback row of its part of the ids, of a dynamic table its default vector; zeros; the mean of the rows that have an owner; or
    nothing: the request is refused. Zeros and the mean are read as any row is: they count in the divisor of a mean, and are multiplied by the id's
    weight.
    """

    FALLBACK = "fallback"
    ZEROS = "zeros"
    MEAN = "mean"
    ERROR = "error"


class GroupKind(StrEnum):
    """The kind of a feature group, under the names that configs use."""

    DEEP = "DEEP"
    WIDE = "WIDE"
    SEQUENCE = "SEQUENCE"
    JAGGED_SEQUENCE = "JAGGED_SEQUENCE"


class Keep(StrEnum):
    """Which steps of a sequence that is too long are kept: the newest are the last ones, the oldest the first ones."""

    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, kw_only=True)
class Normalizer:
    """A fixed transform of a number before it is used or bucketised.

    Args:
        method: `log10` (log10(max(x, threshold)), or `fill` below it), `zscore` ((x - mean) / std) or `minmax` ((x - low) / (high - low)).
        parameters: the method's numbers by name, sorted by name.
    """

    method: str
    parameters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class HashEncoder:
    """Any string or integer -> XXH64 of its text, modulo `rows`. An integer hashes as its decimal text."""

    rows: int
    type: str = "hash"


@dataclass(frozen=True, kw_only=True)
class BucketEncoder:
    """An integer (or its decimal text) in [0, rows) is the row itself; others go to `oov_row`, or are refused where it is None."""

    rows: int
    oov_row: int | None = None
    type: str = "bucket"


@dataclass(frozen=True, kw_only=True)
class VocabEncoder:
    """A word (an integer: its decimal text) -> the row listed for it; others go to `oov_row`."""

    words: tuple[str, ...]
    word_rows: tuple[int, ...]
    oov_row: int
    rows: int
    type: str = "vocab"


@dataclass(frozen=True, kw_only=True)
class RawIdEncoder:
    """For ZCH and dynamic tables: an int64 (or its decimal text) is kept whole; other text -> XXH64 modulo RAW_ID_SPACE."""

    type: str = "raw_id"


@dataclass(frozen=True, kw_only=True)
class BoundaryEncoder:
    """A number -> how many boundaries are at or below it, both as float32, after the normaliser."""

    boundaries: tuple[float, ...]
    normalizer: Normalizer | None = None
    type: str = "boundary"

    @property
    def rows(self) -> int:
        """Rows of the table that holds one vector a bucket."""
        return len(self.boundaries) + 1


@dataclass(frozen=True, kw_only=True)
class CrossEncoder:
    """One id for each combination of the columns' values: XXH64 over the 8-byte XXH64 of each token, modulo `rows` (0: modulo RAW_ID_SPACE)."""

    rows: int = 0
    type: str = "cross"


@dataclass(frozen=True, kw_only=True)
class NumericEncoder:
    """A number, or `value_dim` of them, as float32, after the normaliser."""

    normalizer: Normalizer | None = None
    type: str = "numeric"


ValueEncoder = HashEncoder | BucketEncoder | VocabEncoder | RawIdEncoder | BoundaryEncoder | NumericEncoder
"""What turns one value into an id or a number, without looking at anything else."""


class Combiner(StrEnum):
    """How the numbers that a row's keys find become one; `none` keeps each of them."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT = "count"


@dataclass(frozen=True, kw_only=True)
class ExprEncoder:
    """A number computed from the columns, each a number or missing, by an expression such as `sigmoid(pv / (1 + click))`.

    `emberline.encoding.expression` has the language. A value that is missing, or no finite float32, reads the feature's default.

    Args:
        expression: the text; it is parsed once.
        variables: what the expression calls the columns, one name for each, in their order; it uses all of them.
        inner: what the number becomes.
        fill_missing: the number that a missing variable reads; None makes the result missing.
    """

    expression: str
    variables: tuple[str, ...]
    inner: BoundaryEncoder | NumericEncoder
    fill_missing: float | None = None
    type: str = "expr"


@dataclass(frozen=True, kw_only=True)
class LookupEncoder:
    """The values that a map (first column) holds for the keys (second column). Keys that the map does not have find nothing.

    Maps are objects or Arrow maps, lists of `key:value` texts, or one text of those, split at `map_separator`. Of equal keys the last one counts.

    Args:
        inner: what the values become. Numbers and boundaries read them as numbers, all others as text.
        combiner: for numbers.
        with_key: the value is `key_value`, for ids only.
        map_separator: between the entries of a text.
        value_separator: splits a found value into several; empty leaves it whole.
    """

    inner: ValueEncoder
    combiner: Combiner = Combiner.NONE
    with_key: bool = False
    map_separator: str = "\x1d"
    value_separator: str = ""
    type: str = "lookup"


@dataclass(frozen=True, kw_only=True)
class MatchEncoder:
    """The values that a map of maps (first column) holds for pairs of an outer and an inner key.

    Maps are objects of objects, Arrow maps of maps, or text such as `outer^inner:value,inner2:value|outer2^inner:value`, or a list of texts
    of one outer key each. Of equal pairs the last one counts. The other columns are those of the keys that are not `any`, the outer one first.

    Args:
        inner: what the values become. Numbers and boundaries read them as numbers, all others as text.
        combiner: for numbers.
        any_outer: there is no column of outer keys: all match.
        any_inner: there is no column of inner keys: all match.
        with_outer: the value has the outer key and `_` before it, for ids only.
        with_inner: the value has the inner key and `_` before it, for ids only.
    """

    inner: ValueEncoder
    combiner: Combiner = Combiner.NONE
    any_outer: bool = False
    any_inner: bool = False
    with_outer: bool = False
    with_inner: bool = False
    type: str = "match"


Encoder = ValueEncoder | CrossEncoder | ExprEncoder | LookupEncoder | MatchEncoder


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One feature: which raw columns it reads and how they become ids or floats.

    Args:
        name: unique in a model.
        kind: sparse (ids) or dense (floats).
        columns: the raw columns it reads; one, or several for what is computed from several.
        side: who the feature belongs to: `user`; `item` or `context`, also where only a part of what it is computed from is theirs, or where
            items that are drawn in training have it; or empty, where that is not known.
        encoder: raw value -> id or float.
        value_dim: dense: floats a row. Sparse: most ids a row, 0 for any number. In a sequence: of each step.
        weighted: each id comes with a float32 weight (`id:weight` text, a map, or a second tensor).
        separator: splits one text into several values.
        default: the text used where a row has no value; None leaves a sparse bag empty (dense: 0). In a sequence it stands for each step
            that has no value; a row without steps stays without, or, where `encoded`, reads the default as its steps.
        encoded: the data's ids are rows already (sparse) and are only checked; text is parsed as integers.
        sequence: each row has a list of steps; each step has what a row of another feature has.
        sequence_length: most steps a row; 0 for any number.
        keep: which steps of a longer row are kept.
        step_separator: splits one text into steps; `separator` then splits a step into its values.
        row_columns: those of `columns` that have no steps: their value holds for all steps of a row.
        unknown_ids: what an artifact answers for ids that have no row of their own; training knows only `fallback`.
    """

    name: str
    kind: FeatureKind
    columns: tuple[str, ...]
    encoder: Encoder
    side: str = ""
    value_dim: int = 0
    weighted: bool = False
    separator: str = "\x03"
    default: str | None = None
    encoded: bool = False
    sequence: bool = False
    sequence_length: int = 0
    keep: Keep = Keep.NEWEST
    step_separator: str = ";"
    row_columns: tuple[str, ...] = ()
    unknown_ids: UnknownIds = UnknownIds.FALLBACK

    @property
    def is_per_user(self) -> bool:
        """Whether a tiled request has it once for each user, and not for each row."""
        return self.side == "user"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `asdict`; what an older manifest does not have keeps its default. Raises ValueError, as `from_plain`."""
        return from_plain(cls, data)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """One physical embedding table: `rows` vectors of `dim` numbers of type `dtype` (fp32, fp16, bf16)."""

    name: str
    rows: int
    dim: int
    kind: TableKind = TableKind.STATIC
    dtype: str = "fp32"


@dataclass(frozen=True, kw_only=True)
class LookupSpec:
    """One read of a table: the bags of `feature` against `table`. A bag is a row's ids, or, where the steps of a sequence are kept, a step's.

    Args:
        key: unique: the feature's name, or `feature@table` where the feature reads several tables.
        feature: a sparse feature's name.
        table: a table's name.
        pooling: sum or mean of the bag; with weights, sum of w*e, over the sum of w for the mean (0 where that is 0).
        dim: the table's width.
        weighted: whether the feature's weights apply.
        unknown_row: the row of the table that ids without one of their own read; None: the trained fallback row of their part of the ids.
    """

    key: str
    feature: str
    table: str
    pooling: Pooling
    dim: int
    weighted: bool = False
    unknown_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """One tensor that the embedding system hands to the model.

    | tensor | kind | `dim` | `stream` | shape |
    |---|---|---|---|---|
    | `G` | DEEP, WIDE | its width | | float32 [B, dim] |
    | `G.query` | SEQUENCE, JAGGED_SEQUENCE | its width | | float32 [B, dim] |
    | `G.sequence` | SEQUENCE | its width | yes | float32 [B, L, dim], rows filled up with zeros |
    | `G.sequence` | JAGGED_SEQUENCE | its width | yes | float32 [S, dim] |
    | `G.sequence_length` | SEQUENCE, JAGGED_SEQUENCE | 0 | yes | int64 [B] |

    Args:
        name: unique.
        kind: of its group.
        dim: the width of the last dimension; 0 for numbers of steps, which have none.
        stream: the name of the `StreamSpec` whose steps it has or counts; empty for others.
    """

    name: str
    kind: GroupKind
    dim: int
    stream: str = ""

    @property
    def is_lengths(self) -> bool:
        """Whether it counts each row's steps."""
        return bool(self.stream) and self.dim == 0

    @property
    def is_padded(self) -> bool:
        """Whether it has the steps of each row, rows filled up."""
        return bool(self.stream) and self.dim > 0 and self.kind is GroupKind.SEQUENCE

    @property
    def is_jagged(self) -> bool:
        """Whether it has the steps of all rows, one after the other."""
        return bool(self.stream) and self.dim > 0 and self.kind is GroupKind.JAGGED_SEQUENCE


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """Sequences that must have equally many steps in each row, as groups put them side by side.

    Args:
        features: their names; the first one names the stream.
        padded: whether some group fills rows up to the longest.
    """

    features: tuple[str, ...]
    padded: bool

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.features[0]


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """One named output of the model: shape [B] where `width` is 0, else [B, width]; float32."""

    name: str
    width: int = 0


@dataclass(frozen=True, kw_only=True)
class TowerSpec:
    """A part of the model that answers by itself: the features of some groups lead to one output, and no others do.

    Args:
        name: such as `user` or `item`.
        groups: names of the groups that it reads.
        output: the output that it gives.
    """

    name: str
    groups: tuple[str, ...]
    output: str


@dataclass(frozen=True, kw_only=True)
class ModelSchema:
    """All of a model that a request or an artifact needs to know.

    Args:
        features: every feature, in config order. Requests carry the sparse ones' ids, feature after feature, in this order.
        tables: every table.
        lookups: the pooled reads, in the order of their columns in the `pooled` [B, P] input of the programs.
        groups: the group tensors in config order.
        outputs: the model's outputs in the order that it returns them.
        towers: parts that can answer by themselves.
        group_dtype: fp32, fp16 or bf16: what the group tensors are rounded to. Answers give them as float32 all the same.
        sequence_lookups: the reads that keep the steps of a sequence, each step a bag.
        streams: the sequences that some group keeps the steps of.
    """

    features: tuple[FeatureSpec, ...]
    tables: tuple[TableSpec, ...]
    lookups: tuple[LookupSpec, ...]
    groups: tuple[GroupSpec, ...]
    outputs: tuple[OutputSpec, ...] = field(default=())
    towers: tuple[TowerSpec, ...] = ()
    group_dtype: str = "fp32"
    sequence_lookups: tuple[LookupSpec, ...] = ()
    streams: tuple[StreamSpec, ...] = ()

    @property
    def sparse_features(self) -> tuple[FeatureSpec, ...]:
        """The features whose ids a request carries, sequences among them, in request order."""
        return tuple(feature for feature in self.features if feature.kind is FeatureKind.SPARSE)

    @property
    def dense_features(self) -> tuple[FeatureSpec, ...]:
        """The features whose floats a request carries once a row, in the order of their columns in `dense` [B, D]."""
        return tuple(feature for feature in self.features if feature.kind is FeatureKind.DENSE and not feature.sequence)

    @property
    def sequences(self) -> tuple[FeatureSpec, ...]:
        """The features that have steps, sparse and dense ones, in request order."""
        return tuple(feature for feature in self.features if feature.sequence)

    @property
    def sparse_sequences(self) -> tuple[FeatureSpec, ...]:
        """The features that have ids in steps."""
        return tuple(feature for feature in self.sequences if feature.kind is FeatureKind.SPARSE)

    @property
    def dense_sequences(self) -> tuple[FeatureSpec, ...]:
        """The features that have `value_dim` floats a step."""
        return tuple(feature for feature in self.sequences if feature.kind is FeatureKind.DENSE)

    @property
    def reads(self) -> tuple[LookupSpec, ...]:
        """Every read of a table, pooled ones first. A feature that is read in both ways may have one key for both."""
        return (*self.lookups, *self.sequence_lookups)

    @property
    def dense_dim(self) -> int:
        """D: floats a row."""
        return sum(feature.value_dim for feature in self.dense_features)

    @property
    def pooled_dim(self) -> int:
        """P: summed width of the pooled lookups."""
        return sum(lookup.dim for lookup in self.lookups)

    @property
    def has_weights(self) -> bool:
        """Whether a request may carry a weight for each id."""
        return any(feature.weighted for feature in self.features)

    def part(self, *, per_user: bool) -> "ModelSchema":
        """The features of the users, or all others, with what is read of them, as a model without groups and outputs.

        Tables are all of them. Where a stream has sequences of both sides, each part has those that are its own, under the name of the first.
        """
        names = {feature.name for feature in self.features if feature.is_per_user == per_user}
        streams = [StreamSpec(features=found, padded=stream.padded) for stream in self.streams if (found := _only(stream.features, names))]
        return replace(
            self,
            features=tuple(feature for feature in self.features if feature.name in names),
            lookups=tuple(lookup for lookup in self.lookups if lookup.feature in names),
            sequence_lookups=tuple(lookup for lookup in self.sequence_lookups if lookup.feature in names),
            streams=tuple(streams),
            groups=(),
            outputs=(),
            towers=(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`; what an older one does not have keeps its default. Raises ValueError, as `from_plain`."""
        return from_plain(cls, data)


def _only(names: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
    """Those of some names that are wanted, in order."""
    return tuple(name for name in names if name in wanted)
