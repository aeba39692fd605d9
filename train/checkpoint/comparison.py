"""A checkpoint's files compared with its manifest while somebody works with them already, so that nobody waits for it alone."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from emberline.errors import CheckpointError
from emberline.manifest import find_damage, hash_file
from emberline.train.checkpoint import store

_SMALL_BYTES = 8 << 20
"""Files up to this size, such as the config and the index of tensors, are compared before anyone works with them."""


class Comparison:
    """Compares on a thread of its own. As a context, an error in its body counts only where the checkpoint is whole: else the damage is told.

    Args:
        path: the checkpoint's folder.

    Raises:
        CheckpointError: as `store.read_checkpoint`, or a file is missing, surplus, of another size, or small and changed.
    """

    def __init__(self, path: Path) -> None:
        self.info = store.read_checkpoint(path)
        self._problems = find_damage(path, self.info.files, contents=False)
        self._require_none()
        files = sorted(self.info.files.items())
        self._compare([name for name, entry in files if entry.bytes <= _SMALL_BYTES])
        self._require_none()
        large = [name for name, entry in files if entry.bytes > _SMALL_BYTES]
        self._thread = threading.Thread(target=self._compare, args=(large,), name="emberline-comparison", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything is compared.

        Raises:
            CheckpointError: a file was changed, or cannot be read.
        """
        self._thread.join()
        self._require_none()

    def _compare(self, names: list[str]) -> None:
        for name in names:
            try:
                if hash_file(self.info.path / name) != self.info.files[name]:
                    self._problems.append(f"{name} was changed: its sha256 differs")
            except OSError as error:
                self._problems.append(f"{name} cannot be read: {error}")

    def _require_none(self) -> None:
        if self._problems:
            raise CheckpointError(f"{self.info.path} is damaged: {'; '.join(self._problems)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):  # who was interrupted does not wait
            self.finish()
