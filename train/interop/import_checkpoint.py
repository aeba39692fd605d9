"""A whole TorchEasyRec checkpoint as a checkpoint of ours.

    names and shapes ─► decide, or refuse with everything that is wrong ─► build ─► fill, chunk by chunk ─► step-N

Until all names fit, no table is allocated. Memory: the model with its moments, and one chunk.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from emberline.errors import CheckpointError, ConfigError
from emberline.schema import TableKind
from emberline.train.checkpoint.live_dynamic import live_tables
from emberline.train.checkpoint.run_state import Progress, RunTensors, save_run
from emberline.train.config import PipelineConfig, load_config
from emberline.train.interop.dynamic import DynamicFiles, fill_dynamic
from emberline.train.interop.fill import Reading, fill_model, fill_moments, go_on_counting, live_moments
from emberline.train.interop.folder import CONFIG_NAME, TorchEasyRecCheckpoint, find_torcheasyrec_checkpoint
from emberline.train.interop.matching import disagreement
from emberline.train.interop.moments import Moments, select_moments, trained_with
from emberline.train.interop.parts import embedding_parts, head_parts, infos, table_parts
from emberline.train.interop.report import advice, first_names, id_map_lines, selection_lines
from emberline.train.interop.selection import Selection, Wishes, select
from emberline.train.interop.stored import StoredTensors
from emberline.train.job_build import Parts, build_parts, missing_parts
from emberline.train.job_folder import check_unused, claim_folder
from emberline.train.models import build_model, features_of
from emberline.train.sharding import process_group

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
    check_unused(output)
    stored = StoredTensors(found.model)
    size = sum(chunk.length for tensor in stored.tensors.values() for chunk in tensor.chunks)
    tell(f"checkpoint {found.path}: step {found.step}, {len(stored.tensors)} tensors, {size:,} bytes; config {source}")
    dynamic = DynamicFiles.of(found.dynamic)
    selection = _select(stored, settings, wishes, dynamic)
    for line in selection_lines(selection):
        tell(line)
    with claim_folder(output, resume=False), process_group() as ranks:
        if ranks.world_size > 1:
            raise ConfigError("one process imports a checkpoint; start it without torchrun")
        return _write(_Work(found, stored, selection, settings, dynamic), output, tell)


@dataclass(frozen=True)
class _Work:
    """What an import is made of."""

    checkpoint: TorchEasyRecCheckpoint
    stored: StoredTensors
    selection: Selection
    config: PipelineConfig
    dynamic: DynamicFiles


def _read_config(source: Path) -> PipelineConfig:
    """The config, with the parts that a checkpoint needs.

    Raises:
        ConfigError: what this release does not read; or a part is missing.
    """
    config = load_config(source)
    if problems := missing_parts(config):
        raise ConfigError(problems, str(source))
    return config


def _select(stored: StoredTensors, config: PipelineConfig, wishes: Wishes, dynamic: DynamicFiles) -> Selection:
    """Decide all names, on a model whose tables take no memory.

    Raises:
        CheckpointError: with everything that does not fit, and every file that is missing or cut off.
    """
    model = build_model(config, features_of(config), torch.device("meta"))
    group = model.embedding_group
    needed = infos({**table_parts(group), **embedding_parts(group), **head_parts(model.head)})
    selection = select(needed, stored.infos, stored.others, wishes)
    problems = [*selection.match.problems, *dynamic.problems([table.name for table in group.tables if table.kind is TableKind.DYNAMIC])]
    if not selection.groups:
        problems.insert(
            0, f"no name of an embedding group, such as model.embedding_group.emb_impls..., among {', '.join(first_names(stored.tensors))}"
        )
    damage = stored.problems(name for found in selection.match.sources.values() for name in found)
    if not damage:
        problems += [disagreement(name, other) for name, other in selection.match.copies if not stored.equals(other, stored.read(name))]
    if problems or damage:
        raise CheckpointError(f"{stored.folder} cannot be imported:\n  " + "\n  ".join([*damage, *problems, *advice(selection.match.problems)]))
    return selection


def _write(work: _Work, output: Path, tell: Tell) -> Path:
    parts = build_parts(work.config)
    sources = {part: found[0] for part, found in work.selection.match.sources.items()}
    moment_store, moments, moment_lines = _choose_moments(work, parts)
    chunks = _num_chunks(work.stored, sources.values())
    if moment_store is not None:
        chunks += _num_chunks(moment_store, [name for found in moments.values() for name in found.values()])
    tell(f"reading {chunks:,} chunks")
    with Reading(chunks) as reading:
        id_maps = fill_model(work.stored, parts.model, sources, reading)
        if moment_store is not None:
            fill_moments(moment_store, live_moments(parts), moments, reading)
    go_on_counting(parts, moments, work.checkpoint.step)
    same_optimizer = trained_with(work.checkpoint.config) == trained_with(Path(work.config.source))
    dynamic_lines = fill_dynamic(work.dynamic, live_tables(parts.sharded), work.checkpoint.step, with_moments=same_optimizer)
    _start_averages(parts)
    lines = [*id_map_lines(id_maps), *dynamic_lines, *moment_lines]
    lines.append(f"not taken over: the state of the dense optimiser{''.join(f', {text}' for text in work.checkpoint.left_out)}")
    for line in lines:
        tell(line)
    tell(f"writing {output}")
    source = work.config.source
    progress = Progress(step=work.checkpoint.step, updates=work.checkpoint.step, config_folder=str(Path(source).resolve().parent))
    tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())
    return save_run(output, tensors, work.config, progress, imported=_origin(work, lines))


def _num_chunks(stored: StoredTensors, names: Iterable[str]) -> int:
    return sum(len(stored.tensors[name].chunks) for name in names)


def _choose_moments(work: _Work, parts: Parts) -> tuple[StoredTensors | None, Moments, list[str]]:
    """Where they are and under which names, and what to say of it."""
    needed, folder = live_moments(parts), work.checkpoint.optimizer
    if not needed:
        return None, {}, []
    before, now = trained_with(work.checkpoint.config), trained_with(Path(work.config.source))
    if folder is None:
        return None, {}, ["moments of all tables begin anew: the checkpoint has no folder optimizer/"]
    if before != now:
        return None, {}, [f"moments of all tables begin anew: the checkpoint was trained with {before or 'an unknown optimiser'}, not {now}"]
    stored = StoredTensors(folder)
    chosen, anew = select_moments(stored, needed)
    lines = [f"moments of {len(chosen)} tables taken over ({now})"] if chosen else []
    return stored, chosen, lines + [f"moments of table {table} begin anew: {why}" for table, why in anew.items()]


@torch.no_grad()
def _start_averages(parts: Parts) -> None:
    """Moving averages begin as the parameters that were read."""
    if parts.step.ema is not None:
        for name, average in parts.step.ema.averages.items():
            average.copy_(parts.step.optimizer.parameters[name])


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
