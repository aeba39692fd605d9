"""Everything about features, groups and tables that does not fit together, as sentences for a ConfigError."""

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.reads import TableRead
from emberline.train.features import AutoDisConfig, Feature


def feature_problems(features: Sequence[Feature]) -> Iterable[str]:
    """Features that are wrong by themselves, or repeated."""
    seen: set[str] = set()
    for feature in features:
        if feature.name in seen:
            yield f"feature {feature.name!r} is defined twice; give each feature a name of its own"
        seen.add(feature.name)
        yield from _name_problems("feature", feature.name)
        if feature.use_dynamicemb:
            yield f"feature {feature.name!r}: dynamicemb is not supported yet"
        if feature.is_sparse:
            yield from _sparse_problems(feature)
        elif feature.value_dim < 1:
            yield f"feature {feature.name!r} is dense and needs a value_dim of at least 1, not {feature.value_dim}"
        elif isinstance(feature.dense_embedding, AutoDisConfig) and feature.value_dim != 1:
            yield f"feature {feature.name!r} has value_dim {feature.value_dim}, but autodis takes one number; use mlp, or value_dim 1"
        elif feature.dense_embedding is not None and feature.embedding_dim < 1:
            yield f"feature {feature.name!r} has a dense embedding and needs an embedding_dim of at least 1, not {feature.embedding_dim}"


def _sparse_problems(feature: Feature) -> Iterable[str]:
    if feature.embedding_dim < 1:
        yield f"feature {feature.name!r} needs an embedding_dim of at least 1, not {feature.embedding_dim}"
    if feature.rows < 1:
        yield f"feature {feature.name!r} needs a table of at least 1 row, not {feature.rows}"
    if feature.dtype not in ("fp32", "fp16"):
        yield f"feature {feature.name!r} has data_type {feature.dtype.upper()}, which is not supported yet; use FP32 or FP16"
    if feature.zch is not None and feature.zch.eviction_policy is None:
        yield f"feature {feature.name!r} has zch without a policy; add lfu {{}}, lru {{}} or distance_lfu {{}}"
    if feature.zch is not None and feature.zch.zch_size != feature.rows:
        yield f"feature {feature.name!r} has {feature.rows} rows but zch_size {feature.zch.zch_size}"
    yield from _name_problems("embedding_name", feature.embedding_name)


def _name_problems(what: str, name: str) -> Iterable[str]:
    if not name or "." in name or "@" in name:
        yield f"{what} {name!r} must not be empty, nor hold '.' or '@'"


def group_problems(groups: Sequence[FeatureGroupConfig], features: Mapping[str, Feature]) -> Iterable[str]:
    """Groups that are wrong by themselves, repeated, or name features that do not fit."""
    seen: set[str] = set()
    for group in groups:
        where = f"feature group {group.group_name!r}"
        yield from _name_problems("group_name", group.group_name)
        if group.group_name in seen:
            yield f"{where} is defined twice; give each group a name of its own"
        seen.add(group.group_name)
        if group.group_type not in (GroupKind.DEEP, GroupKind.WIDE):
            yield f"{where}: group_type {group.group_type} is not supported yet; use DEEP or WIDE"
        if not group.feature_names:
            yield f"{where} has no features; name at least one in feature_names"
        yield from _member_problems(group, where, features)


def _member_problems(group: FeatureGroupConfig, where: str, features: Mapping[str, Feature]) -> Iterable[str]:
    for name in dict.fromkeys(group.feature_names):
        if group.feature_names.count(name) > 1:
            yield f"{where} names feature {name!r} {group.feature_names.count(name)} times; name it once"
        if name not in features:
            yield f"{where} names feature {name!r}, which is not defined; the features are {', '.join(features) or 'none'}"
        elif group.group_type is GroupKind.WIDE and not features[name].is_sparse:
            yield f"{where} is WIDE, but feature {name!r} is dense; put it into a DEEP group"
    by_data_group: dict[str, list[str]] = {}
    for name in dict.fromkeys(group.feature_names):
        if name in features:
            by_data_group.setdefault(features[name].data_group, []).append(name)
    if len(by_data_group) > 1:
        parts = "; ".join(f"{', '.join(names)} in {data_group}" for data_group, names in by_data_group.items())
        yield f"{where} mixes data groups, which have different batch sizes: {parts}; make a group for each"


def origin_problems(reads: Sequence[TableRead]) -> Iterable[str]:
    """Tables that two different names, suffixes or kinds of group lead to, and names that no module can have."""
    first: dict[str, TableRead] = {}
    for read in reads:
        other = first.setdefault(read.table, read)
        if other.origin != read.origin:
            yield (
                f"table {read.table!r} is reached with different embedding_name_suffix values or names: "
                f"{_described(other)}, and {_described(read)}; change embedding_name or embedding_name_suffix"
            )
    for table in first:
        if hasattr(nn.ModuleDict, table) or hasattr(nn.Module(), table):
            yield f"table {table!r} has a name that PyTorch needs itself; set another embedding_name"


def _described(read: TableRead) -> str:
    suffix = read.group.embedding_name_suffix
    return f"feature {read.feature.name!r} in {read.group.group_type} group {read.group.group_name!r} with suffix {suffix!r}"


def sharing_problems(reads: Sequence[TableRead]) -> Iterable[str]:
    """Readers of one table that differ in what the table is."""
    first: dict[str, TableRead] = {}
    told: set[tuple[str, str, str]] = set()
    for read in reads:
        other = first.setdefault(read.table, read)
        pair = (read.table, other.feature.name, read.feature.name)
        mine, theirs = _properties(read), _properties(other)
        differing = [f"{name} ({theirs[name]} and {mine[name]})" for name in mine if mine[name] != theirs[name]]
        if differing and pair not in told:
            told.add(pair)
            yield f"table {read.table!r} cannot be shared by features {pair[1]!r} and {pair[2]!r}: they differ in {', '.join(differing)}"


def _properties(read: TableRead) -> dict[str, object]:
    """What all readers of one table must agree on, under the names that a config uses."""
    feature, zch = read.feature, read.feature.zch
    return {
        "rows": feature.rows,
        "embedding_dim": read.dim,
        "data_type": feature.dtype,
        "trainable": feature.trainable,
        "pooling": str(feature.pooling),
        "init_fn": str(read.init) if read.init is not None else "unset",
        "zch": zch is not None,
        "zch policy": zch.eviction_policy if zch is not None else None,
        "zch eviction_interval": zch.eviction_interval if zch is not None else None,
        "zch threshold_filtering_func": zch.threshold_filtering_func if zch is not None else None,
        "embedding_constraints": feature.constraints,
    }
