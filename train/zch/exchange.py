"""Ids on their way to the rank that owns them: mixed where their table asks for it, so that small numbers spread over the ranks."""

from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.mc_modules import ManagedCollisionCollectionSharder, ShardedManagedCollisionCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.train.zch.id_map import IdMap
from emberline.train.zch.routing import mix


class ShardedMaps(ShardedManagedCollisionCollection):  # type: ignore[misc]
    """The id maps of one collection, each cut by rows over all ranks."""

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor, skip_permute: bool = False) -> Any:
        """Send each id to its owner. Ids are int64 from here on."""
        return super().input_dist(ctx, self._as_sent(features), skip_permute)

    def _as_sent(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        ids = features.values().to(torch.int64)
        keys = features.keys()
        is_mixed = [self._map_of(key).is_sent_mixed for key in keys]
        if not any(is_mixed) and ids is features.values():
            return features
        sent = mix(ids) if all(is_mixed) else _mixed_parts(ids, features.offset_per_key(), is_mixed)
        return KeyedJaggedTensor(
            keys=keys,
            values=sent,
            weights=features.weights_or_none(),
            lengths=features.lengths(),
            offsets=features.offsets(),
            stride=features.stride(),
            length_per_key=features.length_per_key(),
            offset_per_key=features.offset_per_key(),
        )

    def _map_of(self, key: str) -> IdMap:
        found = self._managed_collision_modules[self._feature_to_table[key]]
        assert isinstance(found, IdMap)
        return found


class MapSharder(ManagedCollisionCollectionSharder):  # type: ignore[misc]
    """Of id maps."""

    def shard(
        self,
        module: Any,
        params: Any,
        env: Any,
        embedding_shardings: Any,
        device: torch.device | None = None,
        use_index_dedup: bool = False,
    ) -> ShardedMaps:
        """As TorchRec's sharder."""
        device = device or torch.device("cpu")
        return ShardedMaps(module, params, env=env, device=device, embedding_shardings=embedding_shardings, use_index_dedup=use_index_dedup)


def _mixed_parts(ids: Tensor, ends: list[int], is_mixed: list[bool]) -> Tensor:
    """Ids of which some keys' are mixed; `ends` has where each key's begin, and the end."""
    parts = [mix(ids[first:end]) if mixed else ids[first:end] for first, end, mixed in zip(ends, ends[1:], is_mixed, strict=False)]
    return torch.cat(parts) if parts else ids
