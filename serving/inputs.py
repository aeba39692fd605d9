"""What a program takes, of one batch: lookups, and what the request itself brings."""

import torch
from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup import BagRows, LookupBackend, StepCutter
from emberline.serving.lookup.bags import tensor
from emberline.serving.request import CheckedRequest


class InputMaker:
    """Makes the inputs that `program_inputs` lists, for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._dense_dim = schema.dense_dim
        self._cut = StepCutter(schema) if schema.streams else None

    def __call__(self, lookup: LookupBackend, rows: BagRows, request: CheckedRequest) -> dict[str, Tensor]:
        """The inputs of a batch, by name.

        Args:
            lookup: has the tables.
            rows: what the batch's ids read.
            request: the batch.
        """
        device = rows.bags.device
        inputs = {"pooled": lookup.pooled(rows), "dense": tensor(request.dense, device).view(request.num_rows, self._dense_dim)}
        if self._cut is not None:
            steps = self._cut(request, device)
            inputs |= {f"steps.{name}": values for name, values in {**lookup.stepped(rows, steps), **steps.numbers}.items()}
            inputs |= {f"lengths.{stream}": lengths for stream, lengths in steps.lengths.items()}
            inputs |= {f"positions.{stream}": torch.arange(longest, device=device) for stream, longest in steps.longest.items()}
        return inputs
