"""The rows of a batch to come, brought near before its turn: only for tables that grow and keep rows in a second tier."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from emberline.train.data import Batch
from emberline.train.sharding.dynamic_kernels import has_second_tier


class Prefetcher:
    """Tells kernels which ids they will be asked for. It changes no number.

    Ids must be where their rows are, so with several ranks they are exchanged once more, for those collections alone.

    Args:
        collections: sharded, by the names by which a batch that was checked says what each is asked for.
    """

    def __init__(self, collections: Mapping[str, nn.Module]) -> None:
        self._collections = {name: module for name, module in collections.items() if any(map(has_second_tier, _lookups(module)))}

    def __bool__(self) -> bool:
        """Whether there is anything to bring near; the same on all ranks."""
        return bool(self._collections)

    def prefetch(self, batch: Batch) -> None:
        """Bring near what a batch will ask for; all ranks must call it together.

        Args:
            batch: checked; one that was not is left alone.
        """
        if batch.checked is None:
            return
        for name, module in self._collections.items():
            sharded: Any = module
            prefetch_sent(module, sharded.input_dist(sharded.create_context(), batch.checked.asked[name].ids).wait().wait())


def prefetch_sent(module: nn.Module, sent: Iterable[Any]) -> None:
    """Bring near what a collection will be asked for, in those of its kernels that have a second tier.

    Args:
        module: sharded.
        sent: for each of its lookups the ids that came from all ranks.
    """
    for lookup, features in zip(_lookups(module), sent, strict=True):
        if has_second_tier(lookup):
            lookup.prefetch(features)


def _lookups(module: nn.Module) -> list[Any]:
    return list(getattr(module, "_lookups", ()))
