"""What the modules that hold tables share: TorchRec's collections and their keys, id maps, the tables' memory, and rows that change owner."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrec.distributed.types import Awaitable
from torchrec.modules.embedding_configs import DataType, data_type_to_dtype
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import ConfigError
from emberline.schema import LookupSpec
from emberline.train.embedding.bag_reads import lay_together
from emberline.train.embedding.initial import table_init
from emberline.train.embedding.jagged import KEY_SEPARATOR, check_rows, pick
from emberline.train.embedding.registry import TableEntry
from emberline.train.zch import IdMap, RowResetCallback, build_map, install_row_resets, reset_vectors, zch_modules

RowReader = Callable[[str, Tensor], Tensor]
"""From a table's name and some of its rows, int64 [n], ascending, each once, to their vectors [n, dim]; with `raw_ids`, of ids instead of rows."""
DATA_TYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16, "bf16": DataType.BF16}


def collection_key(lookup: LookupSpec) -> str:
    """The lookup's key inside the collections: TorchRec cuts keys at an `@`, so it gets a character that no name has."""
    return lookup.key.replace("@", KEY_SEPARATOR)


def pick_lookups(kjt: KeyedJaggedTensor, lookups: Sequence[LookupSpec], tables: Mapping[str, TableEntry], *, checked: bool) -> KeyedJaggedTensor:
    """The bags of these lookups, by their `collection_key`.

    Args:
        kjt: the bags of all features.
        lookups: in the order that is wanted.
        tables: by name.
        checked: whether the ids are known to be rows of the tables, or need not be.

    Raises:
        DataError: an id is no row of its table; names the feature, the id and the range.
    """
    bags = pick(kjt, [lookup.feature for lookup in lookups], [collection_key(lookup) for lookup in lookups])
    if not checked:
        check_rows(bags, [None if (table := tables[lookup.table]).raw_ids else table.rows for lookup in lookups])
    return bags


def build_maps(tables: Mapping[str, TableEntry], names: Iterable[str], device: torch.device) -> dict[str, IdMap]:
    """An empty id map for each of these ZCH tables."""
    return {name: build_map(name, tables[name].rows, config, device) for name in names if (config := tables[name].zch) is not None}


def device_beside(tables: Iterable[TableEntry], device: torch.device | None) -> torch.device | None:
    """Where a collection of these tables is built: on `meta` where one has raw ids, as that is a placeholder without memory, and others move."""
    return torch.device("meta") if any(table.raw_ids for table in tables) else device


def marked(config: Any, table: TableEntry) -> Any:
    """TorchRec's config of a table, with the attributes that the table's features give it."""
    for name, mark in table.marks.items():
        setattr(config, name, mark)
    return config


def prepare_weights(
    modules: nn.ModuleDict, tables: Mapping[str, TableEntry], inits: Mapping[str, Callable[[Tensor], Tensor]], device: torch.device | None
) -> None:
    """Freeze the tables that are frozen, give BF16 tables their type, which TorchRec's modules hold as FP16, and lay the tables in one memory.

    Args:
        modules: each table's, with its `weight` [rows, dim].
        tables: by name.
        inits: how they begin, by name.
        device: where tables that are no placeholders are to be, though they were built beside one; None means torch's default.
    """
    for name, module in modules.items():
        weight, dtype = cast(nn.Parameter, module.weight), data_type_to_dtype(DATA_TYPES[tables[name].dtype])
        place = weight.device if tables[name].raw_ids or not weight.is_meta else device
        if weight.dtype != dtype or place != weight.device:
            module.weight = weight = nn.Parameter(inits[name](torch.empty(weight.shape, dtype=dtype, device=place)))
        weight.requires_grad_(tables[name].trainable)
    lay_together(cast(nn.Parameter, module.weight) for module in modules.values())


def maps_on_cpu(module: nn.Module, tables: Mapping[str, TableEntry]) -> None:
    """Give a managed collection on `meta` empty id maps that are on the CPU, to be filled and read."""
    maps = cast(Any, module)._managed_collision_collection._managed_collision_modules
    for name, built in build_maps(tables, list(maps), torch.device("cpu")).items():
        maps[name] = cast(nn.Module, built).train(module.training)


def rows_needed(table: TableEntry, weight: Tensor, ids: Tensor, reader: RowReader | None) -> tuple[Tensor, Tensor]:
    """What holds the rows of some ids, int64 [N], and where they are in it: the table itself, or what a reader gives.

    Raises:
        ConfigError: the table's ids are raw ones, and there is no reader that knows their rows.
    """
    if reader is None:
        if table.raw_ids:
            raise ConfigError(
                f"table {table.name!r} takes raw ids, and has rows only where the model is sharded: wrap it in DistributedModelParallel by a plan; "
                "one process will do"
            )
        return weight, ids
    rows, places = torch.unique(ids, return_inverse=True)
    return reader(table.name, rows), places


class RowOwners:
    """Starts rows of unsharded ZCH tables afresh when they change owner, in tables that were trained since their values counted as initial.

    Args:
        tables: by name.
    """

    def __init__(self, tables: Mapping[str, TableEntry]) -> None:
        self._trainable = {name for name, table in tables.items() if table.trainable}
        self.inits: dict[str, Callable[[Tensor], Tensor]] = {name: table_init(table.init, table.rows, table.dim) for name, table in tables.items()}
        self._callbacks: list[RowResetCallback] = []
        self._untrained: dict[str, int] = {}

    @property
    def trainable_inits(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """How the tables begin that are not frozen."""
        return {name: init for name, init in self.inits.items() if name in self._trainable}

    def mark_untrained(self, weights: Mapping[str, Tensor]) -> None:
        """Take the tables' present values for initial ones: until they change, rows that change owner keep theirs."""
        self._untrained = {name: weight._version for name, weight in weights.items()}

    def on_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called after rows were started afresh."""
        self._callbacks.append(callback)

    def reset(self, module: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
        """Start the rows afresh that changed owner in the id maps below `module`."""
        for name, zch in zch_modules(module).items():
            rows, weight = zch.take_rows_to_reset(), weights[name]
            if rows is None or name not in self._trainable or self._untrained.get(name) == weight._version:
                continue
            reset_vectors(weight, rows, self.inits[name])
            for callback in self._callbacks:
                callback(name, weight, rows)


def ask_sharded(module: nn.Module, ids: KeyedJaggedTensor, owners: RowOwners, initial_moment: float) -> Any:
    """What a sharded collection gives for ids; before it reads them, rows that change owner begin afresh, with this in the optimiser's moments."""
    if hasattr(module, "_managed_collision_collection"):
        install_row_resets(module, owners.trainable_inits, initial_moment)
        found, _ = module(ids)
    else:
        found = module(ids)
    return found.wait() if isinstance(found, Awaitable) else found
