"""Which tables can't be: readers of one table that differ, and names that lead to another's table."""

from collections.abc import Iterator, Mapping, Sequence

from emberline.schema import TableKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.planner_config import TableConstraintsConfig
from emberline.train.config.table_reads import TableRead, table_reads
from emberline.train.features.configs import DistanceLfuPolicy, LfuPolicy, LruPolicy, TtlPolicy
from emberline.train.features.constraints import asked_text, constraint_problems
from emberline.train.features.dynamic import option_texts
from emberline.train.features.feature import Feature
from emberline.train.features.names import name_problem, table_name_problem
from emberline.train.features.sentences import prefixed, unknown_name

_POLICIES = {LfuPolicy: "lfu", LruPolicy: "lru", DistanceLfuPolicy: "distance_lfu", TtlPolicy: "ttl", type(None): "none"}


def table_problems(reads: Sequence[Sequence[TableRead]]) -> list[list[str]]:
    """What is wrong with the tables that each group reads, one sentence each, naming table, features and groups.

    Every reader is held against the table's first one, and told of where it stands itself.

    Args:
        reads: those of each group.
    """
    first: dict[str, TableRead] = {}
    first_bag: dict[str, TableRead] = {}
    told: set[tuple[str, str, str]] = set()
    found = []
    for own in reads:
        texts: list[str] = []
        for read in own:
            place = read.view.place
            problems = [*_name_problems(read, read.table not in first), *_init_problems(read), *_sharing_problems(read, first, first_bag, told)]
            texts += [prefixed(place, text) if place else text for text in problems]
        found.append(texts)
    return found


def constrained_table_problems(
    constraints: Sequence[TableConstraintsConfig], groups: Sequence[FeatureGroupConfig], features: Mapping[str, Feature | None]
) -> list[str]:
    """What is wrong with tables that a config has constraints for: there is no such table, or its kind has nothing of what is asked.

    Args:
        constraints: each names a table.
        groups: all of them.
        features: by name; None for one that has problems of its own: then which tables there are is not known.
    """
    if not constraints or not groups or None in features.values():
        return []
    tables = {read.table: read.feature for reads in table_reads(groups, features, None) for read in reads}
    problems = []
    for one in constraints:
        if one.table not in tables:
            problems.append(unknown_name("table", one.table, tables))
        elif (kind := _kind(tables[one.table])) is not TableKind.STATIC:
            told = constraint_problems(one)  # where the constraints were read
            problems += [f"table {one.table!r}: {text}" for text in constraint_problems(one, kind) if text not in told]
    return problems


def _name_problems(read: TableRead, is_first: bool) -> Iterator[str]:
    """Names made of a good embedding_name and a good suffix that are none together."""
    if is_first and read.table != read.feature.embedding_name and not name_problem(read.view.suffix or "none"):
        problem = table_name_problem(read.table)
        if problem:
            yield f"feature {read.feature.name!r}: its table's name {problem}"


def _init_problems(read: TableRead) -> Iterator[str]:
    """A table that grows has no function that fills all of it at once."""
    if read.feature.use_dynamicemb and read.init is not None:
        yield (
            f"feature {read.feature.name!r}: wide_init_fn can't begin its table {read.table!r}, which is dynamic: take it out, or put the feature "
            "into groups that are not WIDE"
        )


def _kind(feature: Feature) -> TableKind:
    """What a feature's table is."""
    return TableKind.ZCH if feature.zch is not None else TableKind.DYNAMIC if feature.use_dynamicemb else TableKind.STATIC


def _sharing_problems(
    read: TableRead, first: dict[str, TableRead], first_bag: dict[str, TableRead], told: set[tuple[str, str, str]]
) -> Iterator[str]:
    """How a reader differs from the table's first one in what the table is, and from its first one in a DEEP or WIDE group in the pooling.

    Args:
        read: the reader; it is noted where it is the first.
        first: by table.
        first_bag: by table, those in DEEP and WIDE groups.
        told: tables and pairs of features, so that each pair is told of once.
    """
    others = [(first.setdefault(read.table, read), _properties)]
    if not read.view.is_sequence:
        others.append((first_bag.setdefault(read.table, read), _pooling))
    differing: dict[str, tuple[TableRead, list[str]]] = {}
    for other, properties in others:
        theirs, mine = properties(other), properties(read)
        texts = [f"{name} ({mine[name]} and {theirs[name]})" for name in mine if name in theirs and mine[name] != theirs[name]]
        differing.setdefault(other.feature.name, (other, []))[1].extend(texts)
    for name, (other, texts) in differing.items():
        pair = (read.table, name, read.feature.name)
        both = f"feature {read.feature.name!r} and feature {name!r} of {other.view.where}"
        if pair in told or not (texts or other.origin != read.origin):
            continue
        told.add(pair)
        if other.origin != read.origin:
            yield (
                f"{both} come to one table {read.table!r} by different embedding_name_suffix values or names; change embedding_name or "
                "embedding_name_suffix"
            )
        else:
            yield f"{both} can't share the table {read.table!r}: they differ in {', '.join(texts)}"


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
        "zch kind": zch.kind if zch is not None else None,
        "zch policy": _policy(zch.eviction_policy) if zch is not None else None,
        "zch eviction_interval": zch.interval if zch is not None else None,
        "zch threshold_filtering_func": zch.threshold_filtering_func if zch is not None else None,
        "zch history_size": zch.history_size if zch is not None else None,
        "zch routing": zch.routing if zch is not None else None,
        "zch buckets": zch.buckets if zch is not None else None,
        "zch max_probe": zch.max_probe if zch is not None else None,
        **option_texts(feature.dynamicemb),
        "embedding_constraints": asked_text(vars(feature.constraints)) if feature.constraints is not None else "none",
    }


def _policy(policy: object) -> str:
    """An eviction policy as a config has it, with its settings."""
    name = _POLICIES[type(policy)]
    return f"{name} {asked_text(vars(policy))}" if policy is not None and vars(policy) else name
