"""The manifest of a delta: what changed between two states of one artifact.

`<version>/deltas/<number>/manifest.json`, written last, like an artifact's. A delta names what it was made for by digests, so that it can be
added to nothing else: the artifact, and the delta before it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from emberline.manifest import FileEntry, ProgramEntry
from emberline.plain import from_plain

DELTA_FORMAT_VERSION = 1
DELTAS_NAME = "deltas"
"""The folder of a version's deltas, in its own; its sub-folders are numbered from 1."""


@dataclass(frozen=True, kw_only=True)
class IdChange:
    """How a table's raw ids changed.

    Args:
        file: holds `came_ids` int64 [A] ascending and `came_rows` int64 [A], ids that are new or have another row than before; and `went_ids`
            int64 [W] ascending, ids that own no row any more.
        came: A.
        went: W.
        num_ids: ids that own a row afterwards.
    """

    file: str
    came: int
    went: int
    num_ids: int


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """How one table changed.

    Args:
        table: its name.
        file: holds `places` int64 [M] ascending, and `rows`, what these M rows of the table are now, stored as the artifact's are; None where
            no row changed.
        rows: M.
        ids: of a table with raw ids; None where none of them changed.
        prefix: what the names of its tensors begin with, in both files, which tables may share.
    """

    table: str
    file: str | None
    rows: int
    ids: IdChange | None = None
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class DeltaManifest:
    """The whole of a delta's `manifest.json`.

    Args:
        name: the model's.
        version: of the artifact that it belongs to.
        number: from 1, without gaps.
        base: digest of the artifact's manifest.
        previous: digest of the manifest of the delta before; of the artifact's for the first one.
        tables: those that changed.
        programs: those that changed, each for all of its role; the others go on as they are.
        golden: the sample request with the answers after the delta.
        parity: the parity gate's report, with the checkpoint's step.
        quality: as in an artifact's manifest, of the tables after the delta.
        versions: versions of the packages that made it.
        files: every file but the manifest.
        kind: tells it from an artifact's manifest.
    """

    name: str
    version: int
    number: int
    created: str
    base: str
    previous: str
    tables: tuple[TableChange, ...]
    programs: tuple[ProgramEntry, ...]
    golden: str
    parity: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, FileEntry]
    kind: Literal["delta"] = "delta"
    quality: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = DELTA_FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`. Raises ValueError, as `from_plain`."""
        return from_plain(cls, data)
