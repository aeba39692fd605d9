"""The steps of one batch's sequences, cut by feature.

Letters: B rows, S steps of one sequence, v numbers of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emberline.program_inputs import step_inputs
from emberline.schema import FeatureKind, ModelSchema
from emberline.serving.lookup.bags import tensor
from emberline.serving.request import CheckedRequest


@dataclass(frozen=True, eq=False)
class Steps:
    """The sequences of a batch on the engine's device.

    Args:
        offsets: of each sparse sequence, by its name: int64 [S + 1] from 0: step s holds its ids [offsets[s], offsets[s + 1]); None where each step
            has one id.
        numbers: of each dense sequence that a group reads, by its name: float32 [S, v].
        lengths: by a stream's name: int64 [B], steps of each row.
        longest: by the name of a stream that is padded: steps of the longest row, 0 where there are no rows.
    """

    offsets: Mapping[str, Tensor | None]
    numbers: Mapping[str, Tensor]
    lengths: Mapping[str, Tensor]
    longest: Mapping[str, int]


class StepCutter:
    """Cuts requests for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._sequences = [(feature.name, feature.kind is FeatureKind.SPARSE, feature.value_dim) for feature in schema.sequences]
        self._streams = {stream.name: stream.padded for stream in schema.streams}
        self._read = {key for key, _, _ in step_inputs(schema)}

    def __call__(self, request: CheckedRequest, device: torch.device) -> Steps:
        """The sequences of a checked request."""
        table = request.steps.reshape(len(self._sequences), request.num_rows)
        totals = table.sum(axis=1, dtype=np.int64).tolist()
        offsets, numbers, lengths, longest = {}, {}, {}, {}
        sizes_end = numbers_end = 0
        for (name, is_sparse, width), steps, total in zip(self._sequences, table, totals, strict=True):
            if is_sparse:
                start, sizes_end = sizes_end, sizes_end + total
                sizes = None if request.step_lengths is None else request.step_lengths[start:sizes_end]
                offsets[name] = None if sizes is None or bool((sizes == 1).all()) else tensor(_offsets(sizes), device)
            else:
                start, numbers_end = numbers_end, numbers_end + total * width
                if name in self._read:
                    numbers[name] = tensor(request.dense_steps[start:numbers_end].reshape(total, width), device)
            if name in self._streams:
                lengths[name] = tensor(steps.astype(np.int64), device)
                if self._streams[name]:
                    longest[name] = int(steps.max()) if steps.size else 0
        return Steps(offsets, numbers, lengths, longest)


def _offsets(sizes: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    found = np.zeros(sizes.size + 1, np.int64)
    sizes.cumsum(out=found[1:])
    return found
