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

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec.modules.mc_modules import MCHEvictionPolicy, MCHManagedCollisionModule

from emberline.errors import CheckpointError
from emberline.train.features.configs import SORTED
from emberline.train.zch.id_map import FREE_ROW, IdMap, ZchCounters
from emberline.train.zch.policies import scores
from emberline.train.zch.reshard import NewShard, WholeMap, block_ends, cut_anew, numbers_of_all
from emberline.train.zch.routing import BY_RANGE, MIXED, owner_of


class ZchModule(IdMap, MCHManagedCollisionModule):  # type: ignore[misc]
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

    kind = SORTED
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
        self._set_up(name, segments, segments.index(first_row), 1, routing)
        self._history_size = history
        self._fallbacks: Tensor | None = None
        self._history_ids: list[Tensor] = []
        self._history_iters: list[int] = []
        self._counts = dict.fromkeys(("seen", "admitted", "evicted", "dropped"), 0)

    @property
    def counters(self) -> ZchCounters:
        """What the map has done since training began; kept across checkpoints."""
        return ZchCounters(**self._counts)

    @property
    def rows_in_use(self) -> int:
        """Rows that have an owner; at most Z - 1."""
        return int((self._mch_sorted_raw_ids != FREE_ROW).sum())

    @property
    def fallback_row(self) -> int:
        """The global number of the row that ids without a row of their own read."""
        return int(self._output_global_offset + self._zch_size - 1)

    @property
    def fallback_rows(self) -> tuple[int, ...]:
        """The same, where the map was trained as several shards and is now read as one: the row of each."""
        return (self.fallback_row,) if self._fallbacks is None else tuple(self._fallbacks.tolist())

    @torch.no_grad()
    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The global row of each id, and whether it owns it."""
        ids = ids.to(torch.int64)
        places = torch.searchsorted(self._mch_sorted_raw_ids[:-1], ids)
        known = (self._mch_sorted_raw_ids[places] == ids) & (ids != FREE_ROW)
        fallback = self.fallback_row if self._fallbacks is None else self._fallbacks[owner_of(ids, len(self._fallbacks), self.routing)]
        return torch.where(known, self._mch_remapped_ids_mapping[places], fallback), known

    def owners(self) -> tuple[Tensor, Tensor]:
        """The ids that own a row, ascending, and the global row of each, on the CPU."""
        owned = self._mch_sorted_raw_ids != FREE_ROW
        return self._mch_sorted_raw_ids[owned].cpu(), self._mch_remapped_ids_mapping[owned].cpu()

    def shard_ends(self, world_size: int) -> tuple[int, ...]:
        """Equal blocks, as the planner cuts them; the last may be smaller."""
        return block_ends(self.table, self.ends[-1], world_size)

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

    def load_whole(self, whole: WholeMap) -> None:
        """Take up all shards of the table; more than one make a map that is only read."""
        state = {**whole.entries, "history_ids": whole.history_ids, "history_iters": whole.history_iters, **numbers_of_all(whole.numbers)}
        if whole.num_parts == 1:
            self.load_state_from_checkpoint(state)
        else:
            self.read_as_one(state, [end - 1 for end in whole.ends[1:]], whole.routing)

    def copy_to(self, other: IdMap) -> None:
        """Give all that is known to another map of the same table; one that is only read stays such."""
        assert isinstance(other, ZchModule)
        if self._fallbacks is None:
            other.load_state_from_checkpoint(self.state_for_checkpoint())
        else:
            other.read_as_one(self.state_for_checkpoint(), self.fallback_rows, self.routing)

    def cut(self, whole: WholeMap, ends: Sequence[int] | None = None, shard: int | None = None) -> NewShard:
        """A shard of this table; see `cut_anew`."""
        return cut_anew(whole, self.ends if ends is None else ends, self.shard if shard is None else shard, self._eviction_policy, self.routing)

    def scores(self, entries: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Tensor:
        """What owners of rows are worth to the policy, after the last iteration."""
        return scores(self._eviction_policy, entries, int(numbers["iteration"].max()))

    def _learn(self, reads: Sequence[Tensor]) -> None:
        """Learn from the ids, and run the eviction when it is due.

        Raises:
            CheckpointError: the map is one that `read_as_one` made.
        """
        if self._fallbacks is not None:
            raise CheckpointError(f"table {self.table!r} was trained as {len(self._fallbacks)} shards; read as one, its id map cannot learn")
        self._begin_iteration()
        for values in reads:
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

    def _map_buffers(self) -> dict[str, Tensor]:
        return {"raw_ids": self._mch_sorted_raw_ids, "rows": self._mch_remapped_ids_mapping, **self._mch_metadata}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        sizes = {name: buffer.shape for name, buffer in self._map_buffers().items()}
        sizes |= {"iteration": torch.Size([1]), "last_eviction_iteration": torch.Size([1]), "counters": torch.Size([len(self._counts)])}
        self._check_names(state, sizes, ("history_ids", "history_iters"))
        if state["history_ids"].shape != state["history_iters"].shape:
            raise CheckpointError(f"the id map of table {self.table!r} is damaged: {['history_ids']} have the wrong size")

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
        self._start_afresh(changed)
