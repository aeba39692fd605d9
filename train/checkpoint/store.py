"""The directories `RUN/step-N/`: written under another name, flushed to disk, then renamed in one go.

A checkpoint holds:

    manifest.json     size and sha256 of every other file, step, versions; written last, so that a directory without it is no checkpoint
    config.pbtxt      the pipeline config as it was read
    schema.json       the model's features, tables, lookups, groups and outputs
    state.json        what is not a tensor: data position, step, epoch, loss
    plan.json         which rank held which part of which table, as `emberline train --plan` takes it
    tensors/          the tensors by name, in PyTorch's distributed checkpoint format
"""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emberline.errors import CheckpointError
from emberline.manifest import MANIFEST_NAME, FileEntry, find_damage, hash_tree, read_manifest, write_manifest

CHECKPOINT_FORMAT = "emberline.checkpoint.v1"
CONFIG_NAME = "config.pbtxt"
SCHEMA_NAME = "schema.json"
STATE_NAME = "state.json"
PLAN_NAME = "plan.json"
TENSORS_NAME = "tensors"
_STEP_DIR = re.compile(r"step-(0|[1-9][0-9]*)")
DRAFT_PREFIX = ".draft-"
"""Names of what is not complete begin so."""


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint: its directory, its step, and what its manifest lists.

    Args:
        path: the directory.
        step: batches trained.
        files: every file but the manifest.
        versions: of packages.
        notes: what else the manifest says: `layout` of the tables; `imported`, where it was made of a checkpoint of others.
    """

    path: Path
    step: int
    files: Mapping[str, FileEntry]
    versions: Mapping[str, str]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def imported(self) -> Mapping[str, Any] | None:
        """What the checkpoint took from others; None where it was trained here."""
        return self.notes.get("imported")


def step_path(run: Path, step: int) -> Path:
    """Where the checkpoint of this step is, or would be."""
    return run / f"step-{step}"


def is_step_path(path: Path) -> bool:
    """Whether a folder has the name of a checkpoint; it need not be a complete one."""
    return path.is_dir() and _STEP_DIR.fullmatch(path.name) is not None


def draft_path(run: Path, step: int) -> Path:
    """Where the checkpoint of this step is until it is complete."""
    return run / f"{DRAFT_PREFIX}step-{step}"


@contextmanager
def write_checkpoint(run: Path, step: int, versions: Mapping[str, str], notes: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Hand out an empty directory to fill; what is in it at the end becomes `run/step-N` by one rename.

    An error in the body, or the end of the process at any moment, leaves nothing under the final name. `notes` go into the manifest.
    """
    final, draft = step_path(run, step), draft_path(run, step)
    for left in run.glob(f"{DRAFT_PREFIX}step-*"):  # of other drafts, another thread may be at work on one
        shutil.rmtree(left)
    draft.mkdir(parents=True)
    try:
        yield draft
        complete(draft, final, {"format": CHECKPOINT_FORMAT, "step": step, "versions": dict(versions), "notes": dict(notes or {})})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def complete(draft: Path, final: Path, head: Mapping[str, Any]) -> None:
    """Let a folder that was filled under another name become what it is to be: flushed to disk, described, and renamed in one go.

    Args:
        draft: the folder.
        final: beside it; what is there goes.
        head: what the manifest says beside the files.
    """
    files = {path: asdict(entry) for path, entry in hash_tree(draft).items()}
    _flush_tree(draft)
    write_manifest(draft, {**head, "files": files})
    flush(draft)
    if final.exists():  # only what is of no use comes here: a run does not repeat a step that it has
        remove(final)
    draft.rename(final)
    flush(final.parent)


def read_checkpoint(path: Path) -> CheckpointInfo:
    """What the manifest says; no file beside it is read.

    Raises:
        CheckpointError: there is no manifest, it was changed, or another release wrote it.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such directory; give a run's directory or one of its step-N directories")
    try:
        data = read_manifest(path)
        if data.get("format") != CHECKPOINT_FORMAT:
            raise CheckpointError(f"{path}: format {data.get('format')!r} is not {CHECKPOINT_FORMAT!r}: not a checkpoint that this release reads")
        files = {name: FileEntry(**entry) for name, entry in data["files"].items()}
        return CheckpointInfo(path, int(data["step"]), files, data["versions"], data.get("notes", {}))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: not a complete checkpoint: {MANIFEST_NAME}, which is written last, is not there") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: {MANIFEST_NAME} cannot be read: {error}") from error


def verify_checkpoint(path: Path) -> CheckpointInfo:
    """Compare every file with the manifest, byte for byte.

    Raises:
        CheckpointError: as `read_checkpoint`, or a file is missing, surplus or changed.
    """
    info = read_checkpoint(path)
    damage = find_damage(path, info.files)
    if damage:
        raise CheckpointError(f"{path} is damaged: {'; '.join(damage)}")
    return info


def list_steps(run: Path) -> list[int]:
    """The steps for which `run/step-N` has a manifest, ascending."""
    if not run.is_dir():
        return []
    found = (_STEP_DIR.fullmatch(path.name) for path in run.iterdir() if (path / MANIFEST_NAME).is_file())
    return sorted(int(match[1]) for match in found if match)


def find_checkpoint(path: Path, step: int | None = None) -> Path:
    """The directory of one checkpoint.

    Args:
        path: a run's directory, or a step-N directory.
        step: which one of a run; the newest where not given.

    Raises:
        CheckpointError: there is none; the message lists the steps there are.
    """
    if (path / MANIFEST_NAME).is_file():
        if step is not None and read_checkpoint(path).step != step:
            raise CheckpointError(f"{path} is the checkpoint of step {read_checkpoint(path).step}, not {step}")
        return path
    if not path.is_dir() or is_step_path(path):
        return read_checkpoint(path).path  # which says what is wrong with it
    steps = list_steps(path)
    if not steps:
        raise CheckpointError(f"{path}: no complete checkpoint here; one is a step-N directory with a {MANIFEST_NAME}")
    if step is not None and step not in steps:
        raise CheckpointError(f"{path}: no checkpoint of step {step}; there are {', '.join(map(str, steps))}")
    return step_path(path, steps[-1] if step is None else step)


def find_intact(run: Path) -> tuple[CheckpointInfo | None, list[str]]:
    """The newest checkpoint of a run that passes `verify_checkpoint`, and what is wrong with those newer than it.

    Raises:
        CheckpointError: there are complete checkpoints, and every one of them is damaged.
    """
    problems: list[str] = []
    for step in reversed(list_steps(run)):
        try:
            return verify_checkpoint(step_path(run, step)), problems
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("every checkpoint of this run is damaged: " + "; ".join(problems))
    return None, problems


def prune_checkpoints(run: Path, keep: int, protected: Collection[int] = ()) -> list[int]:
    """Remove all but the newest `keep` checkpoints (0: keep all) and the protected steps; returns the steps removed."""
    steps = list_steps(run)
    surplus = [step for step in steps[: max(len(steps) - keep, 0)] if step not in protected] if keep > 0 else []
    for step in surplus:
        remove(step_path(run, step))
    return surplus


def remove_drafts(run: Path) -> None:
    """Remove what writes and removals that never ended have left."""
    for path in run.glob(f"{DRAFT_PREFIX}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all: under another name, flushed to disk, renamed."""
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def write_link(path: Path, target: str) -> None:
    """Make a link, or point it elsewhere, in one go; `target` is a name in the same folder."""
    draft = path.with_name(f"{DRAFT_PREFIX}{path.name}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)


def read_json(path: Path) -> Any:
    """A JSON file of a checkpoint.

    Raises:
        CheckpointError: it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def remove(path: Path) -> None:
    """Take a folder away: first out of sight by a rename, so that half of it is never under its name."""
    draft = path.with_name(f"{DRAFT_PREFIX}removed-{path.name}")
    shutil.rmtree(draft, ignore_errors=True)
    path.rename(draft)
    shutil.rmtree(draft, ignore_errors=True)


def _flush_tree(root: Path) -> None:
    for path in sorted(root.rglob("*")):
        flush(path)
    flush(root)


def flush(path: Path) -> None:
    """Let what is written of a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
