"""The golden sample: a request and the trained model's answers, stored in the artifact so that every engine checks itself against it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from emberline.program_inputs import TILED
from emberline.serving.files import write_tensors
from emberline.serving.golden import REQUEST_PARTS
from emberline.serving.request import PackedRequest

GOLDEN_NAME = "golden.safetensors"


@dataclass(frozen=True, eq=False)
class Sample:
    """A request and its answers.

    Args:
        request: the request.
        outputs: the trained model's outputs for it, by name.
        groups: the trained model's group tensors for it, by name.
    """

    request: PackedRequest
    outputs: Mapping[str, Tensor]
    groups: Mapping[str, Tensor]


def write_golden(root: Path, sample: Sample, tiled: Sample | None = None) -> None:
    """Write `root/golden.safetensors`, over one that is there.

    Args:
        root: the artifact's folder.
        sample: of an untiled request.
        tiled: of a tiled one; its tensors' names begin with `tiled_`.
    """
    tensors = _tensors(sample)
    if tiled is not None:
        tensors |= {TILED + name: tensor for name, tensor in _tensors(tiled).items()}
    write_tensors(root / GOLDEN_NAME, tensors)


def _tensors(sample: Sample) -> dict[str, Tensor]:
    """A sample by tensor name."""
    request = sample.request
    parts = {name: getattr(request, name) for name in REQUEST_PARTS}
    tensors = {name: torch.from_numpy(part) for name, part in parts.items() if part is not None}
    # An empty array has no stride, which the writer asks for.
    tensors = {name: tensor if tensor.numel() else torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()}
    tensors |= {f"output.{name}": answer for name, answer in sample.outputs.items()}
    return tensors | {f"group.{name}": answer for name, answer in sample.groups.items()}
