"""Zero-collision hashing: raw ids -> rows of a table, learned from what training reads.

TorchRec's managed-collision module does the scoring and the sorting; this one takes out its faults:

- the id 2^63-1 marks free rows and so never matches one; it always reads the fallback row and is never learned;
- int32 ids are widened before they are compared;
- the history between two evictions grows with need, up to a size that is given, so that no id is dropped because the first batch was small;
- small numbers spread over the shards: ids that a sharded collection sends are mixed on the way (`exchange`), and are themselves here;
- rows that change owner are named, so that whoever owns the vectors starts them afresh before they are read;
- everything that decides the next step (history, iterations, counters) is in `state_for_checkpoint`.

The last row of a table is the fallback: every id that owns no row reads it. So `rows - 1` ids fit.

Letters: Z rows of the table (of this shard), N ids of a batch, H ids in the history.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.modules.mc_modules import MCHEvictionPolicy, MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import CheckpointError
from emberline.schema import INT64_MAX
from emberline.train.zch.routing import BY_RANGE, MIXED, owner_of, range_starts, unmix

FREE_ROW = INT64_MAX
"""The id that stands in the map for "no owner"."""


@dataclass(frozen=True)
class ZchCounters:
    """What a table's id map has done since training began.

    Args:
        seen: ids read in training, repeats included.
        admitted: ids that were given a row.
        evicted: ids that lost their row to another id.
        dropped: ids read in training that nothing was learned from: those equal to 2^63-1, and those that the history had no room for.
    """

    seen: int
    admitted: int
    evicted: int
    dropped: int


class ZchModule(MCHManagedCollisionModule):  # type: ignore[misc]
    """The id map of one table, or of one rank's shard of it.

    Reading ids in training mode learns from them: each `interval` reads, the history's ids compete with the owners for
    the rows by the policy's score. In eval mode nothing changes, whatever is read; `torch.no_grad` makes no difference.

    Args:
        name: the table's name.
        rows: Z, the fallback row included; at least 1.
        interval: reads between two evictions; at least 1.
        policy: how ids are scored.
        device: where the map lives.
        first_row: the global number of this shard's first row.
        segments: the global row numbers where shards begin, and the end; None for a table in one piece.
        routing: how ids find their shard, `BY_RANGE` or `MIXED`.
        history: most ids that all shards together keep between two evictions, of which each has an equal part; None: all that are read.
    """

    _current_iter: int
    _last_eviction_iter: int
    _output_segments_tensor: Tensor

    def __init__(
        self,
        *,
        name: str,
        rows: int,
        interval: int,
        policy: MCHEvictionPolicy,
        device: torch.device,
        first_row: int = 0,
        segments: Sequence[int] | None = None,
        routing: str = BY_RANGE,
        history: int | None = None,
    ) -> None:
        segments = [first_row, first_row + rows] if segments is None else list(segments)
        super().__init__(
            zch_size=rows,
            device=device,
            eviction_policy=policy,
            eviction_interval=interval,
            name=name,
            output_global_offset=first_row,
            output_segments=segments,
            buckets=len(segments) - 1,
        )
        self.ends = tuple(segments)
        self.routing = routing
        self._history_size = history
        self.is_sent_mixed = False
        self._fallbacks: Tensor | None = None
        self._history_ids: list[Tensor] = []
        self._history_iters: list[int] = []
        self._counts = dict.fromkeys(("seen", "admitted", "evicted", "dropped"), 0)
        self._rows_to_reset: list[Tensor] = []
        self.reset_rows: Callable[[Tensor], None] | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return str(self._name)

    @property
    def counters(self) -> ZchCounters:
        """What the map has done since training began; kept across checkpoints."""
        return ZchCounters(**self._counts)

    @property
    def rows_in_use(self) -> int:
        """Rows that have an owner; at most Z - 1."""
        return int((self._mch_sorted_raw_ids != FREE_ROW).sum())

    @property
    def capacity(self) -> int:
        """Ids that can own a row: Z - 1."""
        return int(self._zch_size) - 1

    @property
    def first_row(self) -> int:
        """The global number of this shard's first row."""
        return int(self._output_global_offset)

    @property
    def shard(self) -> int:
        """Which of the table's shards this is."""
        return self.ends.index(self.first_row)

    @property
    def num_shards(self) -> int:
        """How many shards the table has."""
        return len(self.ends) - 1

    @property
    def fallback_row(self) -> int:
        """The global number of the row that ids without a row of their own read."""
        return int(self._output_global_offset + self._zch_size - 1)

    @property
    def fallback_rows(self) -> tuple[int, ...]:
        """The same, where the map was trained as several shards and is now read as one: the row of each."""
        return (self.fallback_row,) if self._fallbacks is None else tuple(self._fallbacks.tolist())

    def preprocess(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """The features with their ids as int64."""
        return {name: _with_values(feature, feature.values().to(torch.int64)) for name, feature in features.items()}

    @torch.no_grad()
    def profile(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Learn from the ids, in training mode only, and run the eviction when it is due.

        Raises:
            CheckpointError: the map is one that `read_as_one` made.
        """
        if self.is_sent_mixed:
            features = {name: _with_values(feature, unmix(feature.values().to(torch.int64))) for name, feature in features.items()}
        if not self.training:
            return features
        if self._fallbacks is not None:
            raise CheckpointError(f"table {self.table!r} was trained as {len(self._fallbacks)} shards; read as one, its id map cannot learn")
        self._begin_iteration()
        for feature in features.values():
            values = feature.values().to(torch.int64)
            learnable = values[values != FREE_ROW]  # a copy: the batch's memory is not held on to
            room = self._room_in_history()
            if room is not None and room < learnable.numel():
                learnable = learnable[:room].clone()
            if learnable.numel():
                self._history_ids.append(learnable)
                self._history_iters.append(self._current_iter)
            self._counts["seen"] += values.numel()
            self._counts["dropped"] += values.numel() - learnable.numel()
        if self._current_iter - self._last_eviction_iter >= self._eviction_interval:
            self._evict_by_history()
            self._last_eviction_iter = self._current_iter
        return features

    def remap(
        self,
        features: dict[str, JaggedTensor],
        mutate_miss_lengths: bool = True,
        write_weights: Tensor | None = None,
    ) -> dict[str, JaggedTensor]:
        """The features with their ids replaced by global row numbers, int64."""
        return {name: _with_values(feature, self.rows_of(feature.values())) for name, feature in features.items()}

    @torch.no_grad()
    def rows_of(self, ids: Tensor) -> Tensor:
        """The global row of each id: ids [N] of any integer type -> int64 [N]; the fallback row for ids that own none."""
        ids = ids.to(torch.int64)
        places = torch.searchsorted(self._mch_sorted_raw_ids[:-1], ids)
        known = (self._mch_sorted_raw_ids[places] == ids) & (ids != FREE_ROW)
        fallback = self.fallback_row if self._fallbacks is None else self._fallbacks[owner_of(ids, len(self._fallbacks), self.routing)]
        return torch.where(known, self._mch_remapped_ids_mapping[places], fallback)

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

    def validate_state(self) -> None:
        """Called by torch after `load_state_dict`: the map as it was loaded, and an empty history."""
        segments = self._output_segments_tensor
        if segments.is_meta:
            return
        ends = (self.first_row, self.first_row + self._zch_size)
        if not all(bool((segments == end).any()) for end in ends):
            known = segments[segments >= 0].tolist()
            raise CheckpointError(f"table {self.table!r} holds rows {ends[0]} to {ends[1]}, but the loaded id map was cut at {known}")
        self._output_segments_tensor = self._init_output_segments_tensor
        self._sort_mch_buffers()
        self._current_iter = self._last_eviction_iter = int(self._current_iter_tensor)
        self._forget_history()

    def rebuild_with_output_id_range(
        self,
        output_id_range: tuple[int, int],
        output_segments: list[int],
        device: torch.device | None = None,
    ) -> "ZchModule":
        """An empty map of the rows in `output_id_range`, for one rank of a row-wise sharded table."""
        first, end = output_id_range
        shard = ZchModule(
            name=self.table,
            rows=end - first,
            interval=self._eviction_interval,
            policy=self._eviction_policy,
            device=device or self.device,
            first_row=first,
            segments=output_segments,
            routing=self.routing,
            history=self._history_size,
        )
        shard.is_sent_mixed = self.routing == MIXED and shard.num_shards > 1
        return shard

    def state_for_checkpoint(self) -> dict[str, Tensor]:
        """All that decides the module's next steps, by name; the tensors are copies.

        `raw_ids` [Z] sorted, `rows` [Z] (global), `counts` and `last_access_iter` [Z] where the policy has them,
        `history_ids` and `history_iters` [H], `iteration` and `last_eviction_iteration` [1], `counters` [4]; all int64.
        """
        ids, iters = self._history()
        numbers = {
            "iteration": [max(self._current_iter, int(self._current_iter_tensor))],
            "last_eviction_iteration": [max(self._last_eviction_iter, 0)],
            "counters": list(self._counts.values()),
        }
        state = self._map_buffers() | {"history_ids": ids, "history_iters": iters}
        state |= {name: torch.tensor(values, dtype=torch.int64, device=self.device) for name, values in numbers.items()}
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    @torch.no_grad()
    def load_state_from_checkpoint(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state_for_checkpoint` gave; the next step is then bit-equal to the uninterrupted one.

        Raises:
            CheckpointError: a part is missing, surplus or of another size; names the table. Nothing is changed then.
        """
        self._check_state(state)
        self._fallbacks = None
        for name, buffer in self._map_buffers().items():
            buffer.copy_(state[name])
        self._current_iter = int(state["iteration"])
        self._current_iter_tensor.fill_(self._current_iter)
        self._last_eviction_iter = int(state["last_eviction_iteration"])
        self._counts = dict(zip(self._counts, state["counters"].tolist(), strict=True))
        self._forget_history()
        ids, iters = (state[name].to(self.device) for name in ("history_ids", "history_iters"))
        reads, lengths = torch.unique_consecutive(iters, return_counts=True)
        self._history_ids = [part.clone() for part in torch.split(ids, lengths.tolist())] if ids.numel() else []
        self._history_iters = reads.tolist()

    def read_as_one(self, state: Mapping[str, Tensor], fallback_rows: Sequence[int], routing: str) -> None:
        """Take up the maps of all shards of the table, to be read, not to learn: each id reads the row that it read when it was sharded.

        Args:
            state: as `load_state_from_checkpoint` takes it, with the entries of all shards in any order.
            fallback_rows: of each shard.
            routing: how ids found their shard.

        Raises:
            CheckpointError: as `load_state_from_checkpoint`.
        """
        self.load_state_from_checkpoint(state)
        self._sort_mch_buffers()
        self._fallbacks = torch.tensor(fallback_rows, dtype=torch.int64, device=self.device)
        self.routing = routing

    def _map_buffers(self) -> dict[str, Tensor]:
        return {"raw_ids": self._mch_sorted_raw_ids, "rows": self._mch_remapped_ids_mapping, **self._mch_metadata}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        buffers = self._map_buffers()
        sizes = {name: buffer.shape for name, buffer in buffers.items()}
        sizes |= {"iteration": torch.Size([1]), "last_eviction_iteration": torch.Size([1]), "counters": torch.Size([len(self._counts)])}
        expected = {*sizes, "history_ids", "history_iters"}
        missing, surplus = sorted(expected - state.keys()), sorted(state.keys() - expected)
        if missing or surplus:
            raise CheckpointError(f"the id map of table {self.table!r} does not fit its policy: missing {missing}, surplus {surplus}")
        if state["raw_ids"].shape != buffers["raw_ids"].shape:
            found = state["raw_ids"].numel()
            raise CheckpointError(f"table {self.table!r} has {self._zch_size} ZCH rows, the checkpoint {found}; keep zch_size, or start anew")
        wrong = [name for name, size in sizes.items() if state[name].shape != size]
        if wrong or state["history_ids"].shape != state["history_iters"].shape:
            raise CheckpointError(f"the id map of table {self.table!r} is damaged: {wrong or ['history_ids']} have the wrong size")

    def _begin_iteration(self) -> None:
        if self._current_iter == -1:
            self._current_iter = self._last_eviction_iter = int(self._current_iter_tensor)
        self._current_iter += 1
        self._current_iter_tensor += 1

    def _history(self) -> tuple[Tensor, Tensor]:
        """All ids read since the last eviction, and the iteration of each: int64 [H], int64 [H]."""
        if not self._history_ids:
            empty = torch.empty(0, dtype=torch.int64, device=self.device)
            return empty, empty
        ids = torch.cat(self._history_ids)
        iters = torch.cat([torch.full_like(part, iteration) for part, iteration in zip(self._history_ids, self._history_iters, strict=True)])
        return ids, iters

    def _room_in_history(self) -> int | None:
        """How many more ids this shard may keep; None: any number."""
        if self._history_size is None:
            return None
        return max(0, -(-self._history_size // self.num_shards) - sum(map(len, self._history_ids)))

    def _forget_history(self) -> None:
        self._history_ids, self._history_iters = [], []
        self._rows_to_reset.clear()

    def _evict_by_history(self) -> None:
        """Let the history's ids compete for the rows, then forget the history."""
        ids, iters = self._history()
        self._history_ids, self._history_iters = [], []
        unique, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        passes = self._eviction_policy._threshold_filtering_func
        mask = passes(counts)[0] if passes is not None and unique.numel() else None
        metadata = self._eviction_policy.coalesce_history_metadata(
            self._current_iter, {"last_access_iter": iters}, counts, inverse, threshold_mask=mask
        )
        if mask is not None:
            unique, counts = unique[mask], counts[mask]
        self._reassign_rows(unique, counts, metadata)

    def _reassign_rows(self, ids: Tensor, counts: Tensor, metadata: dict[str, Tensor]) -> None:
        """Give rows to the best of owners and `ids`; ties go to owners, then to ids read more often, then to smaller ids."""
        order = torch.argsort(counts, descending=True, stable=True)
        ids, counts = ids[order], counts[order]
        known, places = self._match_indices(self._mch_sorted_raw_ids, ids)
        lost, won = self._eviction_policy.update_metadata_and_generate_eviction_scores(
            self._current_iter, self._zch_size, order, counts, known, places, self._mch_metadata, metadata
        )
        owned = self._mch_sorted_raw_ids[lost] != FREE_ROW
        changed = self._mch_remapped_ids_mapping[lost[owned]] - self.first_row
        self._mch_sorted_raw_ids[lost] = ids[~known][won]
        self._sort_mch_buffers()
        self._counts["admitted"] += lost.numel()
        self._counts["evicted"] += changed.numel()
        if changed.numel() == 0:
            return
        if self.reset_rows is not None:
            self.reset_rows(changed)
        else:
            self._rows_to_reset.append(changed)


def zch_modules(root: torch.nn.Module) -> dict[str, ZchModule]:
    """Every id map below `root`, sharded or not, by the name of its table."""
    return {module.table: module for module in root.modules() if isinstance(module, ZchModule)}


def remap_entries(module: ZchModule) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The map as serving needs it.

    Returns:
        raw ids, int64, sorted, without free rows; the global row of each; where each range begins that shares a fallback row, sorted, beginning
        with -2^63: of ids, or where the module's `routing` mixes them, of mixed ids; the global fallback row of each range. All on the CPU.
    """
    owned = module._mch_sorted_raw_ids != FREE_ROW
    ids, rows = module._mch_sorted_raw_ids[owned].cpu(), module._mch_remapped_ids_mapping[owned].cpu()
    fallbacks = torch.tensor(module.fallback_rows, dtype=torch.int64)
    return ids, rows, range_starts(len(fallbacks)), fallbacks


def _with_values(feature: JaggedTensor, values: Tensor) -> JaggedTensor:
    return JaggedTensor(values=values, lengths=feature.lengths(), offsets=feature.offsets(), weights=feature.weights_or_none())
