"""What several ranks do together, each check a function of its ranks and a folder; see `forked_ranks.py`."""

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from emberline.errors import DataError
from emberline.train.batch_norm import SmallBatchNorm, join_batch_norms
from emberline.train.config import load_config
from emberline.train.job import run_training
from emberline.train.job_signals import SharedStop, StopRequest
from emberline.train.sharding.process_group import Ranks, process_group
from emberline.train.sharding.shared_fate import shared_fate

NORM_ROWS = (5, 0, 1)
"""Rows of each rank."""


def small_talk(ranks: Ranks, folder: Path) -> None:
    """Numbers of all, of the first, and to the first."""
    found = {
        "gathered": torch.from_numpy(ranks.gather([ranks.rank, 0.5])),
        "sum": torch.tensor(ranks.sum([ranks.rank + 1.0, -1.0])),
        "of_first": torch.tensor(ranks.of_first([10.0 + ranks.rank])),
    }
    heard = list(ranks.to_first(np.arange(ranks.rank * 2, dtype=np.float64)))  # rank 0 has none
    found |= {f"from_{place + 1}": torch.from_numpy(one) for place, one in enumerate(heard)}
    request = StopRequest()
    if ranks.rank == 1:
        request.signal = signal.SIGTERM
    stop = SharedStop(request, ranks)
    before = bool(stop)
    sums = stop.look([2.0])
    found["stop"] = torch.tensor([float(before), float(bool(stop)), float(stop.signal or 0), *sums])
    save_file(found, folder / f"talk-{ranks.rank}.safetensors")


def norms(ranks: Ranks, folder: Path) -> None:
    """A step through batch normalisation, of rows that some ranks have none of."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), SmallBatchNorm(4), nn.ReLU(), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, affine=False))
    group = dist.group.WORLD
    assert group is not None
    join_batch_norms(model, group)
    rows = norm_rows().split(NORM_ROWS)[ranks.rank]  # type: ignore[no-untyped-call]
    out = model.train()(rows)
    (out * norm_factors().split(NORM_ROWS)[ranks.rank]).sum().backward()  # type: ignore[no-untyped-call]
    found = {"out": out.detach()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        found[f"gradient/{name}"] = parameter.grad
    found |= {f"buffer/{name}": buffer.float() for name, buffer in model.named_buffers()}
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / f"norms-{ranks.rank}.safetensors")


def norm_rows() -> torch.Tensor:
    """The rows of all ranks."""
    return torch.randn(sum(NORM_ROWS), 3, generator=torch.Generator().manual_seed(1))


def norm_factors() -> torch.Tensor:
    """What the answers are multiplied by for a loss."""
    return torch.randn(sum(NORM_ROWS), 4, generator=torch.Generator().manual_seed(2))


def stuck(ranks: Ranks, folder: Path) -> None:
    """Rank 1 fails while rank 0 is busy and hears nothing of it."""
    if ranks.rank == 1:
        raise DataError("a row is bad")
    time.sleep(120)


class _AskedAt(StopRequest):
    """As if a signal came before a look at it.

    Args:
        looks: which look, from 1.
    """

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def __bool__(self) -> bool:
        self.looks -= 1
        if self.looks == 0:
            self.signal = signal.SIGTERM
        return super().__bool__()


STOPPED_AT = {"sequence": (4, 9), "several": (6, 8), "zch": (4, 8)}
"""Steps done in each config's run when the pipeline is left within a pass, with batches read ahead, and in the evaluation at the pass's end."""


def loops(ranks: Ranks, folder: Path) -> None:
    """Each NAME.config, by NAME.json, in the plain loop, and in the pipelined one, stopped twice by rank 1, and to its end."""
    for name, steps in STOPPED_AT.items():
        config, plan, home = load_config(folder / f"{name}.config"), folder / f"{name}.json", folder / name
        run_training(config, home / "plain", plan=plan, pipelined=False)
        for looks, step in zip((6, 8), steps, strict=True):
            asked = _AskedAt(looks) if ranks.rank == 1 else None
            stopped = run_training(config, home / "parts", plan=plan, pipelined=True, stop=asked, resume=True)
            assert (stopped.signal, stopped.step) == (signal.SIGTERM, step)
        run_training(config, home / "parts", plan=plan, pipelined=True, resume=True)


CHECKS: Mapping[str, Callable[[Ranks, Path], None]] = {"small_talk": small_talk, "norms": norms, "stuck": stuck, "loops": loops}


def run_check(folder: Path, name: str) -> None:
    """One check, on this rank."""
    with process_group() as ranks, shared_fate(ranks, grace_s=1.0):
        CHECKS[name](ranks, folder)
