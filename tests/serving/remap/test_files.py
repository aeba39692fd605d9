"""Remap files: written, mapped back, and refused where they are not a remap of the table."""

from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError
from emberline.manifest import RemapEntry
from emberline.schema import TableKind, TableSpec
from emberline.serving.files import write_tensors
from emberline.serving.remap import read_remap, write_remap
from tests.serving.conftest import INT64_MIN, Remap

CPU = torch.device("cpu")
SPEC = TableSpec(name="u", rows=8, dim=4, kind=TableKind.ZCH)


def long(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "remap" / "u.safetensors"
    path.parent.mkdir()
    entry = Remap({7: 3, -9: 0}, {INT64_MIN: 6, 5: 7}).write(path, 8)
    assert entry == RemapEntry(file="remap/u.safetensors", num_ids=2)
    rows, known = read_remap(path, SPEC, entry).index(SPEC.rows, CPU)(long(7, -9, 4, 5))
    assert (rows.tolist(), known.tolist()) == ([3, 0, 6, 7], [True, True, False, False])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_ids": long(2, 1)}, "raw_ids is not strictly ascending"),
        ({"raw_ids": long(1, 1)}, "raw_ids is not strictly ascending"),
        ({"raw_ids": long(1, 2**63 - 1)}, r"raw_ids holds 2\*\*63 - 1, which marks free rows and is no id"),
        ({"rows": long(0, 8)}, "rows points outside the table's 8 rows"),
        ({"rows": long(0, -1)}, "rows points outside the table's 8 rows"),
        ({"rows": long(3, 3)}, "rows gives one row to two ids"),
        ({"fallback_starts": long(0)}, r"fallback_starts does not begin at -2\*\*63"),
        ({"fallback_starts": long(INT64_MIN, INT64_MIN), "fallback_rows": long(1, 2)}, "fallback_starts is not strictly ascending"),
        ({"fallback_rows": long(8)}, "fallback_rows points outside the table's 8 rows"),
        ({"fallback_rows": long(6, 7)}, "should hold 2 ids, found raw_ids 2, rows 2, fallback_starts 1, fallback_rows 2"),
        ({"fallback_starts": long(), "fallback_rows": long()}, "should hold 2 ids, found .* fallback_starts 0"),
        ({"rows": long(1)}, "should hold 2 ids, found raw_ids 2, rows 1"),
        ({"raw_ids": torch.tensor([1, 2], dtype=torch.int32)}, "needs int64 lists"),
        ({"extra": long(1)}, "needs int64 lists"),
    ],
)
def test_what_is_no_remap_of_the_table_is_refused(tmp_path: Path, change: dict[str, torch.Tensor], message: str) -> None:
    parts = {"raw_ids": long(1, 2), "rows": long(0, 1), "fallback_starts": long(INT64_MIN), "fallback_rows": long(7)} | change
    write_tensors(tmp_path / "u.safetensors", parts)
    with pytest.raises(ArtifactError, match=rf"^remap/u\.safetensors: table 'u'.*{message}"):
        read_remap(tmp_path / "u.safetensors", SPEC, RemapEntry(file="remap/u.safetensors", num_ids=2))


def test_no_remap_with_faults_is_ever_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="one row to two ids"):
        write_remap(
            tmp_path / "u.safetensors", raw_ids=long(1, 2), rows=long(3, 3), fallback_starts=long(INT64_MIN), fallback_rows=long(7), num_rows=8
        )
    assert not list(tmp_path.iterdir())
