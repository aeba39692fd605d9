"""The process group: one's own without any environment, torchrun's where it is there."""

import os
import socket
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from emberline.errors import ConfigError
from emberline.train.sharding import Ranks, process_group

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
