"""The id maps of ZCH tables in checkpoints: one map a table, however many shards it has.

zch/<table>/raw_ids, rows, ...       [Z] an entry for each row of the table, those of one part together
zch/<table>/history_ids, _iters      [H] of sorted maps: what was read since the last eviction, likewise
zch/<table>/iteration, hour, ...     [S] of each part; counters [S, 4]
zch/<table>/ends                     [S + 1] the first row of each part, and the end

Parts of a sorted map are the shards of the ranks that wrote it; parts of a map by hashes are its buckets, of which a rank has several.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.ranks import of_all_ranks
from emberline.train.checkpoint.tensors import Stored, TensorInfo, load_tensors, read_tensors
from emberline.train.features.configs import HASHED, SORTED
from emberline.train.zch import BY_RANGE, IdMap, NewShard, WholeMap, zch_modules

_HISTORY = ("history_ids", "history_iters")
_NUMBERS = ("iteration", "last_eviction_iteration", "hour", "counters")
_ENDS = "ends"


def id_map_tensors(model: nn.Module, group: dist.ProcessGroup | None = None) -> dict[str, Stored]:
    """Copies of all id maps on this rank, in parts where there are several shards.

    All ranks must call it together then; `group` is of all, on the CPU, or None for the default one.
    """
    maps = zch_modules(model)
    states = {table: module.state_for_checkpoint() for table, module in maps.items()}
    own = torch.tensor([len(state.get("history_ids", ())) for state in states.values()], dtype=torch.int64)
    together = any(module.num_shards > 1 for module in maps.values())
    lengths = [one.tolist() for one in (of_all_ranks(own, group) if together else [own])]
    found: dict[str, Stored] = {}
    for place, (table, module) in enumerate(maps.items()):
        before = sum(one[place] for one in lengths[: module.shard])
        parts = _parts(module, states[table], before, sum(one[place] for one in lengths))
        found |= {f"zch/{table}/{name}": part for name, part in parts.items()}
    return found


def id_map_names(model: nn.Module) -> set[str]:
    """The names that `id_map_tensors` gives, on every rank."""
    return {f"zch/{table}/{name}" for table, module in zch_modules(model).items() for name in (_ENDS, *module.state_for_checkpoint())}


def load_id_maps(model: nn.Module, tensors: Mapping[str, Tensor], routing: Mapping[str, str]) -> None:
    """Give the maps of an unsharded model what `id_map_tensors` gave, of any number of shards; more than one make a map that is only read.

    Args:
        model: unsharded.
        tensors: as `id_map_tensors` names them.
        routing: of each table, how ids found their shard; of tables that are not named, by range.

    Raises:
        CheckpointError: a map does not fit its table.
    """
    for table, module in zch_modules(model).items():
        prefix = f"zch/{table}/"
        parts = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        module.load_whole(_whole_map(parts, routing.get(table, BY_RANGE)))


def copy_id_maps(model: nn.Module, other: nn.Module) -> None:
    """Give the maps of an unsharded model to another that has some of its tables; one that is only read stays such."""
    maps = zch_modules(model)
    for table, module in zch_modules(other).items():
        maps[table].copy_to(module)


def check_sizes(model: nn.Module, stored: Mapping[str, TensorInfo], resized: Collection[str] = ()) -> list[str]:
    """Tables whose number of rows has changed, but for those that are to be resized: a sentence for each, with both numbers."""
    problems = []
    for table, module in zch_modules(model).items():
        info = stored.get(f"zch/{table}/raw_ids")
        if info is not None and table not in resized and info.shape != (module.ends[-1],):
            before = ", ".join(map(str, info.shape))
            wish = f"emberline reshard CKPT --zch-size {table}={module.ends[-1]} --output DIR"
            problems.append(
                f"table {table!r} has zch_size {module.ends[-1]}, the checkpoint {before}; keep zch_size, or start anew, or ask for it: {wish}"
            )
    return problems


def stored_kind(stored: Collection[str], table: str) -> str:
    """The kind of a ZCH table's map in a checkpoint; empty where it is no ZCH table there."""
    if f"zch/{table}/raw_ids" not in stored:
        return ""
    return HASHED if f"zch/{table}/hour" in stored else SORTED


def restore_id_maps(model: nn.Module, folder: Path, stored: Mapping[str, TensorInfo], routing: Mapping[str, str]) -> dict[str, NewShard]:
    """Give every map on this rank its part.

    Args:
        model: sharded.
        folder: of the tensors.
        stored: what is there.
        routing: of each table, how ids found their shard; of tables that are not named, by range.

    Returns:
        the tables whose rows must move, because they were cut otherwise, with the new shard of this rank.

    Raises:
        CheckpointError: a map is damaged.
    """
    moved = {}
    for table, module in zch_modules(model).items():
        prefix = f"zch/{table}/"
        before = routing.get(table, BY_RANGE)
        if _read_ends(folder, table) == module.ends and (module.num_parts == 1 or before == module.routing):
            module.load_state_from_checkpoint(_own_part(folder, prefix, module, stored))
            continue
        moved[table] = module.cut(read_whole_map(folder, table, before))
        module.load_state_from_checkpoint(moved[table].state)
    return moved


def _parts(module: IdMap, state: Mapping[str, Tensor], before: int, history: int) -> dict[str, Stored]:
    parts: dict[str, Stored] = {_ENDS: torch.tensor(module.ends)}
    for name, value in state.items():
        tensor = _by_part(name, value)
        if name in _HISTORY:
            rows, first = history, before
        elif name in _NUMBERS:
            rows, first = module.num_parts, module.first_part
        else:
            rows, first = module.ends[-1], module.first_row
        whole = len(tensor) == rows
        parts[name] = tensor if whole else Chunks((rows, *tensor.shape[1:]), tensor.dtype, [Chunk((first, *[0] * (tensor.dim() - 1)), tensor)])
    return parts


def read_whole_map(folder: Path, table: str, routing: str) -> WholeMap:
    """The id map of a table, of all shards.

    Args:
        folder: of the tensors.
        table: its name.
        routing: how ids found their shard.

    Raises:
        CheckpointError: it is not there.
    """
    prefix = f"zch/{table}/"
    parts = {name.removeprefix(prefix): tensor for name, tensor in read_tensors(folder, prefix).items()}
    missing = sorted({"raw_ids", "rows", "counters", _ENDS} - parts.keys())
    if missing:
        raise CheckpointError(f"{folder} does not fit the model: {', '.join(prefix + name for name in missing)} missing")
    return _whole_map(parts, routing)


def _whole_map(parts: Mapping[str, Tensor], routing: str) -> WholeMap:
    """The tensors of one map, by their names, as it."""
    entries = {name: value for name, value in parts.items() if name not in (*_HISTORY, *_NUMBERS, _ENDS)}
    numbers = {name: parts[name] for name in _NUMBERS if name in parts}
    empty = torch.empty(0, dtype=torch.int64)
    history_ids, history_iters = (parts.get(name, empty) for name in _HISTORY)
    return WholeMap(entries, history_ids, history_iters, numbers, tuple(parts[_ENDS].tolist()), routing)


def _read_ends(folder: Path, table: str) -> tuple[int, ...]:
    name = f"zch/{table}/{_ENDS}"
    return tuple(read_tensors(folder, name)[name].tolist())


def _own_part(folder: Path, prefix: str, module: IdMap, stored: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
    """The entries of one shard, of a checkpoint that was cut as the table is now."""
    state = module.state_for_checkpoint()
    into: dict[str, Stored] = {}
    for name, value in state.items():
        if name in _HISTORY:
            continue
        tensor = _by_part(name, value)
        first = module.first_part if name in _NUMBERS else module.first_row
        into[prefix + name] = Chunks(stored[prefix + name].shape, tensor.dtype, [Chunk((first, *[0] * (tensor.dim() - 1)), tensor)])
    load_tensors(folder, into)
    history = {name: read_tensors(folder, prefix + name)[prefix + name] for name in _HISTORY if name in state}
    if history:
        mine = module.owns(history["history_ids"])
        history = {name: values[mine] for name, values in history.items()}
    return {**state, **history}


def _by_part(name: str, value: Tensor) -> Tensor:
    """A tensor of a map's state with a row for each of its parts, where it is a number of the parts."""
    return value.unsqueeze(0) if name == "counters" and value.dim() == 1 else value
