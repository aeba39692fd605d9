import errno
import os
from pathlib import Path

import pytest
import torch

from emberline.errors import CapacityError
from emberline.memory import SMAPS
from emberline.train.dynamic.tiers.memory import PAGE_BYTES, Span, TieredMemory

ROW_BYTES = 32
SPANS = [Span("a", 0, 1000, 300), Span("b", 1000, 500, 500), Span("c", 1500, 2000, 0), Span("d", 3500, 0, 0)]


def numbers(memory: TieredMemory, rows: int = 3500) -> torch.Tensor:
    for place, span in enumerate(SPANS):
        memory.reserve(place, span.rows)
    return memory.tensor((rows, ROW_BYTES // 4), torch.float32)


def test_rows_lie_one_after_the_other_whatever_holds_them(tmp_path: Path) -> None:
    memory = TieredMemory(ROW_BYTES, SPANS, tmp_path)
    table = numbers(memory)
    assert not table.any()
    whole = torch.arange(3500 * 8, dtype=torch.float32).view(3500, 8)
    table.copy_(whole)
    memory.let_go()
    assert torch.equal(table, whole)
    table[5:3400:7] += 1
    whole[5:3400:7] += 1
    memory.touched(1 << 30)
    memory.will_need(1500, 2000)
    assert torch.equal(table, whole)


def test_only_whole_pages_without_fast_rows_are_in_the_file(tmp_path: Path) -> None:
    memory = TieredMemory(ROW_BYTES, SPANS, tmp_path)
    # a: rows 300 to 999 are bytes 9600 to 31999, pages 3 to 6; b none; c: bytes 48000 to 111999 which end the memory, pages 12 to 27
    assert PAGE_BYTES == 4096
    assert memory.file_bytes == (7 - 3) * 4096 + (28 - 12) * 4096
    assert list(tmp_path.iterdir()) == []  # it has no name
    assert memory.reserved_bytes == 0
    memory.reserve(0, 300)
    assert memory.reserved_bytes == 0
    memory.reserve(0, 385)  # 384 begins page 3
    assert memory.reserved_bytes == 4 * 4096  # no more than the piece


def test_the_file_grows_in_larger_steps_than_rows(tmp_path: Path) -> None:
    memory = TieredMemory(ROW_BYTES, [Span("a", 0, 1 << 20, 0)], tmp_path)
    memory.reserve(0, 1)
    assert memory.reserved_bytes == 1 << 20
    memory.reserve(0, 32768)
    assert memory.reserved_bytes == 1 << 20
    memory.reserve(0, 32769)
    assert memory.reserved_bytes == 2 << 20
    memory.reserve(0, 1 << 20)
    assert memory.reserved_bytes == 32 << 20


def test_memory_with_no_file_is_memory() -> None:
    memory = TieredMemory(ROW_BYTES, [Span("a", 0, 10, 10)])
    assert memory.file_bytes == 0
    memory.reserve(0, 10)
    assert memory.tensor((10, 8), torch.float32).tolist() == [[0.0] * 8] * 10
    assert TieredMemory(ROW_BYTES, []).tensor((0, 8), torch.float32).shape == (0, 8)


def test_more_rows_than_there_is_memory_cost_none_until_they_are_used(tmp_path: Path) -> None:
    rows = 1 << 37  # 4 TiB
    memory = TieredMemory(ROW_BYTES, [Span("a", 0, rows, 1 << 20)], tmp_path)
    memory.reserve(0, 1 << 20)
    table = memory.tensor((rows, 8), torch.float32)
    table[7], table[(1 << 20) - 1] = 7, 8
    assert (float(table[7, 0]), float(table[(1 << 20) - 1, 7]), memory.reserved_bytes) == (7, 8, 0)


def test_a_full_disk_is_told_when_rows_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TieredMemory(ROW_BYTES, SPANS, tmp_path)

    def full(file: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match=rf"table 'a': 16,384 bytes .* cannot be had in {tmp_path}: the disk is full; free some room"):
        memory.reserve(0, 1000)
    monkeypatch.undo()
    assert memory.reserved_bytes == 0
    memory.reserve(0, 1000)
    assert memory.reserved_bytes == 16384


def test_a_nearly_full_disk_takes_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TieredMemory(ROW_BYTES, [Span("a", 0, 1 << 20, 0)], tmp_path)
    allocate, asked = os.posix_fallocate, list[int]()

    def nearly_full(file: int, offset: int, length: int) -> None:
        asked.append(length)
        if length > 8192:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", nearly_full)
    memory.reserve(0, 200)
    assert (asked, memory.reserved_bytes) == ([1 << 20, 8192], 8192)
    with pytest.raises(CapacityError, match="table 'a': 20,480 bytes"):
        memory.reserve(0, 640)
    assert memory.reserved_bytes == 8192


def test_what_cannot_be_had_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"'a': .* bytes of addresses cannot be had"):
        TieredMemory(ROW_BYTES, [Span("a", 0, 1 << 50, 0)], tmp_path)
    with pytest.raises(CapacityError, match=r"cannot be had in .*absent: No such file"):
        TieredMemory(ROW_BYTES, [Span("a", 0, 1000, 0)], tmp_path / "absent")


def test_memory_ends_with_its_last_tensor(tmp_path: Path) -> None:
    memory = TieredMemory(ROW_BYTES, SPANS, tmp_path)
    table = numbers(memory)
    del memory
    table.fill_(3)
    assert table.sum() == 3 * 3500 * 8
    assert str(tmp_path) in SMAPS.read_text(errors="replace")
    del table
    assert str(tmp_path) not in SMAPS.read_text(errors="replace")
