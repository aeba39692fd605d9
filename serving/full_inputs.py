"""What a `full` program takes, of one batch: the rows that its ids read, found by the maps of raw ids, which no program holds."""

import torch
from torch import Tensor

from emberline.schema import ModelSchema
from emberline.serving.lookup import BagRows, StepCutter
from emberline.serving.lookup.bags import tensor
from emberline.serving.request import CheckedRequest


class FullInputMaker:
    """Makes the inputs that `full_inputs` lists, for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._schema = schema
        self._order = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        self._cut = StepCutter(schema) if schema.streams else None

    def __call__(self, rows: BagRows, request: CheckedRequest) -> dict[str, Tensor]:
        """The inputs of a batch, by name.

        Args:
            rows: what the batch's ids read.
            request: the batch.
        """
        bags, inputs = rows.bags, dict[str, Tensor]()
        for lookup in self._schema.lookups:
            feature = self._order[lookup.feature]
            inputs[f"rows.{lookup.key}"] = rows.of(feature, lookup.table)
            inputs[f"lengths.{lookup.key}"] = bags.offsets[feature].diff()
            if lookup.weighted:
                inputs[f"weights.{lookup.key}"] = bags.weights_of(feature)
        inputs["dense"] = tensor(request.dense, bags.device).view(request.num_rows, self._schema.dense_dim)
        return inputs if self._cut is None else inputs | self._steps(rows, request, self._cut)

    def _steps(self, rows: BagRows, request: CheckedRequest, cut: StepCutter) -> dict[str, Tensor]:
        bags, inputs = rows.bags, dict[str, Tensor]()
        steps = cut(request, bags.device)
        for lookup in self._schema.sequence_lookups:
            feature, offsets = self._order[lookup.feature], steps.offsets[lookup.feature]
            ids = inputs[f"step_rows.{lookup.key}"] = rows.of(feature, lookup.table)
            inputs[f"step_lengths.{lookup.key}"] = torch.ones_like(ids) if offsets is None else offsets.diff()
            if lookup.weighted:
                inputs[f"step_weights.{lookup.key}"] = bags.weights_of(feature)
        inputs |= {f"steps.{name}": values for name, values in steps.numbers.items()}
        inputs |= {f"step_counts.{stream}": lengths for stream, lengths in steps.lengths.items()}
        return inputs | {f"positions.{stream}": torch.arange(longest, device=bags.device) for stream, longest in steps.longest.items()}
