"""Which answers of a TorchScript program are nothing but columns of its inputs: they need no program, since looking up can put them there.

A program's graph is followed from its inputs, [B, width] each, through operators that cut matrices by columns, lay them side by side or leave them as
they are. An answer that comes of anything else is not known here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from emberline.program_inputs import ProgramInput
from emberline.serving.lookup.layout import Span

_FLOAT32 = 6
"""As a graph writes the type."""
_NONE = object()
"""A constant that is None, which is not nothing known."""
Columns = tuple[Span, ...]


def columns_of(graph: Any, inputs: Sequence[ProgramInput], names: Sequence[str]) -> dict[str, Columns]:
    """Answers by name that are columns of the inputs, side by side in this order.

    Args:
        graph: of a program that takes the inputs and gives a tuple, all calls inlined.
        inputs: in order.
        names: of the answers, in order.
    """
    given = list(graph.inputs())[1:]
    if len(given) != len(inputs):
        return {}
    follower = _Follower({value.debugName(): _whole(one) for value, one in zip(given, inputs, strict=True)})
    if not all(follower.follow(node) for node in graph.nodes()):
        return {}
    (result,) = graph.outputs()
    answers = follower.values.get(result.debugName())
    if not isinstance(answers, list) or len(answers) != len(names):
        return {}
    return {name: _joined(answer) for name, answer in zip(names, answers, strict=True) if isinstance(answer, tuple)}


def _whole(given: ProgramInput) -> Columns | None:
    """All columns of an input; None where it is no matrix of float32."""
    if given.dtype != "float32" or len(given.dims) != 2 or not isinstance(given.dims[1], int):
        return None
    return ((given.name, 0, given.dims[1]),)


class _Follower:
    """What is known of a graph's values, by name: columns of inputs, as a tuple of spans; a list of such; or a constant. None: nothing.

    Args:
        values: those of the inputs.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = dict(values)

    def follow(self, node: Any) -> bool:
        """Take in what a node gives; False where it may change what was known before."""
        kind, outputs = node.kind(), [value.debugName() for value in node.outputs()]
        given = [self.values.get(value.debugName()) for value in node.inputs()]
        if kind == "prim::Constant":
            constant = node.output().toIValue()
            self.values[outputs[0]] = _NONE if constant is None else constant
        elif kind in ("prim::ListConstruct", "prim::TupleConstruct"):
            self.values[outputs[0]] = given
        elif kind == "prim::ListUnpack":
            parts = given[0] if isinstance(given[0], list) and len(given[0]) == len(outputs) else [None] * len(outputs)
            self.values.update(zip(outputs, parts, strict=True))
        elif kind in _OPERATORS and "!" not in node.schema():
            self.values[outputs[0]] = _OPERATORS[kind](*given)
        else:
            return kind == "prim::GetAttr" or not (list(node.blocks()) or node.schema() == "(no schema)" or "!" in node.schema())
        return True


def _cat(parts: object, dim: object) -> object:
    if dim not in (1, -1) or not isinstance(parts, list) or not all(isinstance(part, tuple) for part in parts):
        return None
    return tuple(span for part in parts for span in part)


def _split(matrix: object, sizes: object, dim: object) -> object:
    if dim not in (1, -1) or not isinstance(matrix, tuple) or not isinstance(sizes, list) or not all(isinstance(size, int) for size in sizes):
        return None
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [_cut(matrix, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _slice(matrix: object, *rest: object) -> object:
    """Of a matrix; lists are sliced by an operator of the same name, which takes no dimension."""
    if not isinstance(matrix, tuple) or len(rest) != 4:
        return None
    dim, first, stop, step = rest
    start, end = 0 if first is _NONE else first, 2**62 if stop is _NONE else stop
    if step != 1 or not isinstance(start, int) or not isinstance(end, int) or start < 0 or end < start:
        return None
    if dim == 0:
        return matrix if start == 0 and end >= 2**62 else None
    return _cut(matrix, start, min(end, _width(matrix))) if dim == 1 else None


def _to(matrix: object, dtype: object, *_: object) -> object:
    return matrix if dtype == _FLOAT32 else None


def _same(matrix: object, *_: object) -> object:
    return matrix


_OPERATORS: Mapping[str, Callable[..., object]] = {
    "aten::cat": _cat,
    "aten::split": _split,
    "aten::split_with_sizes": _split,
    "aten::slice": _slice,
    "aten::to": _to,
    "aten::contiguous": _same,
    "aten::detach": _same,
}


def _width(matrix: Columns) -> int:
    return sum(stop - first for _, first, stop in matrix)


def _cut(matrix: Columns, start: int, stop: int) -> Columns | None:
    """Columns [start, stop) of a matrix."""
    if stop > _width(matrix):
        return None
    found, column = list[Span](), 0
    for name, first, end in matrix:
        low, high = max(start - column, 0), min(stop - column, end - first)
        if low < high:
            found.append((name, first + low, first + high))
        column += end - first
    return tuple(found)


def _joined(matrix: Columns) -> Columns:
    """The same, with spans that go on where another ended made one."""
    found = list[Span]()
    for name, first, stop in matrix:
        if found and found[-1][0] == name and found[-1][2] == first:
            found[-1] = (name, found[-1][1], stop)
        else:
            found.append((name, first, stop))
    return tuple(found)
