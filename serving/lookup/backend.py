"""What a lookup backend is."""

from typing import Protocol

from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup.rows import BagRows
from emberline.serving.lookup.steps import Steps


class LookupBackend(Protocol):
    """Holds a model's tables and answers for any batch. Never changes, so any number of threads may call it.

    Args:
        name: as it is chosen by.
    """

    name: str

    def pooled(self, rows: BagRows) -> Tensor:
        """The lookups of a batch.

        Args:
            rows: of ids that were checked: each within its table.

        Returns:
            float32 [B, P], in the order of the schema's lookups; zeros for an empty bag.
        """

    def stepped(self, rows: BagRows, steps: Steps) -> dict[str, Tensor]:
        """The lookups that keep the steps of a batch's sequences.

        Args:
            rows: as for `pooled`.
            steps: of the same batch.

        Returns:
            float32 [S, dim] by the lookup's key, row after row; zeros for a step without ids.
        """

    def part(self, schema: ModelSchema) -> "LookupBackend":
        """A backend for some features of the model, which shares the tables of this one.

        Args:
            schema: has these features and their lookups.
        """
