"""Exports from and to URLs.

An object store has no folders and cannot rename. So a version is built and passes its gate on this machine, its files are copied, and its manifest is
written last: by that one write it is there, whole. Two exporters at once get two numbers: each writes a claim, `.claims/<number>-<time>-<random>`,
and looks who else has one; whoever sees another's takes the next number. Of an export that was killed, a claim and files without a manifest
stay, which are no version for anyone; the next one removes them when the claim is a day old.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from emberline.delta_manifest import DELTAS_NAME
from emberline.errors import CheckpointError, ExportError
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.export.forget.ledger import copy_stored
from emberline.export.keeping import choose_rollback, pin_text, require_kept, roll_back, tell_of_pin, tell_of_removed, versions_to_remove
from emberline.export.publish import require_name, require_version
from emberline.manifest import MANIFEST_NAME
from emberline.serving.artifact import Artifact
from emberline.serving.fetch import fetch, stored_pin
from emberline.serving.versions import SERVED_NAME
from emberline.storage import Place, Storage, is_url, join, require_plain_paths
from emberline.train.checkpoint.store import read_checkpoint

CLAIMS = ".claims"
STALE_S = 24 * 3600
_TRIES = 20


@dataclass(frozen=True)
class Claim:
    """A number that is taken by one exporter.

    Args:
        model: the model's folder.
        number: the version.
        file: of the claim, in that folder.
    """

    model: Storage
    number: int
    file: str

    def publish(self, root: Path) -> str:
        """Copy a complete version's folder, its manifest last; returns its URL.

        Raises:
            ExportError: the claim is gone, or the version is there by now.
            StorageError: a file cannot be written.
        """
        target = self.model.child(str(self.number))
        files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        for path in {*target.all_files()} - {*files}:  # of an export that did not come to its end
            target.remove(path)
        for path in files:
            if path != MANIFEST_NAME:
                target.upload(root / path, path)
        if not self.model.has(self.file):
            raise ExportError(
                f"{target.url}: the claim {self.file} was removed meanwhile, so that another exporter may take this version: export again"
            )
        if target.has(MANIFEST_NAME):
            raise ExportError(f"version {self.number} is already there: {target.url}")
        target.upload(root / MANIFEST_NAME, MANIFEST_NAME)
        return target.url


@contextmanager
def claim_version(model: Storage, version: int | None) -> Iterator[Claim]:
    """Take a number for a version; it is let go of at the end.

    Args:
        model: the model's folder.
        version: the number that is wanted; None for one more than the largest that is there or claimed.

    Raises:
        ExportError: it is taken.
        StorageError: the folder cannot be written to.
    """
    _remove_stale(model)
    for attempt in range(_TRIES):
        claims = _claims(model)
        number = version or max([*model.numbers(), *(number for number, _, _ in claims)], default=0) + 1
        file = f"{CLAIMS}/{number}-{int(time.time())}-{secrets.token_hex(8)}"
        model.write(file, b"An export is at work on this version.\n")
        alone = [name for other, _, name in _claims(model) if other == number] == [file]
        there = model.child(str(number)).has(MANIFEST_NAME)
        if alone and not there:
            break
        model.remove(file)
        if version is not None and there:
            raise ExportError(f"version {version} is already there: {model.child(str(version)).url}; published versions never change")
        if version is not None:
            raise ExportError(f"{model.url}: another export is at work on version {version}")
        time.sleep(secrets.randbelow(100 * (attempt + 1)) / 1000)
    else:
        raise ExportError(f"{model.url}: {_TRIES} other exports took a number at the same moments; try again")
    try:
        yield Claim(model, number, file)
    finally:
        model.remove(file)


def _claims(model: Storage) -> list[tuple[int, int, str]]:
    """Number, time and file of each claim."""
    parts = [(name, *name.split("-")) for name in model.child(CLAIMS).names() if name.count("-") == 2]
    return [(int(number), int(when), f"{CLAIMS}/{name}") for name, number, when, _ in parts if number.isdecimal() and when.isdecimal()]


def _remove_stale(model: Storage) -> None:
    """Remove what exports that ended long ago left behind."""
    for number, when, file in _claims(model):
        if time.time() - when > STALE_S:
            left = model.child(str(number))
            if not left.has(MANIFEST_NAME):
                left.remove_all()
            model.remove(file)


def export_anywhere(
    checkpoint: Place,
    models_dir: Place,
    name: str,
    *,
    version: int | None = None,
    keep: int | None = None,
    progress: Callable[[str], None] | None = None,
    scratch: Path | None = None,
    **options: Any,
) -> Place:
    """As `export_model`, from and to folders or URLs.

    Args:
        checkpoint: a checkpoint or a run, here or behind a URL; from there all of it is copied first.
        models_dir: the folder of all models, or its URL.
        name: the model's.
        version: as for `export_model`.
        keep: as for `export_model`.
        progress: called with one line for each step.
        scratch: holds copies meanwhile: the checkpoint's, and the artifact's; None for the system's folder for temporary files.
        options: the others of `export_model`.

    Returns:
        The version's folder or URL.

    Raises:
        StorageError: what is behind a URL cannot be read or written.
        EmberlineError: as `export_model`.
    """
    tell = progress or (lambda line: None)
    if not is_url(models_dir):
        with _local_checkpoint(checkpoint, scratch, tell) as source:
            return export_model(source, models_dir, name, version=version, keep=keep, progress=progress, **options)
    require_name(name)
    require_kept(keep)
    if version is not None:
        require_version(version)
    model = Storage.of(models_dir).child(name)
    with _scratch_dir(scratch) as folder, _local_checkpoint(checkpoint, scratch, tell) as source, claim_version(model, version) as claim:
        copy_stored(model, folder / name)
        path = export_model(source, folder, name, version=claim.number, progress=_but_published(tell), **options)
        url = claim.publish(path)
    tell(f"published {url}")
    pinned = stored_pin(model)
    tell_of_pin(pinned, claim.number, tell)
    if keep is not None:
        removed = versions_to_remove(model.numbers(), keep, {claim.number, pinned})
        for number in removed:
            model.child(str(number)).remove_all()
        tell_of_removed(removed, tell)
    return url


def export_delta_anywhere(
    checkpoint: Place,
    models_dir: Place,
    name: str,
    version: int,
    *,
    progress: Callable[[str], None] | None = None,
    scratch: Path | None = None,
    **options: Any,
) -> Place:
    """As `export_delta`, from and to folders or URLs; the version is copied here first. Arguments as for `export_anywhere`.

    Raises:
        StorageError: what is behind a URL cannot be read or written.
        EmberlineError: as `export_delta`.
    """
    tell = progress or (lambda line: None)
    if not is_url(models_dir):
        with _local_checkpoint(checkpoint, scratch, tell) as source:
            return export_delta(source, models_dir, name, version, progress=progress, **options)
    with _scratch_dir(scratch) as folder, _local_checkpoint(checkpoint, scratch, tell) as source:
        base = fetch(str(join(models_dir, name, str(version))), folder / "base")
        here = folder / "models" / name / str(version)
        copy_stored(Storage.of(models_dir).child(name), here.parent)
        base.root.rename(here)
        path = export_delta(source, folder / "models", name, version, progress=_but_published(tell), **options)
        with claim_version(base.storage.child(DELTAS_NAME), int(path.name)) as claim:
            url = claim.publish(path)
    tell(f"published {url}")
    return url


def roll_back_anywhere(models_dir: Place, name: str, version: int | None = None) -> int:
    """As `roll_back`, in a folder or behind a URL.

    Raises:
        StorageError: what is behind a URL cannot be read or written.
        EmberlineError: as `roll_back`.
    """
    if not is_url(models_dir):
        return roll_back(Path(models_dir), name, version)
    model = Storage.of(models_dir).child(name)
    versions = model.numbers()
    chosen = choose_rollback(versions, stored_pin(model) if version is None else None, version, model.url)
    with TemporaryDirectory() as folder:
        Artifact.open(fetch(model.child(str(chosen)).url, Path(folder)).root, tables="disk")
    if chosen == versions[-1]:
        model.remove(SERVED_NAME)
    else:
        model.write(SERVED_NAME, pin_text(chosen).encode())
    return chosen


@contextmanager
def _local_checkpoint(checkpoint: Place, scratch: Path | None, tell: Callable[[str], None]) -> Iterator[Path]:
    """The checkpoint on this machine; what was copied is removed at the end."""
    if not is_url(checkpoint):
        yield Path(checkpoint)
        return
    with _scratch_dir(scratch) as folder:
        tell(f"copying {checkpoint}")
        yield fetch_checkpoint(checkpoint, folder)


@contextmanager
def _scratch_dir(parent: Path | None) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(TemporaryDirectory(prefix="emberline-export-", dir=parent))
        except OSError as error:
            raise ExportError(f"cannot write to the scratch folder {parent or ''}: {error}; name another by --scratch") from error
        yield Path(folder)


def _but_published(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Leaves out where a version was built: it is published elsewhere."""
    return lambda line: None if line.startswith("published ") else tell(line)


def fetch_checkpoint(url: str, folder: Path) -> Path:
    """Copy a checkpoint here, each file compared with its manifest.

    Args:
        url: of a `step-N` folder, or of a run's folder, of which the newest complete step is taken.
        folder: it becomes `<folder>/step-N`.

    Raises:
        CheckpointError: there is none, or it is damaged.
        StorageError: it cannot be read.
    """
    storage = Storage.of(url)
    if not storage.has(MANIFEST_NAME):
        steps = [int(name.removeprefix("step-")) for name in storage.names() if name.startswith("step-") and name[5:].isdecimal()]
        complete = [step for step in sorted(steps, reverse=True) if storage.has(f"step-{step}/{MANIFEST_NAME}")]
        if not complete:
            raise CheckpointError(f"{url}: no checkpoint here: no step-N folder with {MANIFEST_NAME}")
        storage = storage.child(f"step-{complete[0]}")
    text = storage.read(MANIFEST_NAME) or b""
    draft = folder / "checkpoint"
    draft.mkdir(parents=True)
    (draft / MANIFEST_NAME).write_bytes(text)
    try:
        info = read_checkpoint(draft)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(draft), storage.url)) from error
    require_plain_paths(info.files, storage.url)
    for path, entry in info.files.items():
        storage.download(path, draft / path, entry)
    return draft.rename(folder / f"step-{info.step}")
