from collections.abc import Iterator

import pytest

from emberline.train.sharding import process_group


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield
