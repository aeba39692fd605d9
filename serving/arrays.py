"""Arrays of a request, read as flat ones of the type that is wanted, or refused by name."""

from typing import Any

import numpy as np
import numpy.typing as npt

from emberline.errors import RequestError

INT32_MAX = 2**31 - 1


def flat(name: str, given: npt.NDArray[Any] | None, *, wanted: bool, optional: bool = False) -> npt.NDArray[Any]:
    """The array as [n]; an input that the model lacks must be absent or empty, and one that it has must be there unless it is optional.

    Raises:
        RequestError: it is missing, surplus, or of another shape than [n] or [1, n].
    """
    if given is None:
        if wanted and not optional:
            raise RequestError(f"{name} is missing")
        return np.empty(0)
    array = np.asarray(given)
    if not (array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 1)):
        raise RequestError(f"{name} has shape {list(array.shape)}; send [n] or [1, n]: one request is one batch item, whatever its number of rows")
    if array.size and not wanted:
        raise RequestError(f"{name}: the model takes none, found {array.size}")
    return array.reshape(-1)


def integers(name: str, array: npt.NDArray[Any]) -> None:
    """Refuse what holds no whole numbers."""
    if array.dtype.kind not in "iu":
        raise RequestError(f"{name} must be integers, found {array.dtype}")


def floats(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Numbers as float32; those that are too large become infinite."""
    if array.dtype.kind not in "fiu":
        raise RequestError(f"{name} must be numbers, found {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def first(values: npt.NDArray[Any], where: npt.NDArray[np.bool_]) -> Any:
    """The first of `values` at a true place."""
    return values[int(np.argmax(where))]


def counts(name: str, given: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Flat whole numbers as int32, negative ones too.

    Raises:
        RequestError: they are no whole numbers, or one does not fit.
    """
    if given.size == 0:
        return np.empty(0, np.int32)
    integers(name, given)
    if given.dtype != np.int32 and (given.max() > INT32_MAX or given.min() < -INT32_MAX):
        raise RequestError(f"{name}: {first(given, np.abs(given.astype(np.float64)) > INT32_MAX)} does not fit INT32")
    return np.ascontiguousarray(given, dtype=np.int32)
