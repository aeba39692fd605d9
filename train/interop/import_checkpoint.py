"""A whole TorchEasyRec checkpoint as a checkpoint of ours.

    names and shapes ─► decide, or refuse with everything that is wrong ─► build ─► fill, chunk by chunk ─► step-N

Until all names fit, no table is allocated. Memory: the model with its moments, and one chunk.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import names
from emberline.train.checkpoint.run_state import Progress, RunTensors, save_run
from emberline.train.config import PipelineConfig, load_config
from emberline.train.interop.folder import CONFIG_NAME, TorchEasyRecCheckpoint, find_torcheasyrec_checkpoint
from emberline.train.interop.id_maps import IdMap, assemble_id_map
from emberline.train.interop.matching import disagreement
from emberline.train.interop.moments import select_moments, trained_with
from emberline.train.interop.parts import ID_MAPS, RAW_IDS, TABLES, embedding_parts, head_parts, infos, table_parts
from emberline.train.interop.selection import Selection, Wishes, select
from emberline.train.interop.stored import StoredTensors, rank_ends
from emberline.train.job_build import Parts, build_parts
from emberline.train.job_folder import claim_folder
from emberline.train.job_log import ProgressBar
from emberline.train.models import RecModel, build_model, features_of
from emberline.train.sharding import process_group
from emberline.train.zch import zch_modules

Tell = Callable[[str], None]


def import_torcheasyrec(
    checkpoint: Path,
    output: Path,
    *,
    config: Path | None = None,
    wishes: Wishes | None = None,
    step: int | None = None,
    tell: Tell = lambda line: None,
) -> Path:
    """Write `output/step-N` from a TorchEasyRec checkpoint of step N.

    Args:
        checkpoint: a `model.ckpt-STEP` folder, or the folder that holds such: its newest is taken.
        output: a new or empty folder, which becomes a run's: it can be exported from, and trained on with `resume`.
        config: a pipeline config that this release reads, of the same features, groups and model; by default the one beside the checkpoint.
        wishes: how names that the rules do not know are treated.
        step: N, where the folder's name does not say it.
        tell: called with one line for each thing that was decided.

    Returns:
        the new checkpoint's folder.

    Raises:
        CheckpointError: the checkpoint cannot be read or does not fit the model, with every name that is missing, surplus, of another shape or
            type, or a copy that disagrees; nothing was written.
        ConfigError: the config or the output folder cannot be used.
    """
    found = find_torcheasyrec_checkpoint(checkpoint, step)
    source = config or found.config
    if source is None:
        raise CheckpointError(f"{found.path}: no {CONFIG_NAME} in it or beside it; name the config with --config")
    wishes, settings = wishes or Wishes(), _read_config(source)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already, and not empty; choose another --output")
    stored = StoredTensors(found.model)
    size = sum(chunk.length for tensor in stored.tensors.values() for chunk in tensor.chunks)
    tell(f"checkpoint {found.path}: step {found.step}, {len(stored.tensors)} tensors, {size:,} bytes; config {source}")
    selection = _select(stored, settings, wishes)
    for line in _selection_lines(selection):
        tell(line)
    with claim_folder(output, resume=False), process_group():
        return _write(_Work(found, stored, selection, settings), output, tell)


@dataclass(frozen=True)
class _Work:
    """What an import is made of."""

    checkpoint: TorchEasyRecCheckpoint
    stored: StoredTensors
    selection: Selection
    config: PipelineConfig


def _read_config(source: Path) -> PipelineConfig:
    """The config, with the parts that a checkpoint needs.

    Raises:
        ConfigError: what this release does not read; or a part is missing.
    """
    config = load_config(source)
    problems: list[str] = []
    for need in (config.need_model, config.need_train):
        try:
            need()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems, str(source))
    return config


def _select(stored: StoredTensors, config: PipelineConfig, wishes: Wishes) -> Selection:
    """Decide all names, on a model whose tables take no memory.

    Raises:
        CheckpointError: with everything that does not fit, and every file that is missing or cut off.
    """
    model = build_model(config, features_of(config), torch.device("meta"))
    group = model.embedding_group
    needed = infos({**table_parts(group), **embedding_parts(group), **head_parts(model.head)})
    selection = select(needed, stored.infos, stored.others, wishes)
    problems = list(selection.match.problems)
    if not selection.groups:
        problems.insert(0, f"no name of an embedding group, such as model.embedding_group.emb_impls..., among {', '.join(_some(stored.tensors))}")
    damage = stored.problems(name for found in selection.match.sources.values() for name in found)
    if not damage:
        problems += [disagreement(name, other) for name, other in selection.match.copies if not stored.equals(other, stored.read(name))]
    if problems or damage:
        raise CheckpointError(f"{stored.folder} cannot be imported:\n  " + "\n  ".join([*damage, *problems, *_advice(selection)]))
    return selection


def _advice(selection: Selection) -> list[str]:
    problems = selection.match.problems
    if not any(": missing" in text or ": surplus" in text for text in problems):
        return []
    advice = "to go on: name pairs in a file for --map, leave names of theirs out with --skip"
    return [advice + ", or let the head start afresh with --embeddings-only" * any(text.startswith("head.") for text in problems)]


def _selection_lines(selection: Selection) -> list[str]:
    sources = selection.match.sources
    counts = {kind: sum(part.startswith(f"{kind}.") for part in sources) for kind in (TABLES, "dense_embeddings", "encoders", "head")}
    maps = len({part.split(".")[1] for part in sources if part.startswith(f"{ID_MAPS}.")})
    lines = [
        f"embedding group at {' and '.join(group or 'the top' for group in selection.groups)}: {counts[TABLES]} tables "
        f"({len(selection.match.copies)} further copies, equal), {maps} id maps, {counts['dense_embeddings']} tensors of dense embeddings, "
        f"{counts['encoders']} of encoders",
        f"head: {counts['head']} tensors, by the map" if counts["head"] or not selection.fresh else "",
        f"head: STARTS AFRESH, untrained: {', '.join(selection.fresh)}" if selection.fresh else "",
        f"left out of the checkpoint: {', '.join(selection.left_out)}" if selection.left_out else "",
    ]
    return [line for line in lines if line]


def _write(work: _Work, output: Path, tell: Tell) -> Path:
    parts = build_parts(work.config)
    sources = {part: found[0] for part, found in work.selection.match.sources.items()}
    moments, moment_lines = _choose_moments(work, parts)
    chunks = sum(len(work.stored.tensors[name].chunks) for name in sources.values()) + sum(map(len, moments.values()))
    bar = ProgressBar("reading chunks", chunks)
    try:
        id_maps = _fill(work.stored, parts.model, sources, bar)
        _fill_moments(work, parts, moments, bar)
    finally:
        bar.close()
    _start_averages(parts)
    lines = [*_id_map_lines(id_maps), *moment_lines]
    lines.append(f"not taken over: the state of the dense optimiser{''.join(f', {text}' for text in work.checkpoint.left_out)}")
    for line in lines:
        tell(line)
    source = work.config.source
    progress = Progress(step=work.checkpoint.step, config_folder=str(Path(source).resolve().parent))
    tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())
    return save_run(output, tensors, work.config, progress, imported=_origin(work, lines))


def _fill(stored: StoredTensors, model: RecModel, sources: Mapping[str, str], bar: ProgressBar) -> dict[str, IdMap]:
    """Read everything that is no moment into the sharded model; returns the id maps."""
    tables = {f"{TABLES}.{name.split('/')[1]}": _local(tensor) for name, tensor in names.table_tensors(model).items()}
    live = {**tables, **embedding_parts(model.embedding_group), **head_parts(model.head)}
    for part, name in sources.items():
        if not part.startswith(f"{ID_MAPS}."):
            stored.fill(name, live[part].view(stored.tensors[name].info.shape), bar.advance)
    id_maps: dict[str, IdMap] = {}
    for table, module in zch_modules(model).items():
        own = {part.split(".", 2)[2]: name for part, name in sources.items() if part.startswith(f"{ID_MAPS}.{table}.")}
        buffers = {}
        for buffer, name in own.items():
            buffers[buffer] = stored.read(name, bar.advance)
        id_maps[table] = assemble_id_map(table, buffers, rank_ends(stored.tensors[own[RAW_IDS]].chunks))
        module.load_state_from_checkpoint(id_maps[table].state)
    return id_maps


def _choose_moments(work: _Work, parts: Parts) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Their names by table and moment, and what to say of it."""
    needed = _live_moments(parts)
    if not needed:
        return {}, []
    optimizer = f"{work.checkpoint.path}/optimizer"
    before, now = trained_with(work.checkpoint.config), trained_with(Path(work.config.source))
    if work.checkpoint.optimizer is None:
        return {}, [f"moments of all tables begin anew: there is no {optimizer}"]
    if before != now:
        return {}, [f"moments of all tables begin anew: the checkpoint was trained with {before or 'an optimiser that no config tells'}, not {now}"]
    chosen, anew = select_moments(StoredTensors(work.checkpoint.optimizer), needed)
    lines = [f"moments of {len(chosen)} tables taken over ({now})"] if chosen else []
    return chosen, lines + [f"moments of table {table} begin anew: {why}" for table, why in anew.items()]


def _fill_moments(work: _Work, parts: Parts, moments: Mapping[str, Mapping[str, str]], bar: ProgressBar) -> None:
    if not moments:
        return
    assert work.checkpoint.optimizer is not None
    stored, live = StoredTensors(work.checkpoint.optimizer), _live_moments(parts)
    for table, found in moments.items():
        for moment, name in found.items():
            stored.fill(name, live[table][moment], bar.advance)


@torch.no_grad()
def _start_averages(parts: Parts) -> None:
    """Moving averages begin as the parameters that were read."""
    if parts.step.ema is not None:
        for name, average in parts.step.ema.averages.items():
            average.copy_(parts.step.optimizer.parameters[name])


def _live_moments(parts: Parts) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in names.moment_tensors(parts.sharded).items():
        _, table, moment = name.split("/")
        found.setdefault(table, {})[moment] = _local(tensor)
    return found


def _local(tensor: Tensor | ShardedTensor) -> Tensor:
    """A table of this process, which is the only one: whole."""
    if not isinstance(tensor, ShardedTensor):
        return tensor
    (shard,) = tensor.local_shards()
    return shard.tensor


def _id_map_lines(id_maps: Mapping[str, IdMap]) -> list[str]:
    lines = []
    for table, found in id_maps.items():
        text = f"id map of table {table}: {found.num_ids} ids, each with its row"
        if found.num_repeated:
            text += f"; {found.num_repeated} ids stood twice: the row of the highest count or latest access is kept"
        if found.freed:
            text += (
                f"; trained on {len(found.freed) + 1} ranks: ids without a row now all read the last rank's fallback row, "
                f"{found.state['rows'][-1]}; the other ranks' fallback rows {', '.join(map(str, found.freed))} become free"
            )
        lines.append(text)
    return lines


def _origin(work: _Work, lines: Iterable[str]) -> dict[str, Any]:
    """What the manifest says of where the checkpoint comes from."""
    selection = work.selection
    return {
        "from": f"TorchEasyRec checkpoint {work.checkpoint.path.resolve()}",
        "embedding_groups": list(selection.groups),
        "by_map": list(selection.mapped),
        "starts_afresh": list(selection.fresh),
        "left_out": list(selection.left_out),
        "notes": list(lines),
    }


def _some(stored: Iterable[str]) -> list[str]:
    found = list(stored)
    return found[:3] + ["..."] * (len(found) > 3)
