import pytest

from emberline.train.features.expression import common_side, read_expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [("user:age", ("user", "age")), (" item : city ", ("item", "city")), ("context:hour", ("context", "hour")), ("age", ("", "age"))],
)
def test_an_expression_is_side_and_column(text: str, expected: tuple[str, str]) -> None:
    assert read_expression(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usr:age", r"unknown side 'usr'; did you mean 'user'\?"),
        (":age", "unknown side ''"),
        ("user:", "names no column"),
        ("", "names no column"),
        ("feature:a", "the side 'feature' is not supported yet"),
        ("const:1", "the side 'const' is not supported yet"),
        ("user:item:a", "unknown side 'user:item'"),
    ],
)
def test_a_wrong_expression_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_expression(text)


def test_columns_of_several_sides_have_none_in_common() -> None:
    assert common_side(["user", "user"]) == "user"
    assert common_side(["user", "item"]) == ""
    assert common_side([]) == ""
