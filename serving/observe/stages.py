"""How long the stages of a model's batches take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from emberline.serving.observe.context import note_stage
from emberline.serving.tallies import Tally

STAGES = ("queue", "encode", "remap", "lookup", "program")
"""Waiting in the queue, rows into tensors, raw ids into rows of tables, reading these, and what the model's programs make of them."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Histograms of seconds, one value a batch for each stage that it went through.

    Args:
        queue: how long the batch's requests waited, on the average.
        encode: of batches with plain rows.
        remap: of batches that are checked and merged by steps; in others it is in `lookup`.
        lookup: with the checks of the requests and `remap`, where one call does all of it.
        program: of batches that ask for what programs make.
    """

    queue: Tally
    encode: Tally
    remap: Tally
    lookup: Tally
    program: Tally

    @classmethod
    def of(cls, tally: Callable[[str], Tally]) -> Self:
        """One tally for each stage, by name."""
        return cls(**{name: tally(name) for name in STAGES})


class NotedTally(Tally):
    """Adds to another tally, and tells the requests that are being computed.

    Args:
        name: of the stage.
        tally: the other.
    """

    __slots__ = ("_name", "_tally")

    def __init__(self, name: str, tally: Tally) -> None:
        super().__init__(())
        self._name, self._tally = name, tally

    def add(self, value: float) -> None:
        """One more value."""
        self._tally.add(value)
        note_stage(self._name, value)


UNSEEN = Stages.of(lambda _: Tally(()))
"""Which nobody reads."""
