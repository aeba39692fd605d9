"""What a config asks of a table that grows, and what the planner and the job decide for it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

CUSTOMIZED_COMPUTE_KERNEL = "DynamicEmb"
"""What a plan says beside the compute kernel `customized_kernel` of a table that grows."""
DEFAULT_BUCKET_CAPACITY = 128
DEFAULT_COUNTER_BUCKET_CAPACITY = 1024


class ScoreStrategy(StrEnum):
    """Which ids give way when a table is full: those of the lowest score."""

    TIMESTAMP = "TIMESTAMP"
    """The time of the last training step that read the id."""
    STEP = "STEP"
    """The number of that step."""
    LFU = "LFU"
    """How often training read the id."""
    CUSTOMIZED = "CUSTOMIZED"
    """What the caller sets."""
    NO_EVICTION = "NO_EVICTION"
    """None gives way: a full table refuses new ids, with an error."""


class InitializerMode(StrEnum):
    """How vectors begin."""

    NORMAL = "NORMAL"
    TRUNCATED_NORMAL = "TRUNCATED_NORMAL"
    UNIFORM = "UNIFORM"
    CONSTANT = "CONSTANT"


@dataclass(frozen=True, kw_only=True)
class Initializer:
    """How vectors begin; complete: every number that the mode needs is set.

    Args:
        mode: which distribution.
        mean: of NORMAL and TRUNCATED_NORMAL.
        std_dev: of the same, above 0.
        lower: of UNIFORM and TRUNCATED_NORMAL.
        upper: of the same, above `lower`.
        value: of CONSTANT.
    """

    mode: InitializerMode
    mean: float = 0.0
    std_dev: float = 1.0
    lower: float = -1.0
    upper: float = 1.0
    value: float = 0.0


ZEROS = Initializer(mode=InitializerMode.CONSTANT)


@dataclass(frozen=True, kw_only=True)
class FrequencyAdmission:
    """An id gets a row when training has read it `threshold` times.

    Args:
        threshold: at least 1.
        initializer: draws the one vector that ids read which were not admitted yet.
        counter_capacity: most ids that are counted, all ranks together; beyond it, those counted least are forgotten.
        counter_bucket_capacity: of NVIDIA's counter; ours has no buckets.
    """

    threshold: int
    initializer: Initializer = ZEROS
    counter_capacity: int
    counter_bucket_capacity: int = DEFAULT_COUNTER_BUCKET_CAPACITY


@dataclass(frozen=True, kw_only=True)
class DynamicEmbOptions:
    """A table that grows.

    Args:
        max_capacity: most rows, all ranks together; at least 1.
        init_capacity_per_rank: rows that each rank has room for at first; capacity doubles from there. None: the kernel's choice.
        initializer: draws an id's first vector; it depends on the run's seed, the table and the id alone, whatever rank draws it.
        eval_initializer: draws the one vector that unknown ids read in evaluation and serving.
        score_strategy: which ids give way.
        admission: when an id gets a row; None: at once.
        cache_load_factor: share of the rows' bytes that the fast tier holds, above 0 to 1; None: the planner chooses.
        bucket_capacity: of NVIDIA's hash table, and of the planner's estimate of it; our index has no buckets.
        init_table: a file of first vectors, as `emberline train --init-table` takes it, for a run that begins; empty for none.
        caching: the planner's choice: whether the second tier holds all rows and the first copies of some (CACHING), or each row is in one (HYBRID).
        local_hbm_for_values: the planner's choice: bytes of the fast tier on each rank for vectors and moments; None: all are there.
    """

    max_capacity: int
    init_capacity_per_rank: int | None = None
    initializer: Initializer
    eval_initializer: Initializer = ZEROS
    score_strategy: ScoreStrategy = ScoreStrategy.STEP
    admission: FrequencyAdmission | None = None
    cache_load_factor: float | None = None
    bucket_capacity: int = DEFAULT_BUCKET_CAPACITY
    init_table: str = ""
    caching: bool = False
    local_hbm_for_values: int | None = None


class KernelKind(StrEnum):
    """Which kernel holds tables that grow."""

    AUTO = "auto"
    """NVIDIA's on CUDA where its package is there, else ours."""
    EMBERLINE = "emberline"
    NVIDIA = "nvidia"


@dataclass(frozen=True)
class DynamicRuntime:
    """What the job knows and no config says.

    Args:
        seed: of the run; first vectors depend on it.
        spill_folder: where second tiers on a CPU keep their files, which have no name and go with the process; None: the system's temporary folder.
        kernel: who holds the tables.
    """

    seed: int = 0
    spill_folder: Path | None = field(default=None)
    kernel: KernelKind = KernelKind.AUTO
