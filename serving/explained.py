"""How each row was read, as `emberline predict --explain` shows it: which ids and numbers its values became, and which ids the model knows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.encoding import EncodedColumns, JaggedSteps, columns_from_rows, encode, required_columns
from emberline.schema import FeatureKind, FeatureSpec, ModelSchema
from emberline.serving.encoded import split_ids
from emberline.serving.packed_request import PackedRequest
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
    columns, num_rows = columns_from_rows(schema.features, rows)
    encoded = encode(schema.features, columns, num_rows)
    found: list[dict[str, dict[str, Any]]] = [{} for _ in rows]
    for feature in schema.features:
        parts = _numbers(feature, encoded) if feature.kind is FeatureKind.DENSE else _ids(feature, encoded, known[feature.name])
        for place, row in enumerate(rows):
            given = {column: _as_json(row[column]) for column in feature.columns if row.get(column) is not None}
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


def explain_request(
    schema: ModelSchema, given: Sequence[Row] | TiledRows, request: PackedRequest, known: Array | None
) -> dict[str, list[dict[str, dict[str, Any]]]]:
    """How plain rows were read: `rows`, and `users` where there are some, each an entry as of `explain_rows`.

    Args:
        schema: the model's description.
        given: rows, or users and rows.
        request: the same, encoded.
        known: bool [N], the answer `known` for it; None where the model has no ids.
    """
    by_feature = {} if known is None else split_ids(schema, request, known)
    if not isinstance(given, TiledRows):
        return {"rows": explain_rows(schema, given, by_feature)}
    users, rows = explain_sides(schema, given, by_feature)
    return {"users": users, "rows": rows}


def _as_json(value: Any) -> Any:
    """A value as a row gave it, in what JSON writers take: integers of 64 bits, and text that is UTF-8; longer ones are text."""
    if isinstance(value, Mapping):
        return {_as_json(key): _as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


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
