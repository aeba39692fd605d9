"""Where lookups and numbers lie in an answer."""

from dataclasses import replace

from emberline.serving.lookup.layout import Layout
from tests.serving.conftest import make_toy

SCHEMA = make_toy().schema  # lookups of 4, 8, 4, 4 and 4 columns


def test_lookups_side_by_side() -> None:
    assert Layout.side_by_side(SCHEMA) == Layout(((0, 0), (1, 4), (2, 12), (3, 16), (4, 20)), (), 24)
    assert Layout.side_by_side(replace(SCHEMA, lookups=())) == Layout((), (), 0)


def test_columns_in_another_order() -> None:
    spans = [("pooled", 12, 20), ("dense", 1, 3), ("pooled", 5, 5), ("pooled", 0, 12), ("dense", 0, 1)]
    assert Layout.of(SCHEMA, spans) == Layout(((2, 0), (3, 4), (0, 10), (1, 14)), ((1, 2, 8), (0, 1, 22)), 23)
    assert Layout.of(SCHEMA, []) == Layout((), (), 0)


def test_a_part_of_a_lookup_and_what_is_no_row_of_numbers_have_no_place() -> None:
    for span in (("pooled", 0, 3), ("pooled", 1, 4), ("pooled", 20, 25), ("steps.clicks", 0, 4)):
        assert Layout.of(SCHEMA, [span]) is None
