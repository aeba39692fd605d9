"""Files whose hash is known when they are written: the same hash as of whoever reads them."""

from pathlib import Path

import numpy as np
import pytest

from emberline.manifest import hash_file
from emberline.serving import hashed_file
from emberline.serving.hashed_file import HashedFile


@pytest.mark.parametrize("sizes", [(), (0,), (5, 0, 7), (1 << 20,), (3, (1 << 20) + 1, 4, 2 << 20, 1), ((1 << 20) - 1, 1 << 20, 1 << 20)])
def test_the_entry_is_what_the_file_holds(tmp_path: Path, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_file, "_FLUSH_BYTES", 1 << 20)
    parts = [np.random.default_rng(place).integers(0, 256, size, np.uint8) for place, size in enumerate(sizes)]
    with HashedFile(tmp_path / "file") as file:
        for part in parts:
            file.write(part)
    assert (tmp_path / "file").read_bytes() == b"".join(part.tobytes() for part in parts)
    assert file.entry == file.close() == hash_file(tmp_path / "file")


def write(path: Path, size: int, error: Exception | None = None) -> None:
    with HashedFile(path) as file:
        for _ in range(4):
            file.write(np.zeros(size, np.uint8))
        if error is not None:
            raise error


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_disk_that_is_full_is_an_error(size: int) -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), size)


def test_an_error_of_who_writes_comes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="own"):
        write(tmp_path / "file", 3 << 20, KeyError("own"))
