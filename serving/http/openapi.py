"""What `/docs` shows of request bodies: their form, and examples made from the first model's own schema."""

from typing import Any

from emberline.schema import FeatureKind, FeatureSpec, ModelSchema, NumericEncoder, VocabEncoder
from emberline.serving.protocol.wire import TILE_INPUTS, wire_inputs
from emberline.serving.repository import Repository
from emberline.serving.request_tile import tile_refusal

DESCRIPTION = (
    "Embedding lookups and predictions. `/v1` takes rows of raw features; `/v2` is the KServe inference protocol, "
    'as Triton speaks it, so any Triton client works. Errors are `{"error": "..."}`.'
)


def rows_body(repository: Repository) -> dict[str, Any]:
    """The body of `:predict` and `:lookup`."""
    form = {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {
            "rows": {
                "type": "array",
                "items": {"type": "object"},
                "description": "One {column: value} object a row. Ids may be strings. Beside users: for each of them, an array of such rows.",
            },
            "users": {
                "type": "array",
                "items": {"type": "object"},
                "description": "What holds for all rows of a user, once: one {column: value} object a user. For models whose features have sides.",
            },
            "outputs": {"type": "array", "items": {"type": "string"}, "description": "Names wanted; all where it is left out."},
            "explain": {"type": "boolean", "description": "Tell too which ids and numbers each value became, and which ids the model knows."},
        },
    }
    examples = {model.name: {"rows": [example_row(model.schema)]} for model in repository}
    examples |= {f"{model.name}, tiled": example_tiled(model.schema) for model in repository if tile_refusal(model.schema) is None}
    return _body(form, examples)


def infer_body(repository: Repository) -> dict[str, Any]:
    """The body of `/infer`."""
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"type": "string"},
            "parameters": {"type": "object"},
            "data": {"type": "array", "items": {}},
        },
    }
    output = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}}}
    form = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array", "items": output},
        },
    }
    return _body(form, {model.name: example_infer(model.schema) for model in repository})


def example_row(schema: ModelSchema) -> dict[str, Any]:
    """One row with a value for each column."""
    return {column: _example_column(feature, column) for feature in schema.features for column in feature.columns}


def example_tiled(schema: ModelSchema) -> dict[str, Any]:
    """One user with two rows, with a value for each column."""
    user, row = (example_row(schema.part(per_user=per_user)) for per_user in (True, False))
    row = {column: value for column, value in row.items() if column not in user}
    return {"users": [user], "rows": [[row, row]]}


def example_infer(schema: ModelSchema) -> dict[str, Any]:
    """A v2 request of one row, with one id in each bag and one step in each sequence."""
    num_features = len(schema.sparse_features)
    values: dict[str, list[Any]] = {
        "ids": [0] * num_features,
        "lengths": [1] * num_features,
        "weights": [1.0] * num_features,
        "dense": [0.0] * schema.dense_dim,
        "steps": [1] * len(schema.sequences),
        "step_lengths": [1] * len(schema.sparse_sequences),
        "dense_steps": [0.0] * sum(feature.value_dim for feature in schema.dense_sequences),
    }
    inputs = [
        {"name": tensor.name, "datatype": tensor.datatypes[0], "shape": [1, len(values[tensor.name])], "data": values[tensor.name]}
        for tensor in wire_inputs(schema)
        if tensor.name not in TILE_INPUTS
    ]
    return {"inputs": inputs}


def _example_column(feature: FeatureSpec, column: str) -> Any:
    value = _example_value(feature)
    return [value] if feature.sequence and column not in feature.row_columns else value


def _example_value(feature: FeatureSpec) -> Any:
    if feature.default is not None:
        return feature.default
    if isinstance(feature.encoder, VocabEncoder) and feature.encoder.words:
        return feature.encoder.words[0]
    if feature.kind is FeatureKind.DENSE or isinstance(feature.encoder, NumericEncoder):
        return 0.5 if feature.value_dim <= 1 else [0.5] * feature.value_dim
    return 1


def _body(form: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    named = {name: {"value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": form, "examples": named}}}}
