"""Where the rows of a table come from, and the encoder that leads there."""

import math
from dataclasses import replace

from emberline.routing import ROUTINGS
from emberline.schema import BoundaryEncoder, BucketEncoder, CrossEncoder, Encoder, HashEncoder, RawIdEncoder, TableKind, ValueEncoder
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.features.common import Context, attempt, check_count
from emberline.train.features.configs import (
    HASHED,
    SORTED,
    ZCH_KINDS,
    ComboFeatureConfig,
    DistanceLfuPolicy,
    LfuPolicy,
    LruPolicy,
    TtlPolicy,
    ZchConfig,
)
from emberline.train.features.dynamic import dynamic_options, dynamic_problems
from emberline.train.features.family_configs import CustomFeatureConfig, LookupFeatureConfig, MatchFeatureConfig
from emberline.train.features.numbers import boundary_problems
from emberline.train.features.sentences import Absence, prefixed
from emberline.train.features.sequence_configs import IdConfig, ValueConfig
from emberline.train.features.vocabulary import VOCABULARIES, vocabulary

SOURCES = ("zch", "dynamicemb", "hash_bucket_size", "num_buckets", *VOCABULARIES, "boundaries")
LEAST_ZCH_SIZE = 2
"""One row for ids, and the one that ids without a row share."""
MOST_HOURS = 1_000_000
"""Some 114 years."""

_RAW = ("zch", "dynamicemb")
"""Sources whose ids are any int64."""

RowsConfig = IdConfig | ValueConfig


def sources_of(config: RowsConfig) -> list[str]:
    """The sources of rows that a config sets, by the names of their fields."""
    return [name for name in SOURCES if getattr(config, name, None) not in (None, (), "")]


def kind_of(config: RowsConfig) -> TableKind:
    """What the feature's table is."""
    return TableKind.ZCH if config.zch is not None else TableKind.DYNAMIC if config.dynamicemb is not None else TableKind.STATIC


def growth_of(config: RowsConfig) -> DynamicEmbOptions | None:
    """How the feature's table grows, of a config that has no problems; None where it does not."""
    return None if config.dynamicemb is None else dynamic_options(config.dynamicemb, config.embedding_dim)


def rows_and_encoder(config: RowsConfig, context: Context, problems: list[str]) -> tuple[int, Encoder] | None:
    """Rows of the feature's table, and the encoder of its ids; None with what is wrong added to `problems`."""
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
    if context.encoded:
        return rows, RawIdEncoder() if kind in _RAW else BucketEncoder(rows=rows)
    return rows, _cross(kind, rows, problems) if isinstance(config, ComboFeatureConfig) else _of_value(config, kind, rows)


def _rows(config: RowsConfig, kind: str, problems: list[str]) -> int | None:
    """Rows of the table; None with what is wrong added to `problems`."""
    found = len(problems)
    if config.zch is not None:
        _check_zch(config.zch, problems)
        return config.zch.zch_size if len(problems) == found else None
    if config.dynamicemb is not None:
        problems += dynamic_problems(config)
        return config.dynamicemb.max_capacity if len(problems) == found else None
    if kind == "boundaries":
        assert isinstance(config, LookupFeatureConfig | MatchFeatureConfig | CustomFeatureConfig), config
        problems += boundary_problems(config.boundaries)
        return len(config.boundaries) + 1 if len(problems) == found else None
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
    count = config.hash_bucket_size if kind == "hash_bucket_size" or isinstance(config, ComboFeatureConfig) else config.num_buckets
    assert count is not None
    check_count(kind, count, 1, problems)
    oov_row = config.default_bucketize_value
    if kind == "num_buckets" and oov_row is not None and not 0 <= oov_row < count:
        problems.append(f"default_bucketize_value {oov_row} is outside of the {count} rows of num_buckets")
    return count


def _cross(kind: str, rows: int, problems: list[str]) -> CrossEncoder:
    if kind in VOCABULARIES:
        problems.append(f"{kind} of a combo_feature is not supported yet for raw values (fg_mode FG_NORMAL); use hash_bucket_size, zch or dynamicemb")
    return CrossEncoder(rows=0 if kind in _RAW else rows)


def _of_value(config: RowsConfig, kind: str, rows: int) -> ValueEncoder:
    """The encoder of one raw value."""
    match kind:
        case "zch" | "dynamicemb":
            return RawIdEncoder()
        case "hash_bucket_size":
            return HashEncoder(rows=rows)
        case "num_buckets":
            return BucketEncoder(rows=rows, oov_row=config.default_bucketize_value)
        case "boundaries":
            assert isinstance(config, LookupFeatureConfig | MatchFeatureConfig), config
            return BoundaryEncoder(boundaries=config.boundaries, normalizer=config.normalizer)
    return replace(vocabulary(config), rows=rows)


def _check_zch(zch: ZchConfig, problems: list[str]) -> None:
    found: list[str] = []
    check_count("zch_size", zch.zch_size, LEAST_ZCH_SIZE, found)
    if zch.kind == HASHED:
        _check_hashed(zch, found)
    elif zch.kind == SORTED:
        _check_sorted(zch, found)
    else:
        found.append(f"kind must be {' or '.join(ZCH_KINDS)}, found {zch.kind!r}")
    if zch.routing not in ROUTINGS:
        found.append(f"routing must be {' or '.join(ROUTINGS)}, found {zch.routing!r}")
    problems += [prefixed("zch", text) for text in found]


def _check_sorted(zch: ZchConfig, found: list[str]) -> None:
    if zch.interval is not None:
        check_count("eviction_interval", zch.interval, 1, found)
    policy = zch.eviction_policy
    if policy is None:
        found.append(Absence("no eviction policy is set; add lfu {}, lru {} or distance_lfu {}"))
    elif isinstance(policy, TtlPolicy):
        found.append("ttl is for kind mpzch; choose lfu {}, lru {} or distance_lfu {}")
    elif not isinstance(policy, LfuPolicy) and not (math.isfinite(policy.decay_exponent) and policy.decay_exponent > 0.0):
        found.append(f"decay_exponent must be above 0, found {policy.decay_exponent}")
    if zch.history_size is not None:
        check_count("history_size", zch.history_size, 1, found)
    found += [f"{name} is for kind mpzch" for name in ("buckets", "max_probe") if getattr(zch, name) is not None]


def _check_hashed(zch: ZchConfig, found: list[str]) -> None:
    of_sorted = ("eviction_interval", "threshold_filtering_func", "history_size")
    found += [f"{name} is for kind mch: with mpzch ids are admitted as they are read" for name in of_sorted if getattr(zch, name) is not None]
    policy = zch.eviction_policy
    if isinstance(policy, LfuPolicy | DistanceLfuPolicy):
        name = "lfu" if isinstance(policy, LfuPolicy) else "distance_lfu"
        found.append(f"{name} is for kind mch; with mpzch choose ttl {{ hours: 720 }} or lru {{}}, or none, so that no id ever loses its row")
    elif isinstance(policy, LruPolicy) and policy != LruPolicy():
        found.append("decay_exponent is for kind mch: with mpzch, lru {} knows who was read longest ago, by the hour")
    elif isinstance(policy, TtlPolicy):
        _check_hours(policy, found)
    if zch.max_probe is not None:
        check_count("max_probe", zch.max_probe, 1, found)
    if zch.buckets is not None:
        check_count("buckets", zch.buckets, 1, found)
        if zch.buckets > zch.zch_size // LEAST_ZCH_SIZE:
            found.append(f"buckets {zch.buckets} of zch_size {zch.zch_size}: each bucket needs {LEAST_ZCH_SIZE} rows, one of them its fallback row")


def _check_hours(policy: TtlPolicy, found: list[str]) -> None:
    if policy.hours is None:
        found.append(Absence("ttl: hours is missing"))
    elif not 1 <= policy.hours <= MOST_HOURS:
        found.append(f"ttl: hours must be 1 to {MOST_HOURS:,}, found {policy.hours}")
