"""The id index's kernel on this machine."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emberline.compiled import COMPILERS, library_folders
from emberline.serving.remap import native


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler here")
def test_the_kernel_of_this_machine() -> None:
    assert isinstance(native.KERNEL.get(), ctypes.CDLL)
    command = [sys.executable, "-m", "emberline.serving.remap.native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    path = Path(done.stdout.strip())
    assert path.is_file()
    assert path.parent in library_folders(Path(native.__file__))
