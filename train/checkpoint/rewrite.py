"""A checkpoint written again with some tensors changed: the others are read and written a piece at a time, by one process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from emberline.errors import CheckpointError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.chunks import ReadChunks, Reading
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.run_state import Progress, RunContent, read_layout, read_progress, write_run
from emberline.train.checkpoint.stored_dynamic import DynamicNotes
from emberline.train.checkpoint.stored_rows import StoredRows
from emberline.train.checkpoint.tensors import TensorInfo, Writable, described, read_index, read_tensors


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is to be another.

    Args:
        tensors: by name; all others stay.
        dynamic: what the manifest says of tables that grow, of those that are changed.
        progress: how far the run is said to be.
        step: of the new checkpoint.
        notes: what else the manifest says.
    """

    tensors: Mapping[str, Writable]
    dynamic: Mapping[str, DynamicNotes]
    progress: Progress
    step: int
    notes: Mapping[str, Any] = field(default_factory=dict)


def rewrite_checkpoint(info: store.CheckpointInfo, changes: Changes, output: Path) -> Path:
    """Write `output/step-N`.

    Args:
        info: the checkpoint, which was verified.
        changes: of it.
        output: a new or empty folder, which becomes a run's.

    Raises:
        CheckpointError: a file cannot be read or written.
        ConfigError: the folder cannot be used.
    """
    # The run's modules import this one for the command line.
    from emberline.train.job_folder import claim_folder

    folder, layout = info.path / store.TENSORS_NAME, read_layout(info.path)
    index = read_index(folder)
    kept = {name: _copy(folder, name, one, index) for name, one in described(index).items() if name not in changes.tensors}
    layout = replace(layout, dynamic={**layout.dynamic, **changes.dynamic})
    texts = _texts(info.path, changes.progress)
    content = RunContent(changes.step, {**kept, **changes.tensors}, texts, {**info.notes, "layout": asdict(layout), **changes.notes})
    with claim_folder(output, resume=False):
        return write_run(output, content)


def open_checkpoint(path: Path) -> tuple[store.CheckpointInfo, Layout, Progress]:
    """A checkpoint that tables that grow are to be changed in, all bytes of which were compared with its manifest.

    Raises:
        CheckpointError: there is none, it is damaged, or it has no such tables.
    """
    info = store.verify_checkpoint(store.find_checkpoint(path))
    layout = read_layout(info.path)
    if not layout.dynamic:
        raise CheckpointError(f"{info.path} has no tables that grow")
    return info, layout, read_progress(info.path)


def _copy(folder: Path, name: str, info: TensorInfo, index: Metadata) -> Writable:
    if not info.shape:
        return read_tensors(folder, name, exact=True)[name]
    if 0 in info.shape:
        return torch.empty(info.shape, dtype=info.dtype)
    rows = StoredRows(folder, name, index)
    return ReadChunks(info.shape, info.dtype, [Reading((0,) * len(info.shape), info.shape, rows.read)], is_copy=True)


def _texts(path: Path, progress: Progress) -> dict[str, str]:
    texts = {store.STATE_NAME: progress.text()}
    for name in (store.CONFIG_NAME, store.SCHEMA_NAME, store.PLAN_NAME):
        file = path / name
        try:
            if file.is_file():
                texts[name] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from error
    return texts
