"""Where the rows of a table come from, and the encoder that leads there."""

import math

from emberline.schema import BucketEncoder, CrossEncoder, Encoder, HashEncoder, RawIdEncoder
from emberline.train.features.common import Context, attempt, check_count
from emberline.train.features.configs import ComboFeatureConfig, IdFeatureConfig, LfuPolicy, ZchConfig
from emberline.train.features.family_configs import MatchFeatureConfig
from emberline.train.features.inputs import family_name
from emberline.train.features.numbers import boundary_problems
from emberline.train.features.sentences import Absence, prefixed
from emberline.train.features.sequence_configs import IdConfig, ValueConfig
from emberline.train.features.vocabulary import VOCABULARIES, vocabulary

SOURCES = ("zch", "hash_bucket_size", "num_buckets", *VOCABULARIES, "boundaries")
_LEAST_ZCH_SIZE = 2

RowsConfig = IdConfig | ValueConfig


def sources_of(config: RowsConfig) -> list[str]:
    """The sources of rows that a config sets, by the names of their fields."""
    return [name for name in SOURCES if getattr(config, name, None) not in (None, (), "")]


def rows_and_encoder(config: RowsConfig, context: Context, problems: list[str]) -> tuple[int, Encoder] | None:
    """Rows of the feature's table and its encoder; None with what is wrong added to `problems`."""
    given = sources_of(config)
    choices = [name for name in SOURCES if hasattr(config, name)]
    if len(given) != 1:
        several = f"has {len(given)} sources of rows, {' and '.join(given)}; keep one"
        problems.append(several if given else Absence(f"has no source of rows; set one of {', '.join(choices)}"))
        return None
    kind = given[0]
    if config.default_bucketize_value is not None and kind not in (*VOCABULARIES, "num_buckets"):
        problems.append(f"default_bucketize_value has no meaning beside {kind}: no value is unknown to it")
    rows = _rows(config, kind, problems)
    if rows is None:
        return None
    if kind == "zch":
        return rows, RawIdEncoder() if context.encoded or isinstance(config, IdFeatureConfig) else CrossEncoder()
    return rows, BucketEncoder(rows=rows) if context.encoded else _raw_encoder(config, kind, rows, problems)


def _rows(config: RowsConfig, kind: str, problems: list[str]) -> int | None:
    """Rows of the table; None with what is wrong added to `problems`."""
    found = len(problems)
    if config.zch is not None:
        _check_zch(config.zch, problems)
        return config.zch.zch_size if len(problems) == found else None
    if not isinstance(config, ComboFeatureConfig | IdFeatureConfig) and kind == "boundaries":
        problems += boundary_problems(getattr(config, kind))
        return len(getattr(config, kind)) + 1 if len(problems) == found else None
    rows = _counted_rows(config, kind, problems)
    return rows if len(problems) == found else None


def _counted_rows(config: RowsConfig, kind: str, problems: list[str]) -> int | None:
    """Rows that a number or a vocabulary tells. The `vocab_list` of a match has one row more than its words need."""
    if kind in VOCABULARIES:
        encoder = attempt(problems, vocabulary, config)
        if encoder is None:
            return None
        rows = encoder.rows + int(isinstance(config, MatchFeatureConfig) and kind == "vocab_list")
        check_count(f"rows of {kind}", rows, 1, problems)
        return rows
    rows = config.hash_bucket_size if kind == "hash_bucket_size" or isinstance(config, ComboFeatureConfig) else config.num_buckets
    assert rows is not None
    check_count(kind, rows, 1, problems)
    oov_row = config.default_bucketize_value
    if kind == "num_buckets" and oov_row is not None and not 0 <= oov_row < rows:
        problems.append(f"default_bucketize_value {oov_row} is outside of the {rows} rows of num_buckets")
    return rows


def _raw_encoder(config: RowsConfig, kind: str, rows: int, problems: list[str]) -> Encoder:
    """The encoder of raw values, for anything but zch."""
    if not isinstance(config, IdFeatureConfig):
        if kind in VOCABULARIES:
            family = family_name(config)
            problems.append(f"{kind} of a {family} is not supported yet for raw values (fg_mode FG_NORMAL); use hash_bucket_size or zch")
        return CrossEncoder(rows=rows)
    if kind == "hash_bucket_size":
        return HashEncoder(rows=rows)
    if kind == "num_buckets":
        return BucketEncoder(rows=rows, oov_row=config.default_bucketize_value)
    return vocabulary(config)


def _check_zch(zch: ZchConfig, problems: list[str]) -> None:
    found: list[str] = []
    check_count("zch_size", zch.zch_size, _LEAST_ZCH_SIZE, found)
    check_count("eviction_interval", zch.eviction_interval, 1, found)
    policy = zch.eviction_policy
    if policy is None:
        found.append(Absence("no eviction policy is set; add lfu {}, lru {} or distance_lfu {}"))
    elif not isinstance(policy, LfuPolicy) and not (math.isfinite(policy.decay_exponent) and policy.decay_exponent > 0.0):
        found.append(f"decay_exponent must be above 0, found {policy.decay_exponent}")
    problems += [prefixed("zch", text) for text in found]
