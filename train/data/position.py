"""Where a reader is, so that a resumed run reads on from there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class DataPosition:
    """A place in the stream of rows: `rows` rows of `epoch` (from 0) were read, by all ranks together.

    The stream is the same for any number of ranks and any batch size.
    """

    epoch: int = 0
    rows: int = 0

    def to_dict(self) -> dict[str, int]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`."""
        return cls(epoch=int(data["epoch"]), rows=int(data["rows"]))
