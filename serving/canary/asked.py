"""What a mirrored request asked for: its ids by feature and row, and how many of them a model knows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from emberline.schema import ModelSchema
from emberline.serving.encoded import ids_per_bag, split_ids
from emberline.serving.engine import Engine
from emberline.serving.request import CheckedRequest
from emberline.serving.unknown import IdCounts

Ids = npt.NDArray[np.int64]


def row_ids(schema: ModelSchema, request: CheckedRequest, row: int) -> dict[str, list[int]]:
    """The ids of one row, by sparse feature; of a feature of the user's those of the row's user.

    Args:
        schema: of the model that the request is for.
        request: checked for it.
        row: from 0.
    """
    if not schema.sparse_features:
        return {}
    users = request.rows_per_user
    user = row if users is None else int(np.searchsorted(users.cumsum(dtype=np.int64), row, side="right"))
    parts, found = split_ids(schema, request, request.ids), {}
    for feature, bags in zip(schema.sparse_features, ids_per_bag(schema, request), strict=True):
        place = user if users is not None and feature.is_per_user else row
        start = int(bags[:place].sum(dtype=np.int64))
        found[feature.name] = parts[feature.name][start : start + int(bags[place])].tolist()
    return found


def count_unknown(engine: Engine, ids: Mapping[str, Ids]) -> dict[str, IdCounts]:
    """Ids of a request for each ZCH or dynamic table, and those without a row of their own, as `Engine.id_counts` counts them, which stays as it is.

    Args:
        engine: of the model.
        ids: by sparse feature; those that the model lacks are left out.
    """
    remaps, schema = engine.artifact.remaps, engine.schema
    reads = dict.fromkeys((read.feature, read.table) for read in (*schema.lookups, *schema.sequence_lookups))
    found: dict[str, IdCounts] = {}
    for feature, table in reads:
        if table in remaps and feature in ids:
            _, known = remaps[table](torch.from_numpy(np.array(ids[feature])).to(engine.device))
            before = found.get(table, IdCounts())
            found[table] = IdCounts(before.asked + known.numel(), before.unknown + int(known.logical_not().sum()))
    return found


def share_of(counts: IdCounts) -> Any:
    """The unknown ones, as a share of those asked for; None where there were none."""
    return counts.unknown / counts.asked if counts.asked else None
