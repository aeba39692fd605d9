"""What of a model is sharded: its collections, and their tables."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torchrec.distributed.types import ModuleSharder

from emberline.train.zch import IdMap, zch_modules


@dataclass(frozen=True)
class ShardableTable:
    """One table of a model that is not sharded yet.

    Args:
        collection: path of the module that has it.
        name: within that.
        kind: the module's type.
        sharder: of the module.
        weight: [rows, dim].
        id_map: from its ids to its rows, where it is a ZCH table.
    """

    collection: str
    name: str
    kind: type[nn.Module]
    sharder: ModuleSharder[nn.Module]
    weight: nn.Parameter
    id_map: IdMap | None = None

    @property
    def path(self) -> str:
        """The table's full path."""
        return f"{self.collection}.{self.name}"


def shardable_modules(model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> Iterator[tuple[str, nn.Module, ModuleSharder[nn.Module]]]:
    """Path, module and sharder of everything that is sharded, in the model's order; nothing below such a module counts."""
    by_type = {sharder.module_type: sharder for sharder in sharders}

    def walk(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, ModuleSharder[nn.Module]]]:
        if type(module) in by_type:
            yield path, module, by_type[type(module)]
            return
        for name, child in module.named_children():
            yield from walk(f"{path}.{name}" if path else name, child)

    return walk("", model)


def shardable_tables(model: nn.Module, sharders: list[ModuleSharder[nn.Module]]) -> Iterator[ShardableTable]:
    """Every table of these modules, in the model's order."""
    for path, part, sharder in shardable_modules(model, sharders):
        maps = zch_modules(part)
        for name, weight in sharder.shardable_parameters(part).items():
            yield ShardableTable(path, name, type(part), sharder, weight, maps.get(name))
