"""What a delta cannot change, told by name."""

from dataclasses import replace

from emberline.export.same_shape import _in_schema
from emberline.schema import ModelSchema
from emberline.train.config import parse_config
from emberline.train.models import build_model, features_of
from tests.export.formats.conftest import EVERYTHING


def of_side(schema: ModelSchema, name: str, side: str) -> ModelSchema:
    return replace(schema, features=tuple(replace(one, side=side) if one.name == name else one for one in schema.features))


def test_a_side_may_come_to_be_known_but_not_to_be_another() -> None:
    """Artifacts of older releases do not know whose a feature is that is computed of both a user's and an item's columns."""
    config = parse_config(EVERYTHING)
    schema = build_model(config, features_of(config)).schema()
    assert _in_schema(of_side(schema, "price", ""), schema) == []
    assert _in_schema(of_side(schema, "price", "user"), schema) == ["feature 'price': side is item, in the artifact user"]
    assert _in_schema(schema, of_side(schema, "price", "user")) == ["feature 'price': side is user, in the artifact item"]
