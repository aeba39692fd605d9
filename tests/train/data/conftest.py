from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberline.schema import FeatureKind, FeatureSpec, NumericEncoder, RawIdEncoder
from emberline.train.features import Feature


@pytest.fixture
def features() -> list[Feature]:
    """Ids `user` (any int64), several ids `tags`, and a number `x`."""
    return [
        Feature(name="user", spec=FeatureSpec(name="user", kind=FeatureKind.SPARSE, columns=("user",), encoder=RawIdEncoder())),
        Feature(name="x", spec=FeatureSpec(name="x", kind=FeatureKind.DENSE, columns=("x",), encoder=NumericEncoder(), value_dim=1)),
        Feature(name="tags", spec=FeatureSpec(name="tags", kind=FeatureKind.SPARSE, columns=("tags",), encoder=RawIdEncoder())),
    ]


def make_table(first: int, num_rows: int) -> pa.Table:
    """Rows `first`, `first + 1` ...: row r has user r, x = r / 2, r % 3 tags, and the label r % 2."""
    rows = range(first, first + num_rows)
    return pa.table(
        {
            "user": pa.array(rows, pa.int64()),
            "x": pa.array([row / 2 for row in rows], pa.float64()),
            "tags": pa.array([[row * 10 + number for number in range(row % 3)] for row in rows], pa.list_(pa.int64())),
            "label": pa.array([row % 2 for row in rows], pa.int32()),
            "weight": pa.array(np.arange(first, first + num_rows) + 0.5, pa.float32()),
        }
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write rows first..first+num_rows as `name`, `row_group_size` rows a row group."""

    def write_file(name: str, first: int, num_rows: int, row_group_size: int = 7) -> Path:
        path = tmp_path / name
        pq.write_table(make_table(first, num_rows), path, row_group_size=row_group_size)
        return path

    return write_file
