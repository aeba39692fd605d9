"""Libraries of C files: compiled once, found again, and what is said where one cannot be had."""

import ctypes
import logging
import shutil
from pathlib import Path

import pytest

from emberline import compiled
from emberline.compiled import Kernel, open_library
from emberline.errors import MissingDependencyError

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, compiled.COMPILERS)), reason="there is no C compiler here")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "double.c"
    path.write_text("int twice(int number) { return 2 * number; }")
    return path


@needs_compiler
def test_a_library_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made" / "here"
    library, path = open_library(source, [folder])
    assert (library.twice(21), list(folder.iterdir())) == (42, [path])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert open_library(source, [tmp_path / "absent", folder])[1] == path
    source.write_text("int twice(int number) { return 3 * number; }")
    with pytest.raises(MissingDependencyError, match=r"^there is no C compiler \(cc, gcc, clang\)$"):
        open_library(source, [folder])


@needs_compiler
def test_a_changed_source_is_compiled_again(source: Path, tmp_path: Path) -> None:
    _, first = open_library(source, [tmp_path / "lib"])
    source.write_text("int twice(int number) { return number + number; }")
    library, second = open_library(source, [tmp_path / "lib"])
    assert (library.twice(4), first != second) == (8, True)


@needs_compiler
def test_what_does_not_load_is_compiled_again(source: Path, tmp_path: Path) -> None:
    _, path = open_library(source, [tmp_path / "lib"])
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_text("made for another machine")
    library, again = open_library(source, [other])
    assert (library.twice(4), again) == (8, other / path.name)


@needs_compiler
def test_the_next_folder_is_taken_where_one_cannot_be_written_to(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    library, path = open_library(source, [tmp_path / "a file" / "lib", tmp_path / "lib"])
    assert (library.twice(4), path.parent) == (8, tmp_path / "lib")
    with pytest.raises(MissingDependencyError, match=r"^none of .*a file/x can be written to$"):
        open_library(source, [tmp_path / "a file" / "x"])


def test_a_user_without_a_home_has_one_folder(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert compiled.library_folders(source) == (source.parent / "__pycache__",)


@needs_compiler
def test_the_next_folder_is_taken_where_the_librarys_name_is_taken(source: Path, tmp_path: Path) -> None:
    _, path = open_library(source, [tmp_path / "lib"])
    (tmp_path / "taken" / path.name / "folder").mkdir(parents=True)
    library, again = open_library(source, [tmp_path / "taken", tmp_path / "next"])
    assert (library.twice(4), again) == (8, tmp_path / "next" / path.name)


@needs_compiler
def test_a_compiler_that_fails(tmp_path: Path) -> None:
    bad = tmp_path / "bad.c"
    bad.write_text("this is no C")
    with pytest.raises(MissingDependencyError, match=r"^the C compiler fails: .*bad\.c"):
        open_library(bad, [tmp_path / "lib"])
    assert list((tmp_path / "lib").iterdir()) == []


@needs_compiler
def test_flags_make_another_library(tmp_path: Path) -> None:
    source = tmp_path / "factor.c"
    source.write_text("int times(int number) { return FACTOR * number; }")
    found = [open_library(source, [tmp_path / "lib"], [f"-DFACTOR={factor}"])[0].times(7) for factor in (2, 3, 2)]
    assert found == [14, 21, 14]


def kernel_of(source: Path) -> Kernel:
    def declare(library: ctypes.CDLL) -> None:
        library.twice.restype = ctypes.c_int

    return Kernel(source, declare, stand_in="fingers", without="numbers are doubled by hand")


def test_without_a_kernel_the_reason_is_logged_once(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiled, "library_folders", lambda source: (tmp_path,))
    kernel = kernel_of(source)
    with caplog.at_level(logging.WARNING):
        assert [kernel.get(), kernel.get()] == [None, None]
    reason = "there is no C compiler (cc, gcc, clang)"
    assert [record.getMessage() for record in caplog.records] == [f"numbers are doubled by hand, since {reason}"]
    assert kernel.main() == 1
    assert capsys.readouterr().err == f"fingers: {reason}\n"


@needs_compiler
def test_a_kernel_is_loaded_once(source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "library_folders", lambda source: (tmp_path,))
    kernel = kernel_of(source)
    library = kernel.get()
    assert library is not None
    assert (library.twice(21), kernel.get() is library) == (42, True)
    assert kernel.main() == 0
    assert Path(capsys.readouterr().out.strip()).parent == tmp_path
    kernel.forget()
    assert kernel.get() is not library
