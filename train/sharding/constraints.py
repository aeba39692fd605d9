"""Constraints of all tables of a model, by full path: those of its modules, completed by those of all tables and by what was measured."""

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints

from emberline.train.embedding.constraints import TableConstraints, table_constraints
from emberline.train.features import EmbeddingConstraints


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
    model: nn.Module, everywhere: EmbeddingConstraints | None = None, traffic: Mapping[str, Traffic] | None = None
) -> dict[str, ParameterConstraints]:
    """The constraints of all tables of a model, by full path: those of every module that has `parameter_constraints(prefix)`.

    Args:
        model: searched breadth-first; what is below such a module is left to it.
        everywhere: holds for each table and feature that does not say otherwise itself.
        traffic: what features were seen to read, by name; it goes before what is assumed, and after what their configs say.
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
    return {path: _completed(constraints, everywhere, traffic or {}) for path, constraints in found.items()}


def default_constraints(everywhere: EmbeddingConstraints | None) -> ParameterConstraints:
    """Those of a table that no module has constraints for."""
    return _completed(TableConstraints(), everywhere, {})


def unbound(constraints: ParameterConstraints) -> ParameterConstraints:
    """The same table, which may be anywhere and in any form; what is known of its traffic stays."""
    found = copy(constraints)
    found.sharding_types = found.compute_kernels = found.min_partition = found.cache_params = None
    if isinstance(found, TableConstraints):
        found.ranks, found.max_hbm = (), None
    return found


def _completed(own: ParameterConstraints, everywhere: EmbeddingConstraints | None, traffic: Mapping[str, Traffic]) -> ParameterConstraints:
    """A table's own constraints with what the others say where it says nothing."""
    if isinstance(own, TableConstraints):
        own = _with_traffic(own, everywhere, traffic)
    if everywhere is None:
        return own
    shared = table_constraints(everywhere, (), False)
    names = ("sharding_types", "compute_kernels", "min_partition", "cache_params", "ranks", "max_hbm")
    own_names = [name for name in names if hasattr(own, name)]
    return replace(own, **{name: getattr(own, name) or getattr(shared, name) for name in own_names})


def _with_traffic(own: TableConstraints, everywhere: EmbeddingConstraints | None, traffic: Mapping[str, Traffic]) -> TableConstraints:
    factors, sources = list(own.pooling_factors), list(own.pooling_sources)
    rows: list[int | None] = []
    for place, (reader, source) in enumerate(zip(own.readers, own.pooling_sources, strict=True)):
        seen = traffic.get(reader)
        rows.append(None if seen is None else max(1, round(seen.rows)))
        if source != "assumed":
            continue
        if everywhere is not None and everywhere.pooling_factor is not None:
            factors[place], sources[place] = everywhere.pooling_factor, "config"
        elif seen is not None:
            factors[place], sources[place] = seen.ids, "measured"
    found = copy(own)
    found.pooling_factors, found.pooling_sources = factors, tuple(sources)
    found.batch_sizes = rows if rows and None not in rows else None
    return found
