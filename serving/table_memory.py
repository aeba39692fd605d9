"""What the tables of an opened artifact cost in memory, and whether they got the pages that make lookups fast."""

from dataclasses import dataclass
from typing import Self

from emberline.memory import bytes_on_huge_pages, why_no_huge_pages
from emberline.serving.artifact import Artifact
from emberline.serving.tables import MAPPED, PRIVATE

_MIB = 1 << 20
_ENOUGH = 0.9
"""Where a smaller share lies on huge pages, the reason is told."""


@dataclass(frozen=True, kw_only=True)
class TableMemory:
    """Where an engine's tables are.

    Args:
        memory: of `TABLE_MEMORIES`.
        num_bytes: of all tables; of those on disk none are in memory.
        overlaid_bytes: of rows that deltas changed, where they are kept beside the tables.
        huge_bytes: how many of `num_bytes` are on huge pages; None where the system does not tell.
    """

    memory: str
    num_bytes: int
    overlaid_bytes: int = 0
    huge_bytes: int | None = None

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """The memory of an artifact's tables as it is now; the system goes through this process's pages for it."""
        parts = [(table.data_ptr(), len(table) * table.stride(0) * table.itemsize) for table in artifact.tables.values()]
        on_cpu = artifact.memory == PRIVATE and artifact.device.type == "cpu"
        return cls(
            memory=artifact.memory,
            num_bytes=sum(size for _, size in parts),
            overlaid_bytes=sum(rows.num_bytes for rows in artifact.overlaid.values()),
            huge_bytes=bytes_on_huge_pages(parts) if on_cpu else None,
        )

    def __str__(self) -> str:
        """In words, for a log."""
        size = f"{self.num_bytes / _MIB:,.0f} MiB of tables"
        if self.memory == MAPPED:
            return f"{size} are mapped: all processes share them"
        if self.memory != PRIVATE:
            return "tables stay in their files"
        if self.huge_bytes is None or not self.num_bytes:
            return f"{size} in memory of its own"
        share = self.huge_bytes / self.num_bytes
        reason = f": {why_no_huge_pages()}" if share < _ENOUGH and self.num_bytes >= 2 * _MIB else ""
        return f"{size} in memory of its own, {share:.0%} of it on huge pages{reason}"
