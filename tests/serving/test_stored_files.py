"""Tensor files taken in: mapped or read, and those that are not what their entry says, by whatever digest and in whatever piece."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash
from torch import Tensor

from emberline.digests import PIECE_BYTES
from emberline.errors import ArtifactError
from emberline.manifest import FileEntry, find_change, find_damage, hash_file
from emberline.memory import CACHE_LINE_BYTES
from emberline.serving import stored_files
from emberline.serving.files import write_tensors
from emberline.serving.stored_files import StoredFile, read_whole, take_in

LARGE = 3 * PIECE_BYTES
OWN = [(), ("rows",)]
Change = Callable[[bytearray], object]


def store(path: Path, tensors: dict[str, Tensor], *, old: bool = False, own: tuple[str, ...] = ()) -> StoredFile:
    """A file as exports write it, or as those did that knew sha256 only."""
    entry = write_tensors(path, tensors)
    return StoredFile(path, path.name, replace(entry, xxh3=None) if old else entry, own)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> StoredFile:
    """A file of nearly four pieces, with other tensors before its rows and behind them. Tests leave it as it was."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (LARGE // 64, 64), dtype=torch.uint8, generator=generator)
    return store(tmp_path_factory.mktemp("large") / "t.safetensors", {"a": torch.arange(5), "rows": rows, "z": torch.arange(70_000)})


def changed(file: StoredFile, change: Change, *, old: bool = False, own: tuple[str, ...] = ()) -> list[str]:
    """What is found of the file after a change of its bytes, which is taken back."""
    before = file.path.read_bytes()
    data = bytearray(before)
    change(data)
    file.path.write_bytes(data)
    entry = replace(file.entry, xxh3=None) if old and file.entry is not None else file.entry
    try:
        return take_in({"t": replace(file, entry=entry, own=own)})[1]
    finally:
        file.path.write_bytes(before)


def flip(place: int) -> Change:
    def do(data: bytearray) -> None:
        data[place] ^= 1 << place % 8

    return do


@pytest.mark.parametrize("piece", [64, 100, 1 << 20])
@pytest.mark.parametrize("verify", [True, False])
def test_tensors_come_back_mapped_or_from_the_start_of_cache_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, verify: bool) -> None:
    monkeypatch.setattr("emberline.digests.PIECE_BYTES", piece)
    monkeypatch.setattr(stored_files, "PIECE_BYTES", piece)
    tables = {"a": torch.randn(7, 3), "b": torch.arange(10, dtype=torch.uint8).view(2, 5), "c": torch.randn(1, 1).half(), "d": torch.randn(33, 16)}
    files = {}
    for name, rows in tables.items():
        own = ("rows", "z") if name in "ac" else ("rows",) if name == "b" else ()
        files[name] = store(tmp_path / name, {"before": torch.arange(5), "rows": rows, "z": torch.arange(7)}, own=own)
    if not verify:
        files = {name: replace(file, entry=None) for name, file in files.items()}
    found, problems = take_in(files)
    assert problems == []
    maps = Path("/proc/self/maps").read_text()
    for name, rows in tables.items():
        assert torch.equal(found[name]["rows"], rows)
        assert (found[name]["before"].tolist(), found[name]["z"].tolist()) == ([*range(5)], [*range(7)])
        found[name]["rows"][0] = 0  # it may be written to
        assert name not in "ab" or found[name]["rows"].data_ptr() % CACHE_LINE_BYTES == 0
        entry = files[name].entry
        assert entry is None or hash_file(tmp_path / name) == entry  # and the file stays as it was
        assert str(tmp_path / name) in maps
    del found
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_the_digest_is_that_of_the_pieces_digests(large: StoredFile) -> None:
    data = large.path.read_bytes()
    pieces = [xxhash.xxh3_128_digest(data[start : start + PIECE_BYTES]) for start in range(0, len(data), PIECE_BYTES)]
    assert large.entry == FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    assert large.entry.xxh3 == xxhash.xxh3_128_hexdigest(b"".join(pieces))
    assert find_change(large.path, large.entry) == find_change(large.path, large.entry, fast=True) == ""


PLACES = [300, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES - 1, 2 * PIECE_BYTES + 12345, LARGE, LARGE + 300, -100, -1]


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("old", [True, False])
def test_a_changed_byte_is_seen_wherever_it_is(large: StoredFile, old: bool, own: tuple[str, ...]) -> None:
    for place in PLACES:
        assert changed(large, flip(place), old=old, own=own) == [f"t.safetensors was changed: its {'sha256' if old else 'XXH3'} differs"], place
    assert take_in({"t": replace(large, own=own)})[1] == []


@pytest.mark.parametrize("place", [0, 7, 8, 9])
def test_a_changed_byte_that_leaves_no_header_is_told(large: StoredFile, place: int) -> None:
    with pytest.raises(ArtifactError, match=r"t\.safetensors is not a readable safetensors file"):
        changed(large, flip(place))


def swap(data: bytearray) -> None:
    one, two = data[PIECE_BYTES : 2 * PIECE_BYTES], data[2 * PIECE_BYTES : 3 * PIECE_BYTES]
    data[PIECE_BYTES : 3 * PIECE_BYTES] = two + one


@pytest.mark.parametrize("own", OWN)
def test_pieces_in_another_order_and_files_of_another_size_are_seen(large: StoredFile, own: tuple[str, ...]) -> None:
    assert changed(large, swap, own=own) == ["t.safetensors was changed: its XXH3 differs"]
    for change in (lambda data: data.extend(b"more"), lambda data: data.__delitem__(slice(-8, None))):
        with pytest.raises(ArtifactError, match=r"t\.safetensors is not a readable safetensors file"):
            changed(large, change, own=own)
    assert large.entry is not None
    other = replace(large, own=own, entry=replace(large.entry, bytes=5))
    assert take_in({"t": other})[1] == [f"t.safetensors has {large.entry.bytes} bytes, not 5"]


@pytest.mark.parametrize("digest", ["", "0" * 32, "none"])
def test_an_entry_with_another_digest_is_seen(large: StoredFile, digest: str) -> None:
    assert large.entry is not None
    other = replace(large, entry=replace(large.entry, xxh3=digest))
    assert take_in({"t": other})[1] == ["t.safetensors was changed: its XXH3 differs"]
    assert other.entry == large.entry  # what a file is goes by size and sha256
    root, name = large.path.parent, large.path.name
    for fast in (True, False):
        assert find_damage(root, {name: replace(large.entry, xxh3=digest)}, fast=fast) == [f"{name} was changed: its XXH3 differs"]
    wrong = {name: replace(large.entry, sha256=digest)}
    assert find_damage(root, wrong, fast=True) == []
    assert find_damage(root, wrong) == [f"{name} was changed: its sha256 differs"]


def test_what_gets_the_name_of_an_open_file_is_not_read(large: StoredFile, tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = store(path, {"rows": torch.arange(1000)}, own=("rows",))

    def exchange(found: object) -> None:
        write_tensors(tmp_path / "other", {"rows": torch.zeros(1000, dtype=torch.int64)})
        (tmp_path / "other").rename(path)

    found, problems = take_in({"t": replace(file, check=exchange)})
    assert problems == []
    assert torch.equal(found["t"]["rows"], torch.arange(1000))


def test_a_file_that_ends_too_early_and_an_error_of_the_disk_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store(tmp_path / "t", {"rows": torch.arange(1000)}, own=("rows",))
    monkeypatch.setattr("os.preadv", lambda descriptor, views, start: 0)
    with pytest.raises(OSError, match=r"/t ends before its rows do"):
        take_in({"t": file})

    def fail(descriptor: int, views: object, start: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.preadv", fail)
    with pytest.raises(OSError, match=rf"^{tmp_path}/t: Input/output error$"):
        take_in({"t": file})


def test_more_than_there_is_room_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store(tmp_path / "t", {"rows": torch.ones(4, 4)}, own=("rows",))
    monkeypatch.setattr(stored_files._Opened, "sizes", lambda self: {"rows": 1 << 54})
    with pytest.raises(MemoryError, match=r"17179869184 MiB for tables: .*Cannot allocate memory"):
        take_in({"t": file})


def test_no_files_files_without_numbers_and_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert take_in({}) == ({}, [])
    monkeypatch.setattr(stored_files, "_MOST_OPEN", 2)
    files = {number: store(tmp_path / str(number), {"rows": torch.arange(4 * number).view(number, 4)}, own=OWN[number % 2]) for number in range(5)}
    found, problems = take_in(files)
    assert problems == []
    assert {number: found[number]["rows"].tolist() for number in files} == {
        number: torch.arange(4 * number).view(number, 4).tolist() for number in files
    }


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"code")
    entry = hash_file(path)
    assert (entry.xxh3, read_whole(path, entry), read_whole(path, None)) == (None, b"code", b"code")
    path.write_bytes(b"core")
    with pytest.raises(ArtifactError, match="program was changed: its sha256 differs"):
        read_whole(path, entry)
    path.write_bytes(b"co")
    with pytest.raises(ArtifactError, match="program has 2 bytes, not 4"):
        read_whole(path, entry)
    path.unlink()
    with pytest.raises(ArtifactError, match="program cannot be read: No such file"):
        read_whole(path, entry)
