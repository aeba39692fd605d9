"""The compiled form of the id index: `kernel.c`, for CPUs.

A machine without it does the same work by numpy and torch, with the same answers: `emberline doctor` tells which it is. See `emberline.compiled`.
"""

import ctypes
import sys
from pathlib import Path

from emberline.compiled import Kernel

_ADDRESS, _INT64, _UINT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32


def _declare(library: ctypes.CDLL) -> None:
    lines = (_ADDRESS, _UINT64, _UINT64)  # the lines, the number of homes, the seed
    build, lookup = library.emberline_remap_build, library.emberline_remap_lookup
    build.argtypes, build.restype = (_ADDRESS, _ADDRESS, _INT64, *lines, _INT32, _ADDRESS), _INT32
    lookup.argtypes, lookup.restype = (_ADDRESS, _INT64, *lines, _INT64, _ADDRESS, _ADDRESS, _INT32), None


KERNEL = Kernel(
    Path(__file__).with_name("kernel.c"),
    _declare,
    stand_in="numpy and torch",
    without="raw ids are looked up by numpy and torch, which is slower",
)

if __name__ == "__main__":
    sys.exit(KERNEL.main())
