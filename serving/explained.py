"""How each row was read, as `emberline predict --explain` shows it: which ids and numbers its values became, and which ids the model knows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns, JaggedSteps, required_columns
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.client.data import encode_data
from emberline.serving.tiled_rows import TiledRows, whole_rows

Row = Mapping[str, Any]
Array = npt.NDArray[Any]


def explain_rows(schema: ModelSchema, rows: Sequence[Row], known: Mapping[str, Array]) -> list[dict[str, dict[str, Any]]]:
    """What the model is asked for each row, by feature.

    | key | of | value |
    |---|---|---|
    | `given` | all | the row's value, by column where there are several; absent: the feature's default was taken |
    | `ids` | sparse | the ids that it became, of sequences a list for each step |
    | `known` | sparse | whether each of the ids has a row of its own |
    | `weights` | weighted | the weight of each id |
    | `numbers` | dense | the floats that it became, of sequences a list for each step |

    Args:
        schema: the model's description.
        rows: `{column: value}` each.
        known: of the same rows: see `AsyncClient.known`.

    Raises:
        RequestError: a value cannot be encoded; the message names feature and row.
    """
    encoded = encode_data(schema, rows)
    found: list[dict[str, dict[str, Any]]] = [{} for _ in rows]
    for feature in schema.features:
        parts = _numbers(feature, encoded) if feature.kind is FeatureKind.DENSE else _ids(feature, encoded, known[feature.name])
        for place, row in enumerate(rows):
            given = {column: row[column] for column in feature.columns if row.get(column) is not None}
            shown = given if len(feature.columns) > 1 else next(iter(given.values()), None)
            told = {"given": shown} if given else {}
            found[place][feature.name] = told | {name: values[place] for name, values in parts.items()}
    return found


def explain_sides(
    schema: ModelSchema, given: TiledRows, known: Mapping[str, Array]
) -> tuple[list[dict[str, dict[str, Any]]], list[dict[str, dict[str, Any]]]]:
    """As `explain_rows`, of users by the features that are theirs, and of their rows by all others; a row is given what its user has for it.

    Raises:
        RequestError: as `encode_sides`.
    """
    user, row = (schema.part(per_user=per_user) for per_user in (True, False))
    of_users, of_rows = required_columns(user.features), required_columns(row.features)
    users = [{column: value for column, value in one.items() if column in of_users} for one in given.users]
    return explain_rows(user, users, known), explain_rows(row, whole_rows(given, of_users, of_rows), known)


def _numbers(feature: FeatureSpec, encoded: EncodedColumns) -> dict[str, list[Any]]:
    if not feature.sequence:
        return {"numbers": encoded.dense[feature.name].tolist()}
    steps = encoded.dense_sequences[feature.name]
    return {"numbers": _cut(steps.values.reshape(-1, feature.value_dim), steps.lengths)}


def _ids(feature: FeatureSpec, encoded: EncodedColumns, known: Array) -> dict[str, list[Any]]:
    steps = encoded.sparse_sequences[feature.name] if feature.sequence else None
    bags = encoded.sparse[feature.name] if steps is None else steps.bags()
    values: dict[str, Array] = {"ids": bags.values, "known": known}
    if feature.weighted:
        values["weights"] = np.ones(bags.values.size, np.float32) if bags.weights is None else bags.weights
    return {name: _cut(array, bags.lengths) if steps is None else _cut_steps(array, steps) for name, array in values.items()}


def _cut(values: Array, lengths: Array) -> list[Any]:
    """The part of each row."""
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])] if lengths.size else []


def _cut_steps(values: Array, steps: JaggedSteps) -> list[Any]:
    """The steps of each row, each with its own part."""
    whole = _cut(values, steps.step_lengths)
    ends = np.cumsum(steps.lengths).tolist()
    return [whole[end - length : end] for end, length in zip(ends, steps.lengths.tolist(), strict=True)]
