"""What the id maps of both kinds have in common: the parts of a table, who belongs to them, and what is counted.

A table's ids are cut into parts, and so are its rows; the last row of each part is its fallback, which every id of the part reads that owns no row.
A rank holds one part, or several that lie side by side.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import CheckpointError
from emberline.schema import INT64_MAX
from emberline.train.zch.reshard import NewShard, WholeMap
from emberline.train.zch.routing import owner_of, range_starts, unmix

FREE_ROW = INT64_MAX
"""The id that stands in the map for "no owner"."""


@dataclass(frozen=True)
class ZchCounters:
    """What a table's id map has done since training began.

    Args:
        seen: ids read in training, repeats included.
        admitted: ids that were given a row.
        evicted: ids that lost their row to another id.
        dropped: ids read in training that nothing was learned from, or that found no room: those equal to 2^63-1; of a sorted map, those that the
            history had no room for; of a map by hashes, those that no row was left for where they may lie.
    """

    seen: int
    admitted: int
    evicted: int
    dropped: int


class IdMap(ABC):
    """The id map of one table, or of one rank's parts of it; each kind is a module of TorchRec's as well.

    Reading ids in training mode learns from them. In eval mode nothing changes, whatever is read; `torch.no_grad` makes no difference.

    `kind` is what a config calls it; `ends` has the global row numbers where the parts of the whole table begin, and the end; `routing` says how
    ids find their part; `reset_rows`, where it is set, starts local rows afresh that change owner.
    """

    kind: str
    device: torch.device
    table: str
    ends: tuple[int, ...]
    first_part: int
    num_own_parts: int
    routing: str
    is_sent_mixed: bool
    reset_rows: Callable[[Tensor], None] | None

    def _set_up(self, table: str, ends: Sequence[int], first_part: int, num_own_parts: int, routing: str) -> None:
        self.table = table
        self.ends = tuple(ends)
        self.first_part, self.num_own_parts = first_part, num_own_parts
        self.routing = routing
        self.is_sent_mixed = False
        self.reset_rows = None
        self._rows_to_reset: list[Tensor] = []

    @property
    def num_parts(self) -> int:
        """Parts of the whole table."""
        return len(self.ends) - 1

    @property
    def num_shards(self) -> int:
        """Ranks that the table lies on."""
        return self.num_parts // self.num_own_parts

    @property
    def shard(self) -> int:
        """Which of them this is."""
        return self.first_part // self.num_own_parts

    @property
    def first_row(self) -> int:
        """The global number of this shard's first row."""
        return self.ends[self.first_part]

    @property
    def end_row(self) -> int:
        """The global number behind this shard's last row."""
        return self.ends[self.first_part + self.num_own_parts]

    @property
    def capacity(self) -> int:
        """Ids that can own a row: all rows but the fallback rows."""
        return self.end_row - self.first_row - self.num_own_parts

    @property
    @abstractmethod
    def rows_in_use(self) -> int:
        """Rows that have an owner; at most `capacity`."""

    @property
    @abstractmethod
    def counters(self) -> ZchCounters:
        """What the map has done since training began; kept across checkpoints."""

    @property
    @abstractmethod
    def fallback_rows(self) -> tuple[int, ...]:
        """The global numbers of the rows that ids of each part read without a row of their own."""

    def owns(self, ids: Tensor) -> Tensor:
        """Which ids are routed to this shard: bool [N]."""
        parts = owner_of(ids, self.num_parts, self.routing) - self.first_part
        return (parts >= 0) & (parts < self.num_own_parts)

    @abstractmethod
    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The global row of each id, int64 [N] of any integer type, and whether it owns it: int64 [N], bool [N]."""

    def rows_of(self, ids: Tensor) -> Tensor:
        """The global row of each id: ids [N] of any integer type -> int64 [N]; the fallback row of their part for ids that own none."""
        return self.find(ids)[0]

    @abstractmethod
    def owners(self) -> tuple[Tensor, Tensor]:
        """The ids that own a row, ascending, and the global row of each: int64 [K], int64 [K], on the CPU."""

    @abstractmethod
    def shard_ends(self, world_size: int) -> tuple[int, ...]:
        """The global row numbers where the shards of so many ranks begin, and the end.

        Raises:
            ConfigError: the table cannot be shared by so many.
        """

    def preprocess(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """The features with their ids as int64."""
        return {name: with_values(feature, feature.values().to(torch.int64)) for name, feature in features.items()}

    @torch.no_grad()
    def profile(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Learn from the ids, in training mode only; the features with the ids themselves, where the exchange had mixed them."""
        if self.is_sent_mixed:
            features = {name: with_values(feature, unmix(feature.values().to(torch.int64))) for name, feature in features.items()}
        if self.training:
            self._learn([feature.values().to(torch.int64) for feature in features.values()])
        return features

    def remap(
        self, features: dict[str, JaggedTensor], mutate_miss_lengths: bool = True, write_weights: Tensor | None = None
    ) -> dict[str, JaggedTensor]:
        """The features with their ids replaced by global row numbers, int64."""
        return {name: with_values(feature, self.rows_of(feature.values())) for name, feature in features.items()}

    def evict(self) -> None:
        """Nothing: rows are reset before they are read, through `reset_rows` or `take_rows_to_reset`, not after."""
        return None

    def take_rows_to_reset(self) -> Tensor | None:
        """The local rows that changed owner since the last call, or None; empty from then on."""
        if not self._rows_to_reset:
            return None
        rows = torch.cat(self._rows_to_reset)
        self._rows_to_reset.clear()
        return rows

    @abstractmethod
    def state_for_checkpoint(self) -> dict[str, Tensor]:
        """All that decides the module's next steps, by name; the tensors are copies.

        Entries: `raw_ids`, `rows` (global) and what is kept of each id, int64 [Z], Z rows of the shard. Numbers: `counters` and others, by part.
        """

    @abstractmethod
    def load_state_from_checkpoint(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state_for_checkpoint` gave; the next step is then bit-equal to the uninterrupted one.

        Raises:
            CheckpointError: a part is missing, surplus or of another size; names the table. Nothing is changed then.
        """

    @abstractmethod
    def load_whole(self, whole: WholeMap) -> None:
        """Take up the parts of the whole table into an unsharded map, to be read.

        Raises:
            CheckpointError: as `load_state_from_checkpoint`.
        """

    @abstractmethod
    def copy_to(self, other: "IdMap") -> None:
        """Give all that is known to another map of the same table, unsharded both."""

    @abstractmethod
    def cut(self, whole: WholeMap, ends: Sequence[int] | None = None, shard: int | None = None) -> NewShard:
        """A shard of this table as it would be cut out of parts that were cut otherwise.

        Args:
            whole: of the same kind.
            ends: where all shards begin, and the end; None: as this map's do.
            shard: which of them; None: this one.
        """

    @abstractmethod
    def scores(self, entries: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Tensor:
        """What owners of rows are worth, float64 [N]; higher is better.

        Args:
            entries: as in a state, of N ids.
            numbers: of all parts.
        """

    @abstractmethod
    def _learn(self, reads: Sequence[Tensor]) -> None:
        """Learn from the ids of one batch: int64, one tensor a feature."""

    training: bool

    def _start_afresh(self, rows: Tensor) -> None:
        """Have local rows [n] started afresh that changed owner."""
        if rows.numel() == 0:
            return
        if self.reset_rows is not None:
            self.reset_rows(rows)
        else:
            self._rows_to_reset.append(rows)

    def _check_names(self, state: Mapping[str, Tensor], sizes: Mapping[str, torch.Size], others: Sequence[str] = ()) -> None:
        """Refuse a state with other names, or of other sizes."""
        expected = {*sizes, *others}
        missing, surplus = sorted(expected - state.keys()), sorted(state.keys() - expected)
        if missing or surplus:
            raise CheckpointError(f"the id map of table {self.table!r} does not fit its policy: missing {missing}, surplus {surplus}")
        rows = self.end_row - self.first_row
        if state["raw_ids"].shape != (rows,):
            found = state["raw_ids"].numel()
            raise CheckpointError(f"table {self.table!r} has {rows} ZCH rows, the checkpoint {found}; keep zch_size, or start anew")
        wrong = [name for name, size in sizes.items() if state[name].shape != size]
        if wrong:
            raise CheckpointError(f"the id map of table {self.table!r} is damaged: {wrong} have the wrong size")


def zch_modules(root: torch.nn.Module) -> dict[str, IdMap]:
    """Every id map below `root`, sharded or not, by the name of its table."""
    return {module.table: module for module in root.modules() if isinstance(module, IdMap)}


def remap_entries(module: IdMap) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The map as serving needs it.

    Returns:
        raw ids, int64, sorted, without free rows; the global row of each; where each range begins that shares a fallback row, sorted, beginning
        with -2^63: of ids, or where the module's `routing` mixes them, of mixed ids; the global fallback row of each range. All on the CPU.
    """
    fallbacks = torch.tensor(module.fallback_rows, dtype=torch.int64)
    return *module.owners(), range_starts(len(fallbacks)), fallbacks


def with_values(feature: JaggedTensor, values: Tensor) -> JaggedTensor:
    """The same bags with other ids."""
    return JaggedTensor(values=values, lengths=feature.lengths(), offsets=feature.offsets(), weights=feature.weights_or_none())
