"""Tables that grow, cut by rows over all ranks: an id's rank is decided by its place, which is the id itself, mixed (`emberline.routing`).

    ids ─► mix ─► ranges of [0, 2^63-1), one a rank ─► all-to-all ─► kernel: unmix, look up ─► summed over ranks, or sent back by position

Places travel instead of ids: `mix` is one-to-one, and the ranges are cut by the numbers that travel. With one rank nothing is mixed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding, RwSparseFeaturesDist
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.routing import mix
from emberline.train.dynamic.options import DynamicEmbOptions, DynamicRuntime
from emberline.train.dynamic.sharding import DynamicEmbParameterSharding
from emberline.train.sharding.dynamic_kernels import DynamicBagLookup, DynamicStepLookup

HASHED_ROWS = "row_wise by hash"
"""What TorchRec's modules call the sharding of these tables, beside its own sharding types."""
_PLACES = 2**63 - 1


def is_dynamic(sharding: ParameterSharding) -> bool:
    """Whether a plan gives a table to our kernel of tables that grow; those of NVIDIA's kernel are described by its own class."""
    return isinstance(sharding, DynamicEmbParameterSharding)


def split_dynamic(infos: Mapping[str, list[EmbeddingShardingInfo]]) -> dict[str, list[EmbeddingShardingInfo]]:
    """Tables by sharding type -> the same, those that grow under `HASHED_ROWS`, behind all others."""
    static = {kind: [info for info in own if not is_dynamic(info.param_sharding)] for kind, own in infos.items()}
    hashed = [info for own in infos.values() for info in own if is_dynamic(info.param_sharding)]
    return {kind: own for kind, own in {**static, HASHED_ROWS: hashed}.items() if own}


class PlacesDist(RwSparseFeaturesDist):  # type: ignore[misc]
    """Sends each id to its rank, as its place.

    Args:
        pg: the group of all ranks.
        num_features: reads of the tables.
        device: of this rank.
        is_sequence: whether vectors come back by position.
    """

    def __init__(self, pg: Any, num_features: int, device: torch.device | None, *, is_sequence: bool) -> None:
        sizes = [_PLACES] * num_features
        super().__init__(
            pg=pg, num_features=num_features, feature_hash_sizes=sizes, device=device, is_sequence=is_sequence, keep_original_indices=True
        )

    def forward(self, sparse_features: KeyedJaggedTensor) -> Any:
        """Ids of this rank's rows -> an awaitable of an awaitable of the places, int64, that this rank owns."""
        ids = sparse_features.values().to(torch.int64)
        return super().forward(with_ids(sparse_features, mix(ids) if self._world_size > 1 else ids))


class _Hashed:
    """What both kinds of sharding have in common.

    Args:
        sharding_infos: tables that grow.
        env: of all ranks.
        device: of this rank.
        runtime: what the job knows.
    """

    _is_sequence = False
    _pg: Any
    _device: torch.device
    _env: ShardingEnv
    _grouped_embedding_configs: Any
    _get_num_features: Any

    def __init__(
        self,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None = None,
        *,
        runtime: DynamicRuntime | None = None,
        qcomm_codecs_registry: Any = None,
    ) -> None:
        super().__init__(sharding_infos, env, device, qcomm_codecs_registry=qcomm_codecs_registry)  # type: ignore[call-arg]
        self._runtime = runtime or DynamicRuntime()
        self._options: dict[str, DynamicEmbOptions] = {info.embedding_config.name: info.param_sharding.dynamicemb_options for info in sharding_infos}

    def create_input_dist(self, device: torch.device | None = None) -> PlacesDist:
        """What sends ids to their ranks."""
        return PlacesDist(self._pg, self._get_num_features(), device or self._device, is_sequence=self._is_sequence)


class HashedBags(_Hashed, RwPooledEmbeddingSharding):  # type: ignore[misc]
    """Of tables that are read pooled."""

    def create_lookup(self, device: torch.device | None = None, fused_params: Any = None, feature_processor: Any = None) -> DynamicBagLookup:
        """The kernels on this rank."""
        return DynamicBagLookup(self._options, self._runtime, self._grouped_embedding_configs, device or self._device, self._pg, self._env)


class HashedSteps(_Hashed, RwSequenceEmbeddingSharding):  # type: ignore[misc]
    """Of tables that are read by position."""

    _is_sequence = True

    def create_lookup(self, device: torch.device | None = None, fused_params: Any = None, feature_processor: Any = None) -> DynamicStepLookup:
        """The kernels on this rank."""
        return DynamicStepLookup(self._options, self._runtime, self._grouped_embedding_configs, device or self._device, self._pg, self._env)


def with_ids(features: KeyedJaggedTensor, ids: Tensor) -> KeyedJaggedTensor:
    """The same bags, weights and batch sizes, of other ids."""
    is_variable = features.variable_stride_per_key()
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=ids,
        weights=features.weights_or_none(),
        lengths=features.lengths(),
        offsets=features.offsets(),
        stride=None if is_variable else features.stride(),
        stride_per_key_per_rank=features.stride_per_key_per_rank() if is_variable else None,
        length_per_key=features.length_per_key(),
        offset_per_key=features.offset_per_key(),
    )
