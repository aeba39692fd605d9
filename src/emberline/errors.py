"""Every error that Emberline raises on purpose.

EmberlineError
├── ConfigError               a pipeline config is wrong; carries every problem found in it
├── DataError                 a training or evaluation file, or a value in it, is wrong
├── TrainingError             training cannot go on
├── CapacityError             a table that grows, or the disk of its rows, is full
├── CheckpointError           a checkpoint is missing, incomplete, damaged or does not fit the model
├── ExportError               an export cannot go on
│   ├── ParityError           the artifact's answers differ from the trained model's
│   └── QualityError          storing the tables in other number types costs more than was allowed
├── ArtifactError             an artifact is missing, incomplete, damaged or too new for this release
│   └── StorageError          files behind a URL cannot be read or written, or are not what their manifest lists
├── MissingDependencyError    an optional package or program that a command needs is not installed
├── LaunchError               a server process did not become ready
└── ServingError              a request was not answered
    ├── RequestError          the request is malformed: 400, INVALID_ARGUMENT
    ├── UnauthenticatedError  no token, or a wrong one: 401, UNAUTHENTICATED
    ├── NotFoundError         no such model or version: 404, NOT_FOUND
    ├── TooLargeError         over a size limit: 413, INVALID_ARGUMENT
    ├── OverloadedError       queues are full: 429, RESOURCE_EXHAUSTED
    ├── DeadlineError         the deadline passed before the answer: 504, DEADLINE_EXCEEDED
    └── UnavailableError      loading, draining or stopped: 503, UNAVAILABLE

A message says what is wrong, what was found, and what to do about it.
"""

from collections.abc import Sequence


class EmberlineError(Exception):
    """Base of the tree: catch this to catch every deliberate error."""


class ConfigError(EmberlineError):
    """A pipeline config is wrong.

    Args:
        problems: one sentence for each problem found, in the order of the file; at least one.
        source: the file that the config came from.
    """

    def __init__(self, problems: Sequence[str] | str, source: str = "") -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        assert self.problems
        self.source = source
        where = f"{source}: " if source else ""
        if len(self.problems) == 1:
            text = where + self.problems[0]
        else:
            lines = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
            text = f"{where}{len(self.problems)} problems:{lines}"
        super().__init__(text)


class DataError(EmberlineError):
    """A file or a value in it cannot become training data; the message names file, column and row."""


class TrainingError(EmberlineError):
    """Training cannot go on: the loss is no number any more. Nothing was saved since it was one."""


class CapacityError(EmberlineError):
    """A table that grows, or the disk of its rows, is full; nothing was changed. The message names the table and its size, and says what to do."""


class CheckpointError(EmberlineError):
    """A checkpoint is missing, incomplete, damaged, or does not fit the model."""


class ExportError(EmberlineError):
    """An export cannot go on; nothing was published."""


class ParityError(ExportError):
    """The artifact's answers differ from the trained model's by more than the bound; nothing was published."""


class QualityError(ExportError):
    """The model tells good from bad less well, with its tables in other number types, than was allowed; nothing was published."""


class ArtifactError(EmberlineError):
    """An artifact is missing, incomplete, damaged, or of a format that this release does not read."""


class StorageError(ArtifactError):
    """Files behind a URL cannot be read or written, or are not what their manifest lists; the message names URL and file."""


class MissingDependencyError(EmberlineError):
    """A package or program that this command needs is not installed; the message says how to get it."""


class LaunchError(EmberlineError):
    """A server process ended, or was not ready in time; the message ends with its last output."""


class ServingError(EmberlineError):
    """A request was not answered. The message is for the caller: no paths, no traces."""


class RequestError(ServingError):
    """The request is malformed; the message names the feature or tensor.

    Args:
        message: what is wrong.
        feature: the feature whose value is wrong: the message then begins with it.
        row: the row of the request or batch that holds the value, from 0.
        user: the user of a tiled request that has the value, from 0, where it is no row's.
    """

    def __init__(self, message: str, *, feature: str = "", row: int | None = None, user: int | None = None) -> None:
        self.problem, self.feature, self.row, self.user = message, feature, row, user
        where = "" if row is None else f"row {row}: "
        where = where if user is None else f"user {user}: "
        super().__init__(f"feature {feature!r}: {where}{message}" if feature else where + message)


class UnauthenticatedError(ServingError):
    """The server asks for a token, and what came with the request is none of its tokens."""


class NotFoundError(ServingError):
    """No such model or version; the message lists those there are."""


class TooLargeError(ServingError):
    """The request is over a limit; the message gives limit and size."""


class OverloadedError(ServingError):
    """The queues are full: try again later."""


class DeadlineError(ServingError):
    """The deadline passed before the answer was there."""


class UnavailableError(ServingError):
    """The server or model is loading, draining or stopped."""


def first_line(error: BaseException) -> str:
    """An error's text up to its first line break, for a message of one line; its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
