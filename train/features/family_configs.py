"""What a config says about features that are computed from several raw columns, or by more than a look at one value.

Of how a raw value is computed, only what this version can compute is here: for the rest, data must be encoded already, and `refusals.NO_EFFECT`
tells what then says nothing.
"""

from dataclasses import dataclass

from emberline.schema import Normalizer
from emberline.train.features.configs import (
    CommonFeatureConfig,
    DenseEmbeddingConfig,
    HashOrVocabularyConfig,
    SplitFeatureConfig,
)


@dataclass(frozen=True, kw_only=True)
class ValueFeatureConfig(HashOrVocabularyConfig):
    """A value found or computed: an id where there is a source of rows, else numbers.

    Args:
        num_buckets: rows of a table whose ids are rows already.
        boundaries: ascending; they turn each number into the id of its bucket.
        dense_emb: how numbers become vectors; None passes them through. Only without a source of rows.
        default_value: used for a missing raw value.
        value_dim: ids or numbers a row, or a step; None means 1; 0 means any number of ids, or one number.
    """

    num_buckets: int | None = None
    boundaries: tuple[float, ...] = ()
    dense_emb: DenseEmbeddingConfig | None = None
    default_value: str = "0"


@dataclass(frozen=True, kw_only=True)
class LookupFeatureConfig(ValueFeatureConfig):
    """The value that a map column holds for a key column.

    Args:
        map: the raw column of the map, `side:column`.
        key: the raw column of the key or keys.
        combiner: how the numbers of several keys become one: sum, mean, min, max or count; empty: sum.
        need_discrete: the values are words or ids, not numbers.
        need_key: the key stands before the value, so that one value of two keys is two ids.
        value_separator: splits a value of several.
        normalizer: applied to numbers before everything else.
    """

    map: str = ""
    key: str = ""
    combiner: str = ""
    need_discrete: bool = False
    need_key: bool = False
    value_separator: str = ""
    normalizer: Normalizer | None = None


@dataclass(frozen=True, kw_only=True)
class MatchFeatureConfig(ValueFeatureConfig):
    """The value that a map of maps holds for two key columns. A `vocab_list` has one row more than for other families.

    Args:
        nested_map: the raw column of the map of maps, `side:column`.
        pkey: the raw column of the outer key, or `ALL` for every one.
        skey: the raw column of the inner key, or `ALL` for every one.
        need_discrete: the values are words or ids, not numbers.
        show_pkey: the outer key stands before the value.
        show_skey: the inner key stands before the value.
        normalizer: applied to numbers before everything else.
    """

    nested_map: str = ""
    pkey: str = ""
    skey: str = ""
    need_discrete: bool = False
    show_pkey: bool = False
    show_skey: bool = False
    normalizer: Normalizer | None = None


@dataclass(frozen=True, kw_only=True)
class CustomFeatureConfig(ValueFeatureConfig):
    """A value computed by the user's own operator, before the data comes here.

    Args:
        expression: the raw columns, each as `side:column`.
    """

    expression: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BoolMaskFeatureConfig(HashOrVocabularyConfig):
    """The ids of one column where another is true.

    Args:
        expression: the raw columns, each as `side:column`.
        num_buckets: rows of a table whose ids are rows already.
    """

    expression: tuple[str, ...] = ()
    num_buckets: int | None = None


@dataclass(frozen=True, kw_only=True)
class NumberFeatureConfig(SplitFeatureConfig):
    """A number computed: taken as it is, embedded (AutoDis, MLP), or bucketised by boundaries into an id.

    Args:
        boundaries: ascending; they turn each number into the id of its bucket.
        dense_emb: how numbers become vectors; None passes them through.
    """

    boundaries: tuple[float, ...] = ()
    dense_emb: DenseEmbeddingConfig | None = None


@dataclass(frozen=True, kw_only=True)
class ExprFeatureConfig(NumberFeatureConfig):
    """A number computed from columns.

    Args:
        expression: such as `sigmoid(pv / (1 + click))`.
        variables: the raw columns that it names, each as `side:column`.
        value_dim: numbers a row, or a step.
        fill_missing: the result where a column has no value; None: see `default_value`.
        default_value: used for a missing raw value.
    """

    expression: str = ""
    variables: tuple[str, ...] = ()
    value_dim: int = 1
    fill_missing: float | None = None
    default_value: str = "0"


@dataclass(frozen=True, kw_only=True)
class OverlapFeatureConfig(NumberFeatureConfig):
    """How much two texts have in common: one number.

    Args:
        query: the raw column of one text, `side:column`.
        title: the raw column of the other.
    """

    query: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class KvDotProductFeatureConfig(NumberFeatureConfig):
    """The dot product of two maps: one number.

    Args:
        query: the raw column of one map, `side:column`.
        document: the raw column of the other.
    """

    query: str = ""
    document: str = ""


@dataclass(frozen=True, kw_only=True)
class CombineFeatureConfig(NumberFeatureConfig):
    """Values combined over a map from words to numbers: one number, or an id where `num_buckets` or `boundaries` is set.

    Args:
        expression: the raw column as `side:column`.
        num_buckets: rows of a table whose ids are rows already.
    """

    expression: str = ""
    num_buckets: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizeFeatureConfig(CommonFeatureConfig):
    """A text cut into tokens, which are ids. Exactly one of `vocab_file` and `vocab_size` must be set.

    Args:
        expression: the raw column as `side:column`.
        vocab_file: path of the tokenizer's file; it tells the number of rows.
        vocab_size: rows of the table.
        asset_dir: the folder that `vocab_file` is relative to; empty means the config's own.
        tokenizer_type: `bpe` (a JSON file) or `sentencepiece` (a model file).
        tokens_as_sequence: the tokens are the steps of a sequence.
    """

    expression: str = ""
    vocab_file: str = ""
    vocab_size: int | None = None
    asset_dir: str = ""
    tokenizer_type: str = "bpe"
    tokens_as_sequence: bool = False
