"""Tiled requests for tests: models with sides, values drawn for users and rows, and the arrays of both forms, packed by plain loops."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from emberline.schema import FeatureKind, FeatureSpec, ModelSchema, TableKind
from tests.serving.conftest import INT64_MIN, Arrays, ToyModel, make_steps_toy, make_toy

Bag = list[tuple[int, float]]
"""Ids with their weights."""
RAW_IDS = (100, -7, 2**62, 200)


def with_sides(schema: ModelSchema, per_user: Collection[str]) -> ModelSchema:
    """The schema with these features the user's, and all others the item's."""
    features = [replace(feature, side="user" if feature.name in per_user else "item") for feature in schema.features]
    return replace(schema, features=tuple(features))


def tiled_toy(per_user: Collection[str] = ("user", "tags", "vector"), name: str = "toy") -> ToyModel:
    """`make_toy` with sides."""
    model = make_toy(name=name)
    return replace(model, schema=with_sides(model.schema, per_user))


def tiled_steps_toy(per_user: Collection[str] = ("clicks", "words", "prices", "age"), name: str = "steps") -> ToyModel:
    """`make_steps_toy` with sides."""
    model = make_steps_toy()
    return replace(model, schema=with_sides(model.schema, per_user), name=name)


@dataclass(frozen=True)
class Tiled:
    """A tiled request as plain values.

    Args:
        schema: of the model.
        users: for each user: what each feature of its side has: a bag, steps that are bags each, numbers, or steps of numbers.
        rows: for each user, for each of its rows: the same of all other features.
    """

    schema: ModelSchema
    users: list[dict[str, Any]]
    rows: list[list[dict[str, Any]]]

    @property
    def flat_rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.rows for row in rows]

    def tiled(self, weights: bool = True) -> Arrays:
        """The arrays of the tiled form."""
        values = {
            feature.name: [entry[feature.name] for entry in (self.users if feature.is_per_user else self.flat_rows)]
            for feature in self.schema.features
        }
        dense = self.schema.dense_features
        found = pack(self.schema, values, [feature for feature in dense if not feature.is_per_user], len(self.flat_rows), weights=weights)
        found["rows_per_user"] = np.array([len(rows) for rows in self.rows], np.int32)
        if of_users := [feature for feature in dense if feature.is_per_user]:
            found["user_dense"] = numbers_of(of_users, values, len(self.users))
        return found

    def untiled(self, weights: bool = True) -> Arrays:
        """The arrays of the same rows written out."""
        written = [{**user, **row} for user, rows in zip(self.users, self.rows, strict=True) for row in rows]
        values = {feature.name: [row[feature.name] for row in written] for feature in self.schema.features}
        return pack(self.schema, values, self.schema.dense_features, len(written), weights=weights)


def numbers_of(features: Sequence[FeatureSpec], values: Mapping[str, list[Any]], count: int) -> Any:
    return np.array([number for place in range(count) for feature in features for number in values[feature.name][place]], np.float32)


def pack(schema: ModelSchema, values: Mapping[str, list[Any]], dense: Sequence[FeatureSpec], num_rows: int, *, weights: bool) -> Arrays:
    """A request's arrays, of what each feature has, user after user or row after row."""
    ids: list[int] = []
    scale: list[float] = []
    lengths, steps, step_lengths, dense_steps = [], [], [], []
    for feature in schema.sparse_features:
        for value in values[feature.name]:
            bag: Bag = [pair for step in value for pair in step] if feature.sequence else value
            ids += [one for one, _ in bag]
            scale += [weight for _, weight in bag]
            lengths.append(len(bag))
    for feature in schema.sequences:
        for value in values[feature.name]:
            steps.append(len(value))
            if feature.kind is FeatureKind.SPARSE:
                step_lengths += [len(step) for step in value]
            else:
                dense_steps += [number for step in value for number in step]
    found: Arrays = {"ids": np.array(ids, np.int64), "lengths": np.array(lengths, np.int32)}
    if schema.has_weights and weights:
        found["weights"] = np.array(scale, np.float32)
    if dense:
        found["dense"] = numbers_of(dense, values, num_rows)
    if schema.sequences:
        found["steps"], found["step_lengths"] = np.array(steps, np.int32), np.array(step_lengths, np.int32)
    if schema.dense_sequences:
        found["dense_steps"] = np.array(dense_steps, np.float32)
    return found


def draw_tiled(schema: ModelSchema, rows_per_user: Sequence[int], seed: int, most: int = 3) -> Tiled:
    """Values for users and rows; raw ids are drawn from `RAW_IDS` and from all int64. All sequences of a row have equally many steps."""
    draw = np.random.default_rng(seed)
    tables = {table.name: table for table in schema.tables}
    reads = {lookup.feature: tables[lookup.table] for lookup in schema.reads}

    def bag(feature: FeatureSpec) -> Bag:
        count = int(draw.integers(0, most + 1)) if feature.value_dim != 1 else 1
        table = reads[feature.name]
        if table.kind is TableKind.STATIC:
            ids = draw.integers(0, table.rows, count)
        else:
            ids = np.where(draw.random(count) < 0.7, draw.choice(np.array(RAW_IDS), count), draw.integers(INT64_MIN, 2**63 - 1, count))
        return list(zip(ids.tolist(), draw.normal(1, 0.3, count).tolist(), strict=True))

    def value(feature: FeatureSpec, num_steps: int) -> Any:
        if feature.sequence:
            return [step(feature) for _ in range(num_steps)]
        return step(feature)

    def step(feature: FeatureSpec) -> Any:
        return bag(feature) if feature.kind is FeatureKind.SPARSE else draw.normal(0, 1, feature.value_dim).astype(np.float32).tolist()

    users: list[dict[str, Any]] = []
    rows: list[list[dict[str, Any]]] = []
    for count in rows_per_user:
        num_steps = int(draw.integers(0, 4))
        users.append({feature.name: value(feature, num_steps) for feature in schema.features if feature.is_per_user})
        rows.append([{feature.name: value(feature, num_steps) for feature in schema.features if not feature.is_per_user} for _ in range(count)])
    return Tiled(schema, users, rows)
