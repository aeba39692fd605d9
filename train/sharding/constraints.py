"""Constraints of all tables of a model, by full path: those of its modules, completed by those of all tables and by what was measured."""

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints

from emberline.errors import ConfigError
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.features import EmbeddingConstraints
from emberline.train.features.placement import DynamicEmbParameterConstraints, TableConstraints, asked_of
from emberline.train.features.sentences import unknown_name


@dataclass(frozen=True)
class Traffic:
    """What one feature was seen to read.

    Args:
        ids: mean number of ids a row.
        rows: mean number of rows a batch.
    """

    ids: float
    rows: float


def gather_constraints(
    model: nn.Module,
    everywhere: EmbeddingConstraints | None = None,
    traffic: Mapping[str, Traffic] | None = None,
    tables: Mapping[str, EmbeddingConstraints] | None = None,
) -> dict[str, ParameterConstraints]:
    """The constraints of all tables of a model, by full path: those of every module that has `parameter_constraints(prefix)`.

    Args:
        model: searched breadth-first; what is below such a module is left to it.
        everywhere: holds for each table and feature that does not say otherwise itself.
        traffic: what features were seen to read, by name; it goes before what is assumed, and after what their configs say.
        tables: holds for each table of that name, before what its features say.

    Raises:
        ConfigError: `tables` has a name that no table has.
    """
    found: dict[str, ParameterConstraints] = {}
    queue = deque([("", model)])
    while queue:
        path, module = queue.popleft()
        ask = getattr(module, "parameter_constraints", None)
        if ask is not None:
            found.update(ask(path))
            continue
        queue.extend((f"{path}.{name}" if path else name, child) for name, child in module.named_children())
    named = tables or {}
    known = [path.rpartition(".")[2] for path in found]
    problems = [f"table_constraints: {unknown_name('table', name, known)}" for name in named if name not in known]
    if problems:
        raise ConfigError(problems)
    return {path: _completed(own, named.get(path.rpartition(".")[2]), everywhere, traffic or {}) for path, own in found.items()}


def growing_tables(model: nn.Module) -> dict[str, DynamicEmbOptions]:
    """How each dynamic table of a model grows, as its features say, by full path."""
    found = gather_constraints(model)
    return {path: growth for path, own in found.items() if isinstance(own, DynamicEmbParameterConstraints) and (growth := own.dynamicemb_options)}


def default_constraints(everywhere: EmbeddingConstraints | None) -> ParameterConstraints:
    """Those of a table that no module has constraints for."""
    return _completed(TableConstraints(), None, everywhere, {})


def unbound(constraints: ParameterConstraints) -> ParameterConstraints:
    """The same table, which may be anywhere and in any form; what is known of its traffic stays."""
    found = copy(constraints)
    found.sharding_types = found.compute_kernels = found.min_partition = found.cache_params = None
    if isinstance(found, TableConstraints):
        found.ranks, found.max_hbm, found.general, found.beside = (), None, (), False
    return found


def _completed(
    own: ParameterConstraints, first: EmbeddingConstraints | None, everywhere: EmbeddingConstraints | None, traffic: Mapping[str, Traffic]
) -> ParameterConstraints:
    """A table's own constraints: `first` goes before them, and where they say nothing, those of all tables hold."""
    if isinstance(own, TableConstraints):
        own = _with_traffic(own, first, everywhere, traffic)
    if first is not None:
        asked = _asked(own, first)
        own = replace(own, **asked, **({"beside": False} if "sharding_types" in asked else {}))
    if everywhere is None:
        return own
    asked = {name: value for name, value in _asked(own, everywhere).items() if not getattr(own, name)}
    return replace(own, **asked, **({"general": tuple(asked)} if isinstance(own, TableConstraints) else {}))


def _asked(own: ParameterConstraints, constraints: EmbeddingConstraints) -> dict[str, Any]:
    """What some constraints ask for, by the fields that a table's own have; nothing of what a dynamic table can't choose."""
    found = asked_of(constraints)
    is_dynamic = isinstance(own, DynamicEmbParameterConstraints)
    names = ("max_hbm",) if is_dynamic else ("sharding_types", "compute_kernels", "min_partition", "cache_params", "ranks", "max_hbm")
    return {name: value for name in names if hasattr(own, name) and (value := getattr(found, name))}


def _with_traffic(
    own: TableConstraints, first: EmbeddingConstraints | None, everywhere: EmbeddingConstraints | None, traffic: Mapping[str, Traffic]
) -> TableConstraints:
    factors, sources = list(own.pooling_factors), list(own.pooling_sources)
    rows: list[int | None] = []
    for place, reader in enumerate(own.readers):
        seen = traffic.get(reader)
        rows.append(None if seen is None else max(1, round(seen.rows)))
        if first is not None and first.pooling_factor is not None:
            factors[place], sources[place] = first.pooling_factor, "config"
        if sources[place] != "assumed":
            continue
        if everywhere is not None and everywhere.pooling_factor is not None:
            factors[place], sources[place] = everywhere.pooling_factor, "config"
        elif seen is not None:
            factors[place], sources[place] = seen.ids, "measured"
    found = copy(own)
    found.pooling_factors, found.pooling_sources = factors, tuple(sources)
    found.batch_sizes = rows if rows and None not in rows else None
    return found
