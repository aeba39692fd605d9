"""`emberline inspect` and `emberline verify` of what is behind a URL."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from emberline.delta_manifest import DELTAS_NAME
from emberline.errors import ArtifactError, CheckpointError
from emberline.export.describe import describe, verify, version_lines
from emberline.export.remote import fetch_checkpoint
from emberline.manifest import MANIFEST_NAME
from emberline.serving.fetch import fetch, find_stored, stored_pin
from emberline.storage import Storage, join
from emberline.train.checkpoint.store import CHECKPOINT_FORMAT


def describe_url(url: str) -> list[str]:
    """As `describe`; of an artifact only the manifests are read, a checkpoint is copied for the time.

    Raises:
        EmberlineError: there is neither, or it cannot be read.
    """
    storage = Storage.of(url)
    with TemporaryDirectory(prefix="emberline-inspect-") as folder:
        if _is_checkpoint(storage):
            root, place = _fetch_checkpoint(url, Path(folder))
        else:
            stored = find_stored(storage)
            root, place = Path(folder) / "artifact", stored.url
            deltas = [f"{DELTAS_NAME}/{number}/{MANIFEST_NAME}" for number in stored.child(DELTAS_NAME).numbers()]
            for path in (MANIFEST_NAME, *deltas):
                (root / path).parent.mkdir(parents=True)
                (root / path).write_bytes(stored.read(path) or b"")
        with _errors_of(root, place):
            lines = [line.replace(str(root), place) for line in describe(root)]
        return [*lines[:2], *version_lines(storage.numbers(), stored_pin(storage)), *lines[2:]]


def verify_url(url: str, device: str = "cpu") -> Iterator[str]:
    """As `verify`: everything is copied for the time, each file compared, and an artifact opened; also a file too many is found. Of a run it is the
    newest checkpoint only.

    Raises:
        EmberlineError: it cannot be read, or something differs; names the file.
    """
    storage = Storage.of(url)
    with TemporaryDirectory(prefix="emberline-verify-") as folder:
        if _is_checkpoint(storage):
            root, place = _fetch_checkpoint(url, Path(folder))
        else:
            fetched = fetch(url, Path(folder))
            root, place = fetched.root, fetched.storage.url
            _require_no_strays(fetched.storage, root)
        with _errors_of(root, place):
            for line in verify(root, device):
                yield line.replace(str(root), place)


def _fetch_checkpoint(url: str, folder: Path) -> tuple[Path, str]:
    """The copy, and the URL of what was copied: of a run its newest step."""
    root = fetch_checkpoint(url, folder)
    return root, url if url.rstrip("/").endswith(f"/{root.name}") else str(join(url, root.name))


@contextmanager
def _errors_of(root: Path, place: str) -> Iterator[None]:
    """What is wrong with a copy is told of what was copied."""
    try:
        yield
    except (ArtifactError, CheckpointError) as error:
        error.args = (str(error).replace(str(root), place),)
        raise


def _is_checkpoint(storage: Storage) -> bool:
    try:
        found = json.loads(storage.read(MANIFEST_NAME) or b"{}")
    except ValueError:
        return False
    if isinstance(found, dict) and found:
        return found.get("format") == CHECKPOINT_FORMAT
    return any(name.startswith("step-") for name in storage.names()) and not storage.numbers()


def _require_no_strays(storage: Storage, root: Path) -> None:
    listed = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    strays = [path for path in storage.all_files() if path not in listed and not path.startswith(f"{DELTAS_NAME}/.")]
    if strays:
        raise ArtifactError(f"{storage.url}: the artifact is damaged: {'; '.join(f'{path} is not listed in the manifest' for path in strays)}")
