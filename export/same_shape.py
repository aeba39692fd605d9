"""Whether a checkpoint can become a delta of an artifact: all but rows, ids and weights must be as it was."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch

from emberline.export.source import Source
from emberline.schema import ModelSchema
from emberline.serving.artifact import Artifact


def find_differences(base: Artifact, source: Source) -> list[str]:
    """What a delta cannot change and differs: a sentence for each, empty where there is nothing.

    Args:
        base: the artifact.
        source: what was trained since.
    """
    differences = _in_schema(base.schema, source.schema)
    for table, now in source.remaps.items():
        before = base.ids.get(table)
        if before is None:
            continue
        if before.routing != now.routing:
            differences.append(f"table {table!r}: ids find their part by {now.routing!r}, in the artifact by {before.routing!r}")
        elif not (torch.equal(before.fallback_starts, now.fallback_starts) and torch.equal(before.fallback_rows, now.fallback_rows)):
            parts = f"{now.fallback_rows.numel()}, in the artifact {before.fallback_rows.numel()}"
            differences.append(f"table {table!r}: its parts of the ids or their fallback rows are others (parts: {parts})")
    return differences


def _in_schema(before: ModelSchema, now: ModelSchema) -> list[str]:
    differences = []
    for part in ("features", "tables", "lookups", "groups", "outputs", "towers", "sequence_lookups", "streams"):
        old, new = _by_name(getattr(before, part)), _by_name(getattr(now, part))
        what = part.removesuffix("s").replace("_", " ")
        differences += [f"{what} {name!r} is new" for name in new if name not in old]
        differences += [f"{what} {name!r} is gone" for name in old if name not in new]
        for name in old:
            if name in new:
                differences += [f"{what} {name!r}: {text}" for text in _in_fields(old[name], new[name])]
        if old == new and list(old) != list(new):
            differences.append(f"the {what}s are in another order")
    if before.group_dtype != now.group_dtype:
        differences.append(f"group tensors are {now.group_dtype}, in the artifact {before.group_dtype}")
    return differences


def _by_name(items: Iterable[Any]) -> dict[str, Any]:
    return {item.key if hasattr(item, "key") else item.name: item for item in items}


def _in_fields(old: Any, new: Any) -> list[str]:
    pairs = [(field.name, getattr(old, field.name), getattr(new, field.name)) for field in fields(old)]
    # Whose a feature is, older releases did not always know: with a delta their artifacts go on without it.
    return [f"{name} is {now}, in the artifact {before}" for name, before, now in pairs if before != now and (name, before) != ("side", "")]
