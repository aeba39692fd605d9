"""Everything about features and tables that does not fit together, as sentences for a ConfigError."""

from collections.abc import Iterable, Sequence

from torch import nn

from emberline.train.embedding.names import name_problems
from emberline.train.embedding.reads import TableRead
from emberline.train.features import AutoDisConfig, Feature


def feature_problems(features: Sequence[Feature]) -> Iterable[str]:
    """Features that are wrong by themselves, or repeated."""
    seen: set[str] = set()
    for feature in features:
        if feature.name in seen:
            yield f"feature {feature.name!r} is defined twice; give each feature a name of its own"
        seen.add(feature.name)
        yield from name_problems("feature", feature.name)
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
    yield from name_problems("embedding_name", feature.embedding_name)


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
    view = read.view
    return f"feature {read.feature.name!r} in {view.kind} group {view.name!r} with suffix {view.suffix!r}"


def sharing_problems(reads: Sequence[TableRead]) -> Iterable[str]:
    """Readers of one table that differ in what the table is, or, in DEEP and WIDE groups, in how they pool it."""
    first: dict[str, TableRead] = {}
    first_bag: dict[str, TableRead] = {}
    told: set[tuple[str, str, str]] = set()
    for read in reads:
        others = [(first.setdefault(read.table, read), _properties)]
        if not read.view.is_sequence:
            others.append((first_bag.setdefault(read.table, read), _pooling))
        differing: dict[str, list[str]] = {}
        for other, properties in others:
            theirs, mine = properties(other), properties(read)
            texts = [f"{name} ({theirs[name]} and {mine[name]})" for name in mine if mine[name] != theirs[name]]
            differing.setdefault(other.feature.name, []).extend(texts)
        for name, texts in differing.items():
            pair = (read.table, name, read.feature.name)
            if texts and pair not in told:
                told.add(pair)
                yield f"table {read.table!r} cannot be shared by features {name!r} and {read.feature.name!r}: they differ in {', '.join(texts)}"


def _pooling(read: TableRead) -> dict[str, object]:
    return {"pooling": str(read.feature.pooling)}


def _properties(read: TableRead) -> dict[str, object]:
    """What all readers of one table must agree on, under the names that a config uses."""
    feature, zch = read.feature, read.feature.zch
    return {
        "rows": feature.rows,
        "embedding_dim": read.dim,
        "data_type": feature.dtype,
        "trainable": feature.trainable,
        "init_fn": str(read.init) if read.init is not None else "unset",
        "zch": zch is not None,
        "zch policy": zch.eviction_policy if zch is not None else None,
        "zch eviction_interval": zch.eviction_interval if zch is not None else None,
        "zch threshold_filtering_func": zch.threshold_filtering_func if zch is not None else None,
        "embedding_constraints": feature.constraints,
    }
