"""Beginning a run with another run's model: its tables, id maps and dense parameters. Its moments, step, place in the data and random numbers come
too where a run is to go on with a model that changed a little; else they begin anew.

Parts are `tables/<table>` (vectors, and the id map of a ZCH table, which may have another size) and `dense/<parameter or buffer>`. Each part of the
new model takes the part of the same name, or the one that a name map gives. What is missing or surplus is an error unless a pattern allows it.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from emberline.errors import CheckpointError
from emberline.train.checkpoint import names, store
from emberline.train.checkpoint.id_maps import read_whole_map, stored_kind
from emberline.train.checkpoint.live_dynamic import live_tables
from emberline.train.checkpoint.run_state import RunTensors, read_layout, restore_generators
from emberline.train.checkpoint.shards import TableShard, by_table, load_steps, reset_caches, step_tensors, table_shards, weight_chunks
from emberline.train.checkpoint.stored_dynamic import PREFIX, WEIGHT, StoredDynamic
from emberline.train.checkpoint.table_state import move_rows, restore_tables
from emberline.train.checkpoint.take_dynamic import level_steps, take_growing, take_zch
from emberline.train.checkpoint.tensors import Stored, TensorInfo, describe_tensors, load_tensors, read_tensors
from emberline.train.config import PipelineConfig
from emberline.train.interop.name_map import NameMap, read_name_map
from emberline.train.models import RecModel, build_model, features_of
from emberline.train.zch import BY_RANGE, IdMap, NewShard, WholeMap, zch_modules


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """What to begin with.

    Args:
        checkpoint: a step-N folder, or a run's folder.
        name_map: a file with a line `our part   their part` for each part that is called otherwise there.
        allow_missing: patterns of our parts that may begin afresh: because they are not there, or have another shape.
        allow_surplus: patterns of their parts that may be left out.
        with_progress: go on where that run was: with the moments of the parts that are taken, its step, place in the data and random numbers.
        fallback_as_default: let unknown ids of tables that grow read what they read where those were ZCH tables.
    """

    checkpoint: Path
    name_map: Path | None = None
    allow_missing: Sequence[str] = ()
    allow_surplus: Sequence[str] = ()
    with_progress: bool = False
    fallback_as_default: bool = False


@dataclass(frozen=True)
class Chosen:
    """What was decided, before anything is loaded.

    Args:
        path: the checkpoint's directory.
        sources: our part -> theirs.
        fresh: parts of ours that begin afresh.
        left_out: parts of theirs that nothing takes.
        with_progress: see `WarmStart`.
        fallback_as_default: likewise.
    """

    path: Path
    sources: Mapping[str, str]
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]
    with_progress: bool = False
    fallback_as_default: bool = False

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"warm start from {self.path}: {len(self.sources)} parts taken"]
        lines += [f"  begins afresh: {part}" for part in self.fresh]
        return lines + [f"  left out: {part}" for part in self.left_out]


def choose_parts(wishes: WarmStart, config: PipelineConfig) -> Chosen:
    """Decide where every part comes from, on a model whose tables take no memory; no process group is needed.

    Raises:
        CheckpointError: there is no such checkpoint, it is damaged, or parts are missing, surplus or of another shape; names all.
        ConfigError: the name map cannot be read.
    """
    path = store.verify_checkpoint(store.find_checkpoint(wishes.checkpoint)).path
    name_map = NameMap() if wishes.name_map is None else read_name_map(wishes.name_map)
    needed = _parts_of(build_model(config, features_of(config), torch.device("meta")))
    stored = _stored_parts(describe_tensors(path / store.TENSORS_NAME))
    mapped = name_map.names(needed)
    problems = name_map.problems(needed, mapped, stored)
    sources, fresh = {}, []
    for part, info in needed.items():
        name = mapped.get(part, part)
        problem = f"{part} is not there" if name not in stored else _difference(part, info, stored[name])
        if problem is None:
            sources[part] = name
        elif _fits(part, wishes.allow_missing):
            fresh.append(part)
        elif name in stored or part not in mapped:  # else the name map's own problem
            problems.append(problem)
    left_out = [name for name in stored if name not in sources.values() and name not in fresh]
    problems += [f"{name} is there, and the model has no such part" for name in left_out if not _fits(name, wishes.allow_surplus)]
    problems += [f"--allow-missing {pattern}: the model has no such part" for pattern in wishes.allow_missing if not _any_fits(needed, pattern)]
    problems += [f"--allow-surplus {pattern}: the checkpoint has no such part" for pattern in wishes.allow_surplus if not _any_fits(stored, pattern)]
    if problems:
        hint = "pair parts with --map, or name them with --allow-missing or --allow-surplus"
        raise CheckpointError(f"{path} does not fit the model:\n  " + "\n  ".join(problems) + f"\n{hint}")
    return Chosen(path, sources, tuple(fresh), tuple(left_out), wishes.with_progress, wishes.fallback_as_default)


@torch.no_grad()
def take_parts(chosen: Chosen, tensors: RunTensors) -> list[str]:
    """Fill a run that was just built, on any number of ranks, by any plan.

    Returns:
        what a user should know of ids that found no row.

    Raises:
        CheckpointError: with progress: the moments there are of another optimiser.
    """
    folder, layout = chosen.path / store.TENSORS_NAME, read_layout(chosen.path)
    stored = describe_tensors(folder) if chosen.with_progress else {}
    maps, notes = zch_modules(tensors.model), []
    wanted: list[tuple[str, Stored]] = []
    shards = table_shards(tensors.sharded)
    for table, own in by_table(shards).items():
        source = chosen.sources.get(f"tables/{table}")
        if source is None:
            continue
        name, moved = source.removeprefix("tables/"), {}
        if table in maps:
            whole = read_whole_map(folder, name, layout.zch_routing.get(name, BY_RANGE))
            moved = {name: _take_map(whole, maps[table], anew=not chosen.with_progress)}
            notes += [f"table {table!r}: {new.dropped} ids of this rank found no row" for new in moved.values() if new.dropped]
        if chosen.with_progress:
            restore_tables(folder, [replace(shard, table=name) for shard in own], stored, layout.columns, moved)
        elif moved:
            for shard in own:
                move_rows(folder, shard, moved[name], name, moments=False)
        else:
            (chunks,) = weight_chunks(own).values()
            wanted.append((f"{source}/weight", chunks))
    notes += _take_growing(chosen, tensors)
    dense = names.dense_tensors(tensors.model)
    wanted += [(source, dense[part]) for part, source in chosen.sources.items() if part in dense]
    _load_all(folder, wanted)
    reset_caches(shards)
    for name, average in tensors.step.items():
        part = name.replace("ema/", "dense/", 1)
        if name.startswith("ema/") and part in chosen.sources:
            average.copy_(dense[part])
    if chosen.with_progress:
        _take_progress(chosen.sources, folder, stored, tensors)
        most = _count_on(chosen.sources, folder, stored, shards)
        for kernel in live_tables(tensors.sharded).values():
            kernel.tables.step = max(kernel.tables.step, most)
    return notes


def _take_growing(chosen: Chosen, tensors: RunTensors) -> list[str]:
    """Fill the tables that grow."""
    folder, layout, held = chosen.path / store.TENSORS_NAME, read_layout(chosen.path), live_tables(tensors.sharded)
    rank, ranks, notes = dist.get_rank(), dist.get_world_size(), []
    for table, kernel in held.items():
        source = chosen.sources.get(f"tables/{table}", "").removeprefix("tables/")
        if not source:
            continue
        if source in layout.dynamic:
            stored = StoredDynamic(folder, source, layout.dynamic[source])
            notes += take_growing(kernel, table, stored, rank, ranks, with_progress=chosen.with_progress)
        else:
            whole = (source, read_whole_map(folder, source, layout.zch_routing.get(source, BY_RANGE)))
            wishes = {"with_progress": chosen.with_progress, "fallback": chosen.fallback_as_default}
            notes += take_zch(kernel, table, folder, whole, rank, ranks, **wishes)
    level_steps(held)
    return notes


def _count_on(sources: Mapping[str, str], folder: Path, stored: Mapping[str, TensorInfo], shards: Sequence[TableShard]) -> int:
    """All tables of fixed rows go on counting updates from where those taken were, whatever the plan: those that learn together count as one.

    Returns:
        that number.
    """
    counts = [name for source in sources.values() if (name := f"{source}/step") in stored]
    most = max((int(read_tensors(folder, name)[name]) for name in counts), default=0)
    load_steps(shards, {name: torch.tensor([most]) for name in step_tensors(shards)})
    return most


def _take_progress(sources: Mapping[str, str], folder: Path, stored: Mapping[str, TensorInfo], tensors: RunTensors) -> None:
    """The dense optimiser's state, averages, loss scale and random numbers, as far as they are there."""
    theirs = {f"ema/{part.removeprefix('dense/')}": f"ema/{source.removeprefix('dense/')}" for part, source in sources.items()}
    kept = {name: theirs.get(name, name) for name in tensors.step if name.startswith("scaler/") or name in theirs}
    _load_all(folder, [(name, tensors.step[own]) for own, name in kept.items() if name in stored])
    states = names.split_dense_optimizer_tensors(read_tensors(folder, "dense_optim/"))
    pairs = ((part.removeprefix("dense/"), source.removeprefix("dense/")) for part, source in sources.items())
    tensors.optimizer.load_dense_state({own: states[name] for own, name in pairs if name in states})
    restore_generators(folder, stored, tensors.sharded.device)


def _load_all(folder: Path, wanted: Sequence[tuple[str, Stored]]) -> None:
    """Load tensors by their names there; a name may come several times, as a part of theirs may become several of ours."""
    while wanted:
        now = dict(wanted)
        load_tensors(folder, now)
        wanted = [(name, into) for name, into in wanted if now[name] is not into]


def _take_map(whole: WholeMap, module: IdMap, *, anew: bool) -> NewShard:
    """Owners and their counts; what was read since the last eviction, and the counters, may begin anew."""
    if anew:
        nothing = torch.empty(0, dtype=torch.int64)
        numbers = {**whole.numbers, "counters": torch.zeros_like(whole.numbers["counters"])}
        whole = WholeMap(whole.entries, nothing, nothing, numbers, whole.ends, whole.routing)
    new = module.cut(whole)
    module.load_state_from_checkpoint(new.state)
    return new


@dataclass(frozen=True)
class _Part:
    """Shape, and the kind of id map where rows belong to raw ids; whether it is a table that grows."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    zch: str = ""
    grows: bool = False

    @property
    def kind(self) -> str:
        """For people."""
        if self.grows:
            return "a table that grows"
        return f"a ZCH table of kind {self.zch}" if self.zch else "a table of fixed rows"


def _parts_of(model: RecModel) -> dict[str, _Part]:
    maps = zch_modules(model)
    tables = {name.removesuffix("/weight"): tensor for name, tensor in names.table_tensors(model).items()}
    parts = {
        part: _Part(tuple(tensor.shape), tensor.dtype, maps[table].kind if (table := part.removeprefix("tables/")) in maps else "")
        for part, tensor in tables.items()
    }
    weights = model.embedding_group.table_weights()
    for table in names.growing_tables(model):
        parts[f"tables/{table}"] = _Part(tuple(weights[table].shape), weights[table].dtype, grows=True)
    return parts | {name: _Part(tuple(tensor.shape), tensor.dtype) for name, tensor in names.dense_tensors(model).items()}


def _stored_parts(stored: Mapping[str, TensorInfo]) -> dict[str, _Part]:
    parts = {}
    for name, info in stored.items():
        if name.startswith("dense/"):
            parts[name] = _Part(info.shape, info.dtype)
        elif name.startswith("tables/") and name.endswith("/weight"):
            part = name.removesuffix("/weight")
            parts[part] = _Part(info.shape, info.dtype, stored_kind(stored, part.removeprefix("tables/")))
        elif name.startswith(PREFIX) and name.endswith(f"/{WEIGHT}"):
            parts[f"tables/{name.removeprefix(PREFIX).removesuffix(f'/{WEIGHT}')}"] = _Part(info.shape, info.dtype, grows=True)
    return parts


def _difference(part: str, ours: _Part, theirs: _Part) -> str | None:
    if ours.grows and (theirs.grows or theirs.zch) and ours.shape[1:] == theirs.shape[1:] and ours.dtype == theirs.dtype:
        return None  # any number of rows, and ids of a ZCH table get rows of their own
    if (ours.zch, ours.grows) != (theirs.zch, theirs.grows) and not (ours.grows and theirs.zch):
        kinds = [one.kind if ours.zch and theirs.zch else one.kind.partition(" of kind ")[0] for one in (theirs, ours)]
        return f"{part} is {kinds[0]} there, and {kinds[1]} here"
    if ours.zch and ours.shape[1:] == theirs.shape[1:] and ours.dtype == theirs.dtype:
        return None  # any number of rows: ids that find none are told of
    if ours != theirs:
        return f"{part} is {_show(theirs)} there, and {_show(ours)} here"
    return None


def _show(part: _Part) -> str:
    return str(TensorInfo(part.shape, part.dtype))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _any_fits(parts: Mapping[str, object], pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in parts)
