"""What a plan says of one table that grows: TorchRec's place of a table, with what the kernel needs beyond it."""

from dataclasses import dataclass, fields
from typing import Any

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding

from emberline.train.dynamic.options import CUSTOMIZED_COMPUTE_KERNEL, DynamicEmbOptions

HASHED = "hash"
"""How ids find their rank: `emberline.routing.owner_of`, which spreads any ids evenly."""


@dataclass
class DynamicEmbParameterSharding(ParameterSharding):  # type: ignore[misc]
    """The place of a table that grows: on all ranks, each with a part of the ids.

    Args:
        compute_kernel: TorchRec's name for kernels that are not its own.
        customized_compute_kernel: which of those.
        dist_type: how ids find their rank.
        dynamicemb_options: how the table grows, and where its rows are; a plan always says it.
    """

    compute_kernel: str = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
    customized_compute_kernel: str = CUSTOMIZED_COMPUTE_KERNEL
    dist_type: str = HASHED
    dynamicemb_options: DynamicEmbOptions | None = None


def with_growth(placed: ParameterSharding, options: DynamicEmbOptions) -> DynamicEmbParameterSharding:
    """The same place, of a table that grows so."""
    kept: dict[str, Any] = {field.name: getattr(placed, field.name) for field in fields(ParameterSharding)}
    kept |= {"compute_kernel": EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value, "cache_params": None}
    return DynamicEmbParameterSharding(**kept, dynamicemb_options=options)
