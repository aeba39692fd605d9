import pytest

from emberline.train.features.expression import read_expression, side_of


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


@pytest.mark.parametrize(
    ("sides", "found"),
    [
        *((["user", "user"], "user"), (["context", "context"], "context"), (["item"], "item")),
        *((["user", "item"], "item"), (["user", "context"], "item"), (["const"], "item"), (["", "item"], "item")),
        *(([], ""), ([""], ""), (["user", ""], ""), (["feature"], ""), (["user", "feature"], "")),
    ],
)
def test_a_feature_belongs_to_whom_all_columns_do_or_to_items_where_a_part_does(sides: list[str], found: str) -> None:
    assert side_of(sides) == found
