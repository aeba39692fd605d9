"""Requests that nobody waits for, before an engine is ready: what is made or fetched on the first request of a size is there when one comes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from emberline.errors import ArtifactError, RequestError
from emberline.serving.request import PackedRequest

if TYPE_CHECKING:
    from emberline.serving.engine import Engine

TYPICAL_ROWS = 100
MOST_ROWS = 4096
"""Rows of a large batch, where nothing says how large they may be."""
_TURNS = 2
"""TorchScript watches a program once for each kind of shapes, and compiles on the second call."""


def usual_sizes(most: int) -> tuple[int, ...]:
    """Rows of the requests to begin with: one, a typical number, and the most that are answered at once."""
    return tuple(sorted({1, min(TYPICAL_ROWS, most), most}))


def answer_sizes(engine: "Engine", sizes: Sequence[int]) -> None:
    """Answer requests of so many rows each: with one id in every bag, and with all bags empty.

    Raises:
        ArtifactError: one cannot be answered; the log tells why.
    """
    for num_rows in sizes:
        for per_bag in (1, 0):
            for _ in range(_TURNS):
                (answer,) = engine.predict_many([even_request(engine, num_rows, per_bag)], [engine.answer_names])
                if isinstance(answer, Exception) and not isinstance(answer, RequestError):
                    filled = "one id" if per_bag else "no id"
                    raise ArtifactError(f"{engine.artifact.root}: {num_rows} rows with {filled} in each bag cannot be answered here: {answer}")


def even_request(engine: "Engine", num_rows: int, per_bag: int) -> PackedRequest:
    """A request with the same number of ids in each bag, one a step where there are steps: ids that have a row of their own, where any has."""
    schema, known = engine.schema, engine.artifact.ids
    features = schema.sparse_features
    tables = {lookup.feature: lookup.table for lookup in schema.reads}
    lists = [known[tables[feature.name]].raw_ids if tables.get(feature.name) in known else None for feature in features]
    ids = np.array([0 if raw_ids is None or not raw_ids.numel() else int(raw_ids[0]) for raw_ids in lists], np.int64)
    num_bags, num_steps = num_rows * len(features), num_rows * len(schema.sparse_sequences) * per_bag
    floats = sum(feature.value_dim for feature in schema.dense_sequences)
    return PackedRequest(
        ids=np.repeat(ids, num_rows * per_bag) if features else None,
        lengths=np.full(num_bags, per_bag, np.int32) if features else None,
        dense=np.zeros(num_rows * schema.dense_dim, np.float32) if schema.dense_dim else None,
        steps=np.full(num_rows * len(schema.sequences), per_bag, np.int32) if schema.sequences else None,
        step_lengths=np.ones(num_steps, np.int32) if schema.sparse_sequences else None,
        dense_steps=np.zeros(num_rows * floats * per_bag, np.float32) if schema.dense_sequences else None,
    )
