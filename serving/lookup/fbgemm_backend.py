"""The lookup backend of fbgemm: its table-batched kernel for inference, on a CPU or a GPU, where fbgemm is installed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from emberline.errors import MissingDependencyError
from emberline.schema import LookupSpec, ModelSchema, Pooling
from emberline.serving.lookup.backend import LookupBackend
from emberline.serving.lookup.bags import Bags
from emberline.serving.lookup.rows import BagRows
from emberline.serving.lookup.steps import Steps
from emberline.serving.lookup.torch_backend import normalize_weights
from emberline.serving.quantized import BITS

_TYPES = {"fp32": "FP32", "fp16": "FP16", "bf16": "FP32", "int8": "INT8", "int4": "INT4"}
"""What fbgemm calls our number types; it has no bfloat16, which it gets as float32."""


@dataclass(frozen=True, eq=False)
class _Kernel:
    """fbgemm's module with the tables of a whole model, and its lookups, in order.

    Args:
        module: takes ids, offsets, and weights where it has them.
        lookups: one for each of its features.
        takes_weights: else it takes none: all bags are sums of ids that count once.
    """

    module: nn.Module
    lookups: tuple[LookupSpec, ...]
    takes_weights: bool


class FbgemmLookup:
    """All pooled lookups of a batch by fbgemm, which has a copy of the tables; its sums differ from torch's by rounding alone.

    A mean is a sum of weighted rows. Steps, which are not pooled, are looked up by another backend.

    Args:
        schema: the model's description.
        kernel: fbgemm's; see `of`.
        others: for steps.
    """

    name = "fbgemm"

    def __init__(self, schema: ModelSchema, kernel: _Kernel, others: LookupBackend) -> None:
        self._kernel, self._others = kernel, others
        places = {feature.name: place for place, feature in enumerate(schema.sparse_features)}
        ends = list(accumulate((lookup.dim for lookup in kernel.lookups), initial=0))
        self._features = [places.get(lookup.feature) for lookup in kernel.lookups]
        """The place of each lookup's feature; None for one that is not in `schema`, which is a part of the model then."""
        own = [range(start, start + lookup.dim) for lookup, start in zip(kernel.lookups, ends, strict=False) if lookup.feature in places]
        self._columns = None if all(place is not None for place in self._features) else [column for part in own for column in part]

    @classmethod
    def of(
        cls, schema: ModelSchema, tables: Mapping[str, Tensor], types: Mapping[str, str], device: torch.device, others: LookupBackend
    ) -> LookupBackend:
        """The backend with a copy of the tables that are read by pooled lookups; `others` itself where there are none.

        Args:
            schema: the model's description.
            tables: stored rows of each table.
            types: the number type of each table; float32 where one is not there.
            device: where lookups run.
            others: for steps.

        Raises:
            MissingDependencyError: fbgemm cannot be imported, or takes no such table.
        """
        return cls(schema, _make_kernel(schema, tables, types, device), others) if schema.lookups else others

    def pooled(self, rows: BagRows) -> Tensor:
        """The lookups of a batch; see `LookupBackend`."""
        bags = rows.bags
        ids, offsets, weights, end = list[Tensor](), [torch.zeros(1, dtype=torch.int64, device=bags.device)], list[Tensor](), 0
        for feature, lookup in zip(self._features, self._kernel.lookups, strict=True):
            if feature is None:
                offsets.append(torch.full((bags.num_rows,), end, dtype=torch.int64, device=bags.device))
                continue
            ids.append(rows.of(feature, lookup.table))
            offsets.append(bags.offsets[feature][1:] + end)
            if self._kernel.takes_weights:
                weights.append(_weights(bags, feature, lookup))
            end += ids[-1].numel()
        if bags.num_rows == 0:
            found = torch.empty(0, sum(lookup.dim for lookup in self._kernel.lookups), device=bags.device)
        else:
            found = self._kernel.module(torch.cat(ids), torch.cat(offsets), torch.cat(weights) if weights else None)
        return found if self._columns is None else found[:, self._columns]

    def stepped(self, rows: BagRows, steps: Steps) -> dict[str, Tensor]:
        """The lookups that keep steps; see `LookupBackend`."""
        return self._others.stepped(rows, steps)

    def part(self, schema: ModelSchema) -> "LookupBackend":
        """A backend for some features of the model; see `LookupBackend`."""
        others = self._others.part(schema)
        return FbgemmLookup(schema, self._kernel, others) if schema.lookups else others


def _weights(bags: Bags, feature: int, lookup: LookupSpec) -> Tensor:
    """What each of a feature's rows counts in its bag's sum."""
    given, offsets = bags.weights_of(feature), bags.offsets[feature]
    if lookup.pooling is not Pooling.MEAN:
        return given if lookup.weighted else torch.ones_like(given)
    return normalize_weights(given if lookup.weighted else torch.ones_like(given), offsets)


def _make_kernel(schema: ModelSchema, tables: Mapping[str, Tensor], types: Mapping[str, str], device: torch.device) -> _Kernel:
    try:
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
    except (ImportError, OSError) as error:
        raise MissingDependencyError(f"lookups by fbgemm need the package fbgemm-gpu or fbgemm-gpu-cpu, which does not load: {error}") from error
    names = list(dict.fromkeys(lookup.table for lookup in schema.lookups))
    location = EmbeddingLocation.HOST if device.type == "cpu" else EmbeddingLocation.DEVICE
    dims = {lookup.table: lookup.dim for lookup in schema.lookups}
    _require_whole_bytes(names, dims, types)
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        [(name, tables[name].shape[0], dims[name], SparseType[_TYPES[types.get(name, "fp32")]], location) for name in names],
        feature_table_map=[names.index(lookup.table) for lookup in schema.lookups],
        pooling_mode=PoolingMode.SUM,
        device=device,
        bounds_check_mode=BoundsCheckMode.FATAL,
        output_dtype=SparseType.FP32,
    )
    module.initialize_weights()
    for name, (held, _) in zip(names, module.split_embedding_weights(split_scale_shifts=False), strict=True):
        table = tables[name].float() if types.get(name) == "bf16" else tables[name]
        stored = table.view(torch.uint8)
        width = min(held.shape[1], stored.shape[1])  # each side may fill rows up to a multiple of its own
        held[:, :width] = stored[:, :width]
    takes_weights = any(lookup.weighted or lookup.pooling is Pooling.MEAN for lookup in schema.lookups)
    return _Kernel(module, schema.lookups, takes_weights)


def _require_whole_bytes(names: Sequence[str], dims: Mapping[str, int], types: Mapping[str, str]) -> None:
    for name in names:
        bits = BITS.get(types.get(name, "fp32"), 8)
        if dims[name] * bits % 8:
            raise MissingDependencyError(
                f"fbgemm takes no table of {types[name]} and {dims[name]} numbers a row, as {name!r} is: look up by native or torch"
            )
