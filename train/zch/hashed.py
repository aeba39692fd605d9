"""Zero-collision hashing by hashes: TorchRec's second kind of map (MPZCH), which admits an id when it is first read.

The table is cut into buckets; an id belongs to one of them, and lies in one of the slots from its home on (`probing`). TorchRec's module reads and
admits by fbgemm's `zero_collision_hash`; this one takes out its faults:

- the last row of a bucket is no slot: ids without a row of their own read it, where TorchRec lets them read the row of another id;
- on a CPU, where fbgemm's kernel only reads, `probing` admits, by the same rule;
- an id of a batch is admitted once, so that no race within the kernel gives it two rows, and rows are read when all of the batch are admitted;
- every int64 has a bucket, negatives included (TorchRec's exchange and its map disagree on those), and -1, fbgemm's mark of free slots, is an id;
- hours come from a clock that is passed in and never runs backwards; rows that change owner are named, as in `module`.

Letters: Z rows of the shard, P buckets of the shard, N ids of a batch.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor

from emberline.errors import CheckpointError, ConfigError
from emberline.schema import INT64_MAX
from emberline.train.features.configs import HASHED, EvictionPolicy, LruPolicy, TtlPolicy
from emberline.train.zch.buckets import bucket_ends, sharing_problem
from emberline.train.zch.id_map import FREE_ROW, IdMap, ZchCounters
from emberline.train.zch.probing import Slots, Ways, exchanged, insert
from emberline.train.zch.rehash import cut_hashed
from emberline.train.zch.reshard import NewShard, WholeMap
from emberline.train.zch.routing import MIXED, owner_of

MAX_PROBE = 128
"""Slots that an id may lie in, where a config does not say: TorchRec's."""
_COUNTERS = ("seen", "admitted", "evicted", "dropped")


def hour_now() -> int:
    """Hours since 1970 began, UTC."""
    return int(time.time() // 3600)


def device_problem(device: torch.device) -> str:
    """Why maps by hashes cannot be trained on a device; empty where they can."""
    if device.type in ("cpu", "meta"):
        return ""
    if device.type != "cuda":
        return f"kind mpzch runs on CPUs and on CUDA, not on {device.type}: neither fbgemm's kernel nor ours is for it"
    if not torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::zero_collision_hash", "CUDA"):
        return "kind mpzch admits ids on a GPU by fbgemm's zero_collision_hash, which this build of fbgemm has for CPUs only: install fbgemm-gpu"
    return ""


class HashedZchModule(IdMap, HashZchManagedCollisionModule):  # type: ignore[misc]
    """The id map by hashes of one table, or of one rank's buckets of it.

    Args:
        name: the table's name.
        rows: of the whole table, the fallback row of each bucket included.
        buckets: of the whole table; `rows` has at least two for each.
        device: where the map lives: a CPU, or a GPU whose fbgemm has the kernel.
        routing: how ids find their bucket, `BY_RANGE` or `MIXED`.
        max_probe: slots that an id may lie in; at least 1; as many as the largest bucket has are all.
        eviction: who may lose a row: `TtlPolicy`: whoever was not read for so many hours, when the row is met first; `LruPolicy`: of those that
            were not read in this hour, who was read longest ago; None: nobody.
        clock: gives the hour, of any beginning that stays the same.
        own: the first bucket of this shard, and the one behind its last; None: all.

    Raises:
        ConfigError: nothing can admit ids on such a device.
    """

    kind = HASHED

    def __init__(
        self,
        *,
        name: str,
        rows: int,
        buckets: int,
        device: torch.device,
        routing: str = MIXED,
        max_probe: int = MAX_PROBE,
        eviction: EvictionPolicy | None = None,
        clock: Callable[[], int] = hour_now,
        own: tuple[int, int] | None = None,
    ) -> None:
        if problem := device_problem(device):
            raise ConfigError(f"table {name!r}: {problem}")
        ends, (first, end) = bucket_ends(rows, buckets), own or (0, buckets)
        with _quiet():
            super().__init__(
                zch_size=ends[end] - ends[first],
                device=device,
                total_num_buckets=buckets,
                max_probe=min(max_probe, -(-rows // buckets) - 1),  # the kernel would go round and round
                input_hash_size=INT64_MAX,
                output_segments=list(ends),
                name=name,
                eviction_policy_name=_policy_name(eviction),
                eviction_config=None if eviction is None else HashZchEvictionConfig(features=[], single_ttl=_hours_kept(eviction)),
                start_bucket=first,
                end_bucket=end,
                disable_fallback=True,
                persist_hash_zch_bucket=False,
            )
        self._set_up(name, ends, first, end - first, routing)
        self.eviction, self.clock = eviction, clock
        self._hour = 0
        starts = torch.tensor(ends[first : end + 1], dtype=torch.int64) - ends[first]
        self.register_buffer("_bucket_starts", starts[:-1].to(device), persistent=False)
        self.register_buffer("_bucket_slots", (starts.diff() - 1).to(device), persistent=False)
        self.register_buffer("_counters", torch.zeros(end - first, len(_COUNTERS), dtype=torch.int64, device=device), persistent=False)
        self.register_buffer("_reads", torch.zeros(self._zch_size, dtype=torch.int64, device=device), persistent=False)

    @property
    def rows_in_use(self) -> int:
        """Rows that have an owner."""
        return int((self._slot_ids != -1).sum())

    @property
    def counters(self) -> ZchCounters:
        """What the map has done since training began."""
        return ZchCounters(*self._counters.sum(0).tolist())

    @property
    def fallback_rows(self) -> tuple[int, ...]:
        """The last row of each bucket of this shard."""
        return tuple(end - 1 for end in self.ends[self.first_part + 1 : self.first_part + self.num_own_parts + 1])

    @torch.no_grad()
    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The global row of each id, and whether it owns it."""
        ids = ids.to(torch.int64)
        buckets = self._buckets_of(ids)
        slots, known = self._find(ids, buckets)
        fallback = self._bucket_starts[buckets] + self._bucket_slots[buckets]
        return torch.where(known, slots, fallback) + self.first_row, known

    def owners(self) -> tuple[Tensor, Tensor]:
        """The ids that own a row, ascending, and the global row of each, on the CPU."""
        ids = exchanged(self._slot_ids.cpu())
        rows = (ids != FREE_ROW).nonzero().flatten()
        order = torch.argsort(ids[rows])
        return ids[rows][order], rows[order] + self.first_row

    def shard_ends(self, world_size: int) -> tuple[int, ...]:
        """Where ranks begin that have an equal number of buckets."""
        if problem := sharing_problem(self.num_parts, world_size):
            raise ConfigError(f"table {self.table!r}: {problem}")
        return self.ends[:: self.num_parts // world_size]

    def forward(self, features: dict[str, JaggedTensor], mutate_miss_lengths: bool = True) -> dict[str, JaggedTensor]:
        """Learn from the ids in training mode, and replace them by global row numbers."""
        return self.remap(self.profile(features))

    def rebuild_with_output_id_range(
        self, output_id_range: tuple[int, int], output_segments: list[int] | None = None, device: torch.device | None = None
    ) -> "HashedZchModule":
        """An empty map of the buckets in `output_id_range`, for one rank of a row-wise sharded table.

        Raises:
            ConfigError: it does not begin or end with a bucket.
        """
        first, end = output_id_range
        if first not in self.ends or end not in self.ends:
            raise ConfigError(f"table {self.table!r}: rows {first} to {end} are no whole buckets, which begin at {', '.join(map(str, self.ends))}")
        shard = HashedZchModule(
            name=self.table,
            rows=self.ends[-1],
            buckets=self.num_parts,
            device=device or self.device,
            routing=self.routing,
            max_probe=self.max_probe,
            eviction=self.eviction,
            clock=self.clock,
            own=(self.ends.index(first), self.ends.index(end)),
        )
        shard.is_sent_mixed = self.routing == MIXED and shard.num_shards > 1
        return shard

    def state_for_checkpoint(self) -> dict[str, Tensor]:
        """All that decides the module's next steps, by name; the tensors are copies.

        `raw_ids`, `rows` (global), `counts` (how often an id was read since it has its row) and, where ids can lose their rows, `last_seen_hour`,
        int64 [Z]; `hour` [P], the latest one that was read from the clock, and `counters` [P, 4]. The ids of free rows are 2^63-1.
        """
        state = {
            "raw_ids": exchanged(self._slot_ids),
            "rows": torch.arange(self.first_row, self.end_row, device=self.device),
            "counts": self._reads.clone(),
            "hour": torch.full_like(self._counters[:, 0], self._hour),
            "counters": self._counters.clone(),
        }
        if self._kept_until is not None:
            seen = self._kept_until.to(torch.int64) - _hours_kept(self.eviction)
            state["last_seen_hour"] = torch.where(self._slot_ids == -1, 0, seen)
        return state

    @torch.no_grad()
    def load_state_from_checkpoint(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state_for_checkpoint` gave.

        Raises:
            CheckpointError: it does not fit, or ids do not lie where they are looked for. Nothing is changed then.
        """
        own = self.state_for_checkpoint()
        self._check_names(state, {name: tensor.shape for name, tensor in own.items()})
        state = {name: tensor.to(self.device) for name, tensor in state.items()}
        slot_ids = exchanged(state["raw_ids"])
        self._check_places(state, slot_ids)
        self._slot_ids.copy_(slot_ids)
        self._reads.copy_(state["counts"])
        self._counters.copy_(state["counters"])
        self._hour = int(state["hour"].max())
        if self._kept_until is not None:
            until = state["last_seen_hour"] + _hours_kept(self.eviction)
            self._kept_until.copy_(torch.where(slot_ids == -1, -1, until))
        self._rows_to_reset.clear()

    def load_whole(self, whole: WholeMap) -> None:
        """Take up the buckets of the whole table."""
        if whole.ends != self.ends or whole.routing != self.routing:
            raise CheckpointError(
                f"table {self.table!r} has {self.num_parts} buckets of {self.ends[-1]} rows, ids routed by {self.routing!r}; "
                f"the checkpoint has {whole.num_parts} of {whole.ends[-1]}, routed by {whole.routing!r}"
            )
        self.load_state_from_checkpoint({**whole.entries, **whole.numbers})

    def copy_to(self, other: IdMap) -> None:
        """Give all that is known to another map of the same table."""
        other.load_state_from_checkpoint(self.state_for_checkpoint())

    def cut(self, whole: WholeMap, ends: Sequence[int] | None = None, shard: int | None = None) -> NewShard:
        """A shard of this table, its ids put into its buckets anew."""
        per_shard = self.num_own_parts if ends is None else self.num_parts // (len(ends) - 1)
        first = (self.shard if shard is None else shard) * per_shard
        own = (first, first + per_shard)
        return cut_hashed(whole, self.ends, own, self.scores(whole.entries, whole.numbers), self.routing, self.max_probe)

    def scores(self, entries: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Tensor:
        """The hour in which an id was read last, where that decides who loses a row; else how often it was read."""
        return entries["last_seen_hour" if "last_seen_hour" in entries else "counts"].to(torch.float64)

    def admit(self, ids: Tensor) -> None:
        """Give a row to each id that has none and finds one, as if training had met it once, and nobody loses theirs.

        Args:
            ids: int64 [N], of this shard, each once; 2^63-1 never gets a row.
        """
        self._hour = max(self._hour, self.clock())
        learnable = ids[ids != FREE_ROW].to(self.device)
        buckets = self._buckets_of(learnable)
        new = learnable[~self._find(learnable, buckets)[1]]
        given, _ = self._insert(new, may_evict=False)
        self._reads[given] = 1

    def validate_state(self) -> None:
        """Nothing: what is loaded is checked by `load_state_from_checkpoint`."""

    @property
    def _slot_ids(self) -> Tensor:
        """Who has each row, int64 [Z], as fbgemm's kernel knows ids: a view."""
        slots: Tensor = self._hash_zch_identities.data.view(-1)
        return slots

    @property
    def _kept_until(self) -> Tensor | None:
        """The last hour in which each row is its owner's, whoever wants it: int32 [Z], a view; -1 where there is none. None: for ever."""
        metadata: Tensor | None = self._hash_zch_metadata
        return None if metadata is None else metadata.view(-1)

    def _buckets_of(self, ids: Tensor) -> Tensor:
        """The bucket of each id among those of this shard: int64 [N]."""
        return owner_of(ids, self.num_parts, self.routing) - self.first_part

    def _find(self, ids: Tensor, buckets: Tensor, slot_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The slot of each id, where it has one, and whether it has: int64 [N], bool [N]."""
        known = ids != FREE_ROW
        slots, _ = self._zero_collision_hash(**self._question(ids, buckets, slot_ids), readonly=True, metadata=None, **_NO_EVICTION)
        return slots, known & (slots >= 0)

    def _question(self, ids: Tensor, buckets: Tensor, slot_ids: Tensor | None = None) -> dict[str, object]:
        """What reading and admitting ask of fbgemm's kernel alike."""
        return {
            "input": exchanged(ids),
            "identities": self._hash_zch_identities if slot_ids is None else slot_ids.view(-1, 1),
            "max_probe": self.max_probe,
            "circular_probe": True,
            "exp_hours": -1,
            "local_sizes": self._bucket_slots[buckets],
            "offsets": self._bucket_starts[buckets],
            "output_on_uvm": False,
            "disable_fallback": True,
            "_modulo_identity_DPRECATED": False,
            "opt_in_prob": -1,
            "num_reserved_slots": -1,
            "opt_in_rands": None,
            "runtime_meta": None,
        }

    def _learn(self, reads: Sequence[Tensor]) -> None:
        """Admit the ids that are new, as far as there is room, and note who was read."""
        self._hour = max(self._hour, self.clock())
        ids = torch.cat(list(reads)).to(self.device) if reads else self._reads[:0]
        buckets = self._buckets_of(ids)
        slots, known = self._find(ids, buckets)
        if self._kept_until is not None:
            self._kept_until[slots[known]] = self._hour + _hours_kept(self.eviction)
        given, lost = self._insert(_once(ids[~known & (ids != FREE_ROW)]), may_evict=True)
        self._reads[given] = 0
        new = (~known).nonzero().flatten()
        slots[new], known[new] = self._find(ids[new], buckets[new])  # nobody who was read in this batch has lost a row
        self._reads.index_add_(0, slots[known], torch.ones_like(slots[known]))
        for place, own in enumerate((buckets, self._bucket_at(given), self._bucket_at(lost), buckets[~known])):
            self._counters[:, place] += torch.bincount(own, minlength=self.num_own_parts)
        self._start_afresh(lost)

    def _insert(self, ids: Tensor, *, may_evict: bool) -> tuple[Tensor, Tensor]:
        """Give slots to ids [N] that have none, each once: the slots that were given, and those of them that others had before."""
        if ids.numel() == 0:
            return self._reads[:0], self._reads[:0]
        admit = self._insert_by_fbgemm if self.device.type == "cuda" else self._insert_on_cpu
        return admit(ids, self._buckets_of(ids), self._hour if may_evict else 0)

    def _insert_on_cpu(self, ids: Tensor, buckets: Tensor, hour: int) -> tuple[Tensor, Tensor]:
        first, sizes = (part[buckets].numpy() for part in (self._bucket_starts, self._bucket_slots))
        known = exchanged(ids).numpy()
        slots = Slots(self._slot_ids.numpy(), None if self._kept_until is None else self._kept_until.numpy())
        ways = Ways.of(known, first, sizes, self.max_probe)
        kept_until = self._hour + _hours_kept(self.eviction)
        given, lost = insert(slots, known, ways, hour=hour, kept_until=kept_until, is_lru=isinstance(self.eviction, LruPolicy))
        return torch.from_numpy(given), torch.from_numpy(lost)

    def _insert_by_fbgemm(self, ids: Tensor, buckets: Tensor, hour: int) -> tuple[Tensor, Tensor]:
        """What changed is seen by comparison: the kernel's own lists depend on which of its threads came first."""
        before = self._slot_ids.clone()
        how: dict[str, object] = dict(_NO_EVICTION)
        if self._kept_until is not None:
            until = torch.full_like(ids, self._hour + _hours_kept(self.eviction), dtype=torch.int32)
            how = {"input_metadata": until, "eviction_threshold": max(hour, 1), "eviction_policy": self.eviction_flag}
        self._zero_collision_hash(**self._question(ids, buckets), readonly=False, metadata=self._hash_zch_metadata, **how)
        given = (before != self._slot_ids).nonzero().flatten()
        return given, given[before[given] != -1]

    def _bucket_at(self, slots: Tensor) -> Tensor:
        return torch.searchsorted(self._bucket_starts, slots, right=True) - 1

    def _check_places(self, state: Mapping[str, Tensor], slot_ids: Tensor) -> None:
        """Refuse ids that would not be found where they lie."""
        if not torch.equal(state["rows"], torch.arange(self.first_row, self.end_row, device=self.device)):
            raise CheckpointError(f"the id map of table {self.table!r} is damaged: its rows are not {self.first_row} to {self.end_row - 1}")
        owned = (slot_ids != -1).nonzero().flatten()
        ids = state["raw_ids"][owned]
        mine = self.owns(ids)
        slots, known = self._find(ids[mine], self._buckets_of(ids[mine]), slot_ids)
        lost = len(ids) - int((known & (slots == owned[mine])).sum())
        if lost:
            raise CheckpointError(
                f"table {self.table!r}: {lost} ids do not lie where they are looked for, in {self.max_probe} rows of a bucket, ids routed by "
                f"{self.routing!r}; keep routing, and keep max_probe or raise it"
            )


_NO_EVICTION: Mapping[str, object] = {"input_metadata": None, "eviction_threshold": -1, "eviction_policy": 0}


def _hours_kept(eviction: EvictionPolicy | None) -> int:
    """How long a row stays its owner's after the hour in which it was read."""
    return eviction.hours or 0 if isinstance(eviction, TtlPolicy) else 0


def _policy_name(eviction: EvictionPolicy | None) -> HashZchEvictionPolicyName | None:
    if eviction is None:
        return None
    assert isinstance(eviction, TtlPolicy | LruPolicy), eviction
    is_lru = isinstance(eviction, LruPolicy)
    return HashZchEvictionPolicyName.LRU_EVICTION if is_lru else HashZchEvictionPolicyName.SINGLE_TTL_EVICTION


def _once(ids: Tensor) -> Tensor:
    """The different ids, in the order in which they come."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    first = torch.full_like(unique, len(ids)).scatter_reduce_(0, inverse, torch.arange(len(ids), device=ids.device), "amin")
    return ids[first.sort().values]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without TorchRec's warning that such a map may not be cut anew, which this one may be, and PyTorch's of how TorchRec copies a tensor."""
    logger = logging.getLogger("torchrec.modules.mc_modules")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="To copy construct from a tensor", category=UserWarning)
            yield
    finally:
        logger.setLevel(level)
