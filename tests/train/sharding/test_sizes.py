"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import ConfigError
from emberline.train.sharding.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80GiB", 80 << 30), ("1.5 TB", 1_500_000_000_000), ("4096", 4096), ("0", 0), (" 2kib ", 2048), ("3 MB", 3_000_000), ("12b", 12)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "80 gibs", "1e9", "nan", "1,5GiB", "٣GiB", "9" * 400, "9" * 300 + "TiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size: write a number and a unit, such as 80GiB"):
        parse_size(text)


def test_sizes_are_written_in_their_unit() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 80 << 30, 3 << 40)] == ["0 B", "1023 B", "1 KiB", "80 GiB", "3 TiB"]


@given(st.integers(1, 999), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_what_is_written_can_be_read(number: int, unit: str) -> None:
    assert size_text(parse_size(f"{number}{unit}")) == f"{number} {unit}"
