"""Inputs of programs of many sizes, to trace with and to compare on.

Sizes of sequences and bags go by the inputs' names: `lengths.x` or `step_counts.x` [B] holds how many of `N.x` or `S.x` each row has, `L.x` is the
most of a row, and `step_lengths.x` [S] holds how many of `M.x` each of these has. Of tiled programs `rows` [B] holds a user for each row, and
`places.x` which of the users' steps each step of the rows is, so that it goes by both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberline.program_inputs import ROWS, USERS, ProgramInput, TiledStream
from emberline.serving.tiled_inputs import step_places

_CHECKED_ROWS = (0, 1, 2, 7, 64)
_TRACED_ROWS, _TRACED_USERS = 3, 5
_MOST_ITEMS = 6
_TRACED_ITEMS = 100_000

_LENGTHS = {"lengths": ("N", "L"), "step_counts": ("S", "L"), "step_lengths": ("M", "")}
"""Inputs that hold how many of something there are, in an order in which each can be made: the sizes of their sum and of their largest."""

Tensors = tuple[Tensor, ...]
Counts = Callable[[int, int], Tensor]
"""From the place of a list of lengths among all, and how many it needs, to the list."""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Makes inputs of one program.

    Args:
        inputs: what it takes.
        limits: for integer inputs that are rows of tables, by name: how many rows there are.
        streams: of a program for tiled requests.
    """

    inputs: tuple[ProgramInput, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    streams: Sequence[TiledStream] = ()

    def example(self) -> Tensors:
        """Inputs to trace with: no size is 0, 1 or equal to another, so that a tracer cannot take any for fixed or for the same."""
        return self._make(_TRACED_ROWS, _TRACED_USERS, 0, _distinct_counts)

    def samples(self) -> list[tuple[str, Tensors]]:
        """What to compare on: some rows each, with the sample's name; of sequences and bags also rows without any step or id.

        Of tiled requests they are rows of fewer users, some of whom have none; of one user; and of users without any row.
        """
        found = [(f"{rows} rows", self._make(rows, (rows + 1) // 2, rows, _drawn_counts(rows))) for rows in _CHECKED_ROWS]
        if any(_kind(given) in _LENGTHS for given in self.inputs):
            found.append(("3 rows without steps or ids", self._make(3, 2, 3, lambda place, count: torch.zeros(count, dtype=torch.int64))))
        if any(given.name == "rows" for given in self.inputs):
            found.append(("9 rows of one user", self._make(9, 1, 5, _drawn_counts(5))))
            found.append(("0 rows of 2 users", self._make(0, 2, 6, _drawn_counts(6))))
        return found

    def _make(self, rows: int, users: int, seed: int, counts: Counts) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        sizes, made = {ROWS: rows, USERS: users}, dict[str, Tensor]()
        # The first user has no row where there are several, and the last one has.
        made["rows"] = (torch.arange(rows) * 2 + 1).clamp(max=users - 1)
        self._add_lengths(made, sizes, counts)
        for stream in self.streams:
            parts = [name for name in (stream.user, stream.item) if name is not None]
            sizes[f"L.{stream.whole.name}"] = max(sizes[f"L.{name}"] for name in parts)
            if stream.user is not None:
                places = made[f"places.{stream.user}"] = step_places(made[f"lengths.{stream.user}"], made["rows"])
                sizes[f"M.{stream.user}"] = places.numel()
        for given in self.inputs:
            if given.name not in made:
                shape = [size if isinstance(size, int) else sizes[size] for size in given.dims]
                made[given.name] = self._values(given, shape, generator)
        return tuple(made[given.name] for given in self.inputs)

    def _add_lengths(self, made: dict[str, Tensor], sizes: dict[str, int], counts: Counts) -> None:
        """All lists of lengths, and the sizes that follow from them."""
        order = list(_LENGTHS)
        as_of_users = {f"lengths.{stream.item}": f"lengths.{stream.user}" for stream in self.streams if stream.user and stream.item}
        listed = sorted((given for given in self.inputs if _kind(given) in order), key=lambda given: order.index(_kind(given)))
        for place, given in enumerate(listed):
            kind, _, key = given.name.partition(".")
            users = as_of_users.get(given.name)
            lengths = made[given.name] = counts(place, sizes[str(given.dims[0])]) if users is None else made[users][made["rows"]]
            total, longest = _LENGTHS[kind]
            sizes[f"{total}.{key}"] = int(lengths.sum())
            if longest:
                sizes[f"{longest}.{key}"] = int(lengths.max()) if lengths.numel() else 0

    def _values(self, given: ProgramInput, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if given.dtype == "int64":
            limit = self.limits.get(given.name)
            return torch.arange(shape[0]) if limit is None else torch.randint(0, limit, tuple(shape), generator=generator)
        # Of both signs, small and large, with some rows that are all zero as those of empty bags are.
        values = torch.randn(*shape, generator=generator) * 3
        values[1::4] = 0
        return values


def _kind(given: ProgramInput) -> str:
    return given.name.partition(".")[0]


def _distinct_counts(place: int, count: int) -> Tensor:
    """Lengths whose sum is odd, whose largest is even, and both of which no other list has."""
    if count in (_TRACED_ROWS, _TRACED_USERS):
        longest = 10 + 2 * place
        return torch.tensor([longest, *[0] * (count - 2), longest - 3])
    lengths = torch.ones(count, dtype=torch.int64)
    lengths[0] = _TRACED_ITEMS + 2 * place + count % 2
    return lengths


def _drawn_counts(seed: int) -> Counts:
    """Lengths with empty and long ones, of an odd sum where there are several."""
    generator = torch.Generator().manual_seed(seed + 1)

    def draw(place: int, count: int) -> Tensor:
        lengths = torch.randint(0, _MOST_ITEMS, (count,), generator=generator)
        lengths[::3] = 0
        if count > 1:
            lengths[1] += 1 - lengths.sum() % 2
        return lengths

    return draw
