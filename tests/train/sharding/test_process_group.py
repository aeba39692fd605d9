"""The process group: one's own without any environment, torchrun's where it is there."""

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from emberline.errors import ConfigError
from emberline.train.sharding import Ranks, process_group
from emberline.train.sharding.process_group import ALONE

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_group() -> Iterator[None]:
    if dist.is_initialized():
        pytest.skip("another test holds a process group")
    yield
    assert not dist.is_initialized()


def test_a_process_alone_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with process_group() as ranks:
        assert ranks == Ranks(0, 1)
        assert dist.get_backend() == "gloo"
        with process_group() as inner:
            assert inner == Ranks(0, 1)
        assert dist.is_initialized()
    assert dict(os.environ) == before


def test_torchrun_s_variables_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(port)), strict=True):
        monkeypatch.setenv(name, value)
    with process_group() as ranks, socket.socket() as client:
        assert ranks == Ranks(0, 1)
        client.connect(("127.0.0.1", port))  # the store that torchrun named listens


def test_ranks_exchange_numbers_and_agree_to_stop(checks: dict[str, Any]) -> None:
    folder, ranks = checks["small_talk"]
    assert [status for status, _ in ranks] == [0, 0, 0], ranks
    for rank in range(3):
        found = {name: value.tolist() for name, value in load_file(folder / f"talk-{rank}.safetensors").items()}
        assert found.pop("gathered") == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
        assert found.pop("sum") == [6.0, -3.0]
        assert found.pop("of_first") == [10.0]
        assert found.pop("stop") == [0.0, 1.0, float(signal.SIGTERM), 6.0]
        assert found == ({"from_1": [0.0, 1.0], "from_2": [0.0, 1.0, 2.0, 3.0]} if rank == 0 else {})


def test_one_rank_talks_to_itself() -> None:
    assert ALONE.gather([1.0, 2.0]).tolist() == [[1.0, 2.0]]
    assert (ALONE.sum([3.0]), ALONE.of_first([4.0]), list(ALONE.to_first(np.ones(2)))) == ([3.0], [4.0], [])


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip((*VARIABLES, "LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("0", "3", "127.0.0.1", "1", "0", "3"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="3 ranks, but this machine has 2 CUDA devices; use --nproc-per-node 2"), process_group("cuda"):
        pass
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="PyTorch finds no CUDA device on this machine"), process_group("cuda"):
        pass
