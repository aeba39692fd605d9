"""Tables read into memory, and files that are not what their entry says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emberline.manifest import FileEntry, hash_file
from emberline.memory import CACHE_LINE_BYTES
from emberline.serving import rows_in_memory
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.rows_in_memory import StoredTable, bytes_of, find_changed, read_tables
from emberline.serving.rows_on_disk import RowsOnDisk


def store(folder: Path, tables: dict[str, Tensor], others: dict[str, Tensor] | None = None) -> dict[str, StoredTable]:
    """Files whose rows have other tensors before and behind them."""
    found = {}
    for name, rows in tables.items():
        path = folder / f"{name}.safetensors"
        before, behind = ({"a": torch.arange(5)}, {"z": torch.arange(7)}) if others is None else (others, {})
        write_tensors(path, {**before, "rows": rows, **behind})
        found[name] = StoredTable(RowsOnDisk.find(path), hash_file(path))
    return found


@pytest.mark.parametrize("block", [1, 64, 1 << 20])
def test_rows_come_back_from_the_start_of_cache_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(rows_in_memory, "_BLOCK_BYTES", block)
    tables = {"a": torch.randn(7, 3), "b": torch.arange(10, dtype=torch.uint8).view(2, 5), "c": torch.randn(1, 1).half(), "d": torch.randn(33, 16)}
    found, changed = read_tables(store(tmp_path, tables))
    assert changed == []
    for name, rows in tables.items():
        assert torch.equal(found[name], rows)
        assert found[name].data_ptr() % CACHE_LINE_BYTES == 0
        found[name][0] = 0  # it may be written to


def test_the_file_stays_as_it_was(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(4, 4)})
    read_tables(stored)[0]["a"].zero_()
    assert hash_file(tmp_path / "a.safetensors") == stored["a"].entry


@pytest.mark.parametrize("place", [10, -60, -1])
def test_a_changed_byte_is_seen_wherever_it_is(tmp_path: Path, place: int) -> None:
    stored = store(tmp_path, {"a": torch.ones(4, 4), "b": torch.ones(4, 4)})
    path = tmp_path / "b.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert read_tables(stored)[1] == ["b"]
    assert read_tables({name: replace(table, entry=None) for name, table in stored.items()})[1] == []


def test_mapped_rows_are_compared_where_they_are(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(4, 4).bfloat16(), "b": torch.ones(3, 5)})
    mapped = {name: map_tensors(tmp_path / f"{name}.safetensors")["rows"] for name in stored}
    assert find_changed(stored, mapped) == []
    mapped["a"][3, 3] = 2  # in memory of this process only, as a fault of the memory would be
    assert find_changed(stored, mapped) == ["a"]
    assert hash_file(tmp_path / "a.safetensors") == stored["a"].entry


def test_a_file_that_is_longer_than_its_entry_says_is_seen(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(4, 4)}, {})
    with (tmp_path / "a.safetensors").open("ab") as stream:
        stream.write(b"more")
    assert read_tables(stored)[1] == ["a"]


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    stored = store(tmp_path, {"a": torch.ones(4, 4)}, {})
    path = tmp_path / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(OSError, match=r"a\.safetensors ends before its rows do"):
        read_tables(stored)


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    (stored,) = store(tmp_path, {"a": torch.ones(4, 4)}).values()
    failing = replace(stored.rows, file=replace(stored.rows.file, path=Path("/proc/self/mem")))  # whose first bytes cannot be read
    with pytest.raises(OSError, match=r"^/proc/self/mem: Input/output error$"):
        read_tables({"a": replace(stored, rows=failing)})


def test_more_than_there_is_room_for_is_told(tmp_path: Path) -> None:
    (stored,) = store(tmp_path, {"a": torch.ones(4, 4)}).values()
    huge = replace(stored, rows=replace(stored.rows, shape=(1 << 50, 4)))
    with pytest.raises(MemoryError, match=r"17179869184 MiB for tables: Cannot allocate memory"):
        read_tables({"a": huge})


def test_no_tables_and_tables_without_rows(tmp_path: Path) -> None:
    assert read_tables({}) == ({}, [])
    (stored,) = store(tmp_path, {"a": torch.ones(4, 4)}).values()
    none = StoredTable(replace(stored.rows, shape=(0, 4)), FileEntry(bytes=1, sha256=""))
    found, changed = read_tables({"a": none})
    assert (found["a"].shape, changed) == ((0, 4), ["a"])


def test_address_and_size_of_tensors() -> None:
    table = torch.zeros(3, 5, dtype=torch.float16)
    assert bytes_of([table, table[1:]]) == [(table.data_ptr(), 30), (table.data_ptr() + 10, 20)]
