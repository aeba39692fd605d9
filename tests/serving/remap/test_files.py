"""Remap files: written, mapped back, and refused where they are not a remap of the table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError
from emberline.manifest import RemapEntry
from emberline.schema import TableKind, TableSpec
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.remap import HashedRemap, RemapParts, read_remap, require_sound_values, write_remap
from tests.serving.conftest import INT64_MIN, Remap

CPU = torch.device("cpu")
SPEC = TableSpec(name="u", rows=8, dim=4, kind=TableKind.ZCH)


def long(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "remap" / "u.safetensors"
    path.parent.mkdir()
    entry = Remap({7: 3, -9: 0}, {INT64_MIN: 6, 5: 7}).write(path, 8)
    assert entry == RemapEntry(file="remap/u.safetensors", num_ids=2, seed=0)
    rows, known = read_remap(map_tensors(path), SPEC, entry).index(SPEC.rows, CPU)(long(7, -9, 4, 5))
    assert (rows.tolist(), known.tolist()) == ([3, 0, 6, 7], [True, True, False, False])


def read_checked(path: Path, entry: RemapEntry, *, rebuild: bool = False) -> RemapParts:
    found = read_remap(map_tensors(path), SPEC, entry)
    require_sound_values(found, SPEC, entry, rebuild=rebuild)
    return found


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
        read_checked(tmp_path / "u.safetensors", RemapEntry(file="remap/u.safetensors", num_ids=2))


def test_a_dynamic_table_knows_the_number_that_marks_free_rows_of_others(tmp_path: Path) -> None:
    (tmp_path / "remap").mkdir()
    path, spec = tmp_path / "remap" / "u.safetensors", replace(SPEC, kind=TableKind.DYNAMIC)
    ids, fallback = (long(-5, 2**63 - 1), long(1, 0)), (long(INT64_MIN), long(7))
    entry, _ = write_remap(
        path, raw_ids=ids[0], rows=ids[1], fallback_starts=fallback[0], fallback_rows=fallback[1], num_rows=8, kind=TableKind.DYNAMIC
    )
    found = read_remap(map_tensors(path), spec, entry)
    require_sound_values(found, spec, entry, rebuild=True)
    rows, known = found.index(8, CPU)(long(2**63 - 1, -5, 2**63 - 2))
    assert (rows.tolist(), known.tolist()) == ([0, 1, 7], [True, True, False])
    with pytest.raises(ArtifactError, match="marks free rows and is no id"):
        require_sound_values(found, replace(SPEC, kind=TableKind.ZCH), entry)


def test_no_remap_with_faults_is_ever_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="one row to two ids"):
        write_remap(
            tmp_path / "u.safetensors", raw_ids=long(1, 2), rows=long(3, 3), fallback_starts=long(INT64_MIN), fallback_rows=long(7), num_rows=8
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines.view(torch.int32)[0, 10:11].fill_(8), "lines points outside the table's 8 rows"),
        (lambda lines: lines.view(torch.int32)[0, 15:16].fill_(-66), "lines tells of ids further off than there are lines"),
        (lambda lines: lines.view(torch.int32)[0, 15:16].fill_(3), "lines tells of ids further off than there are lines"),
        (lambda lines: lines.view(torch.int32)[0, 14:15].fill_(3), "lines does not hold 2 ids"),
        (lambda lines: lines.view(torch.int32)[0, 10:11].fill_(4), "lines is not the index of raw_ids and rows"),
        (lambda lines: lines[0, :1].fill_(9), "lines is not the index of raw_ids and rows"),
    ],
)
def test_an_index_that_is_another_is_refused(tmp_path: Path, change: Callable[[torch.Tensor], object], message: str) -> None:
    (tmp_path / "remap").mkdir()
    path = tmp_path / "remap" / "u.safetensors"
    entry = Remap({7: 3, -9: 0}).write(path, 8)
    read_checked(path, entry, rebuild=True)
    tensors = {name: part.clone() for name, part in map_tensors(path).items()}
    change(tensors["lines"])
    write_tensors(path, tensors)
    with pytest.raises(ArtifactError, match=rf"^remap/u\.safetensors: table 'u': {message}"):
        read_checked(path, entry, rebuild=True)


@pytest.mark.parametrize(
    ("lines", "seed", "message"),
    [
        (torch.zeros(64, 8, dtype=torch.int64), 0, r"its index is torch.int64 \[64, 8\] by seed 0"),
        (torch.zeros(65, 7, dtype=torch.int64), 0, r"\[65, 7\]"),
        (torch.zeros(65, 8, dtype=torch.int32), 0, "torch.int32"),
        (torch.zeros(65, 8, dtype=torch.int64), -1, "by seed -1"),
        (torch.zeros(65, 8, dtype=torch.int64), 2**63, "by seed"),
        (torch.zeros(65, 8, dtype=torch.int64), None, "needs int64 lists raw_ids"),
    ],
)
def test_what_is_no_index_is_refused(tmp_path: Path, lines: torch.Tensor, seed: int | None, message: str) -> None:
    parts = {"raw_ids": long(1, 2), "rows": long(0, 1), "fallback_starts": long(INT64_MIN), "fallback_rows": long(7), "lines": lines}
    with pytest.raises(ArtifactError, match=rf"^remap/u\.safetensors: table 'u'.*{message}"):
        read_remap(parts, SPEC, RemapEntry(file="remap/u.safetensors", num_ids=2, seed=seed))


def test_a_file_without_an_index_answers_as_one_with(tmp_path: Path) -> None:
    """As those that were written before there was one."""
    (tmp_path / "remap").mkdir()
    path = tmp_path / "remap" / "u.safetensors"
    new = Remap({7: 3, -9: 0}, {INT64_MIN: 6, 5: 7}).write(path, 8)
    tensors = {name: part.clone() for name, part in map_tensors(path).items() if name != "lines"}
    shared = read_checked(path, new)
    assert shared.lines is not None
    index = shared.index(8, CPU)
    assert isinstance(index, HashedRemap)
    assert index.lines.data_ptr() == shared.lines.data_ptr()
    write_tensors(tmp_path / "old", tensors)
    old = read_checked(tmp_path / "old", replace(new, seed=None))
    built = old.index(8, CPU)
    assert isinstance(built, HashedRemap)
    assert torch.equal(built.lines, shared.lines)
    asked = long(7, -9, 4, 5, 2**63 - 1)
    assert [part.tolist() for part in built(asked)] == [part.tolist() for part in index(asked)]
