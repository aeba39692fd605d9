"""Exports from and to URLs.

An object store has no folders and cannot rename. So a version is built and passes its gate on this machine, its files are copied, and its manifest is
written last: by that one write it is there, whole. Two exporters at once get two numbers: each writes a claim, `<name>/.claims/<number>-<time>-<random>`,
and looks who else has one; whoever sees another's takes the next number. Of an export that was killed a claim and files without a manifest stay, which are
no version for anyone; the next one removes them when the claim is a day old.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emberline.errors import CheckpointError, ExportError
from emberline.manifest import MANIFEST_NAME
from emberline.storage import Storage, require_plain_paths
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
        if model.child(str(number)).has(MANIFEST_NAME):
            raise ExportError(f"version {number} is already there: {model.child(str(number)).url}; published versions never change")
        file = f"{CLAIMS}/{number}-{int(time.time())}-{secrets.token_hex(8)}"
        model.write(file, b"An export is at work on this version.\n")
        if [name for other, _, name in _claims(model) if other == number] == [file]:
            break
        model.remove(file)
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
    info = read_checkpoint(draft)
    require_plain_paths(list(info.files), storage.url)
    for path, entry in info.files.items():
        storage.download(path, draft / path, entry)
    return draft.rename(folder / f"step-{info.step}")
