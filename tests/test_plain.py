"""JSON data as dataclasses: the same object again, or the field that is wrong, by its path."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.plain import from_plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Circle:
    radius: float
    type: str = "circle"


@dataclass(frozen=True, kw_only=True)
class Square:
    sides: tuple[int, ...]
    type: str = "square"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    shape: Circle | Square
    frame: Square | None = None
    colours: tuple[Colour, ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()
    sizes: Mapping[str, int]
    is_new: bool = False
    anything: Any = None
    kind: Literal["drawing"] = "drawing"


WHOLE = Drawing(name="a", shape=Circle(radius=1.5), frame=Square(sides=(1, 2)), colours=(Colour.BLUE,), numbers=(("x", 2.0),), sizes={"w": 3})
SHAPES = st.one_of(st.builds(Circle, radius=st.floats(allow_nan=False)), st.builds(Square, sides=st.lists(st.integers()).map(tuple)))


@given(
    st.builds(
        Drawing,
        name=st.text(),
        shape=SHAPES,
        frame=st.none() | st.builds(Square, sides=st.just((1, 2))),
        colours=st.lists(st.sampled_from(Colour)).map(tuple),
        numbers=st.lists(st.tuples(st.text(), st.floats(allow_nan=False))).map(tuple),
        sizes=st.dictionaries(st.text(), st.integers()),
        is_new=st.booleans(),
        anything=st.none() | st.dictionaries(st.text(), st.lists(st.integers())),
    )
)
def test_what_was_written_is_read(drawing: Drawing) -> None:
    assert from_plain(Drawing, json.loads(json.dumps(asdict(drawing)))) == drawing
    assert from_plain(Drawing, asdict(drawing)) == drawing


def test_what_the_data_do_not_have_is_the_default() -> None:
    found = from_plain(Drawing, {"name": "b", "shape": {"radius": 2, "type": "circle"}, "sizes": {}})
    assert found == Drawing(name="b", shape=Circle(radius=2), sizes={})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("name"), "name is missing"),
        (lambda data: data.update(colour=1), "colour is unknown"),
        (lambda data: data.update(name=1), "name must be a text, found 1"),
        (lambda data: data.update(is_new=1), "is_new must be true or false, found 1"),
        (lambda data: data.update(kind="text"), "kind must be 'drawing', found 'text'"),
        (lambda data: data.update(shape=None), "shape must be an object, found None"),
        (lambda data: data["shape"].pop("type"), "shape.type must be one of circle, square, found None"),
        (lambda data: data["shape"].update(type=["circle"]), "shape.type must be one of circle, square, found ['circle']"),
        (lambda data: data["shape"].update(type="square"), "shape.radius is unknown"),
        (lambda data: data["shape"].update(radius="1"), "shape.radius must be a number, found '1'"),
        (lambda data: data["shape"].update(radius=True), "shape.radius must be a number, found True"),
        (lambda data: data["frame"].update(sides=[1, True]), "frame.sides[1] must be a whole number, found True"),
        (lambda data: data["frame"].update(sides=[1, 2.0]), "frame.sides[1] must be a whole number, found 2.0"),
        (lambda data: data["frame"].update(sides="12"), "frame.sides must be a list, found '12'"),
        (lambda data: data.update(colours=["red", "green"]), "colours[1] must be one of red, blue, found 'green'"),
        (lambda data: data.update(colours=[["red"]]), "colours[0] must be one of red, blue, found ['red']"),
        (lambda data: data.update(numbers=[["x"]]), "numbers[0] must be a list of 2, found ['x']"),
        (lambda data: data.update(numbers=[["x", "y"]]), "numbers[0][1] must be a number, found 'y'"),
        (lambda data: data.update(sizes=[1]), "sizes must be an object, found [1]"),
        (lambda data: data["sizes"].update(h=None), "sizes['h'] must be a whole number, found None"),
        (lambda data: data.update(sizes="x" * 100), f"sizes must be an object, found '{'x' * 76}..."),
    ],
)
def test_the_field_that_is_wrong_is_named(change: Callable[[dict[str, Any]], object], message: str) -> None:
    data = json.loads(json.dumps(asdict(WHOLE)))
    change(data)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared whole
        from_plain(Drawing, data)
    assert str(error.value) == message


@pytest.mark.parametrize("data", [None, 3, "x", [], [("name", "a")]])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"^the whole must be an object, found "):
        from_plain(Drawing, data)
