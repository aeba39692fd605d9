"""What a config asks of a table that grows, in the terms of NVIDIA's kernel.

What it cannot do is refused by name. What it does otherwise than ours is told in docs/dynamic.md.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torchrec import optim

from emberline.errors import ConfigError
from emberline.train.dynamic.nvidia.package import OURS_INSTEAD, NvidiaPackage
from emberline.train.dynamic.options import DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode

ROUND_ROBIN = "roundrobin"
"""An id's rank is its remainder by the number of ranks. By `hash_roundrobin` their loading loses ids; by `continuous` one rank has all small ones."""
ALIGNMENT = 16
"""Rows of a bucket, and bytes of a row, are a multiple of it."""


@dataclass(frozen=True)
class LearnedTable:
    """A table that NVIDIA's kernel is to hold.

    Args:
        name: for messages.
        dim: width of a vector.
        dtype: of its weights: float32, float16 or bfloat16.
        optimizer: class that is put on its parameter; None where it is only read.
        options: what its config asks.
        world_size: ranks that share it.
    """

    name: str
    dim: int
    dtype: torch.dtype
    optimizer: type[torch.optim.Optimizer] | None
    options: DynamicEmbOptions
    world_size: int

    @property
    def rows(self) -> int:
        """Most rows of one rank: whole buckets."""
        return _up(-(-self.options.max_capacity // self.world_size), self.options.bucket_capacity)

    @property
    def state_width(self) -> int:
        """Numbers that the optimiser keeps for a row in the kernel's memory.

        Raises:
            ConfigError: it has no such optimiser.
        """
        if self.optimizer is None:
            return 0
        if self.optimizer not in _STATE_WIDTHS:
            known = ", ".join(sorted({kind.__name__ for kind in _STATE_WIDTHS}))
            raise ConfigError(f"table {self.name!r}: NVIDIA's kernel knows {known}, not {self.optimizer.__name__}; use one of them, {OURS_INSTEAD}")
        per_weight = _STATE_WIDTHS[self.optimizer]
        return ALIGNMENT // self.dtype.itemsize if per_weight is None else per_weight * self.dim

    @property
    def value_bytes(self) -> int:
        """Bytes of all vectors and moments of one rank."""
        return self.rows * _up((self.dim + self.state_width) * self.dtype.itemsize, ALIGNMENT)


_STATE_WIDTHS: dict[type[torch.optim.Optimizer], int | None] = {
    torch.optim.SGD: 0,
    optim.SGD: 0,
    torch.optim.Adagrad: 1,
    optim.Adagrad: 1,
    optim.RowWiseAdagrad: None,
    torch.optim.Adam: 2,
    optim.Adam: 2,
}
"""Numbers for each weight; None: one for each row, in 16 bytes."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def table_options(package: NvidiaPackage, table: LearnedTable) -> Any:
    """Its `DynamicEmbTableOptions`.

    Raises:
        ConfigError: it has no such table, and what to do.
    """
    _check(table)
    top, options = package.top, table.options
    fast = options.local_hbm_for_values
    routing = {"dist_type": ROUND_ROBIN} if package.options_route else {}
    return top.DynamicEmbTableOptions(
        embedding_dtype=table.dtype,
        dim=table.dim,
        max_capacity=table.rows,
        init_capacity=_first_rows(table),
        local_hbm_for_values=table.value_bytes if fast is None else fast,
        caching=options.caching,
        training=table.optimizer is not None,
        initializer_args=initializer_args(package, options.initializer),
        eval_initializer_args=initializer_args(package, options.eval_initializer),
        score_strategy=top.DynamicEmbScoreStrategy[options.score_strategy.name],
        bucket_capacity=options.bucket_capacity,
        safe_check_mode=top.DynamicEmbCheckMode.ERROR,
        index_type=torch.int64,
        **routing,
        **_admission(package, table),
    )


def initializer_args(package: NvidiaPackage, initializer: Initializer) -> Any:
    """Its `DynamicEmbInitializerArgs`, with every bound: it fills in those of UNIFORM alone."""
    return package.top.DynamicEmbInitializerArgs(
        mode=package.top.DynamicEmbInitializerMode[initializer.mode.name],
        mean=initializer.mean,
        std_dev=initializer.std_dev,
        lower=initializer.lower,
        upper=initializer.upper,
        value=initializer.value,
    )


def _check(table: LearnedTable) -> None:
    options = table.options
    if options.eval_initializer.mode is not InitializerMode.CONSTANT:
        asked = f"table {table.name!r}: eval_initializer_args of NVIDIA's kernel are a constant, not {options.eval_initializer.mode}"
        raise ConfigError(f"{asked}; use CONSTANT, {OURS_INSTEAD}")
    if options.bucket_capacity < ALIGNMENT or options.bucket_capacity % ALIGNMENT:
        wrong = f"table {table.name!r}: bucket_capacity of NVIDIA's kernel is a multiple of {ALIGNMENT}, not {options.bucket_capacity}"
        raise ConfigError(f"{wrong}; change it, {OURS_INSTEAD}")
    if table.dtype not in _DTYPES:
        raise ConfigError(f"table {table.name!r}: NVIDIA's kernel has tables of FP32, FP16 and BF16, not {table.dtype}")


def _first_rows(table: LearnedTable) -> int | None:
    """Rows that a rank begins with; it takes whole buckets, and no more than all."""
    asked = table.options.init_capacity_per_rank
    return None if asked is None else min(table.rows, _up(asked, table.options.bucket_capacity))


def _admission(package: NvidiaPackage, table: LearnedTable) -> dict[str, Any]:
    asked: FrequencyAdmission | None = table.options.admission
    if asked is None:
        return {}
    top = package.top
    counter = top.KVCounter(
        capacity=_up(-(-asked.counter_capacity // table.world_size), ALIGNMENT), bucket_capacity=asked.counter_bucket_capacity, key_type=torch.int64
    )
    unadmitted = initializer_args(package, asked.initializer)
    if package.strategy_counts:
        return {"admit_strategy": top.FrequencyAdmissionStrategy(threshold=asked.threshold, counter=counter, initializer_args=unadmitted)}
    return {
        "admit_strategy": top.FrequencyAdmissionStrategy(threshold=asked.threshold, initializer_args=unadmitted),
        "admission_counter": counter,
    }


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
