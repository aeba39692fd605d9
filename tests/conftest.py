"""What all tests share: thread limits, markers that skip themselves visibly, and where things lie."""

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent
GOLDEN = REPOSITORY.parent / "shared" / "golden" / "open"
SAID = pytest.StashKey[list[str]]()

# More threads than cores that are free make small kernels many times slower.
torch.set_num_threads(min(2, torch.get_num_threads()))
# A busy machine is no fault of the code under test.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Several workers share the cores."""
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return REPOSITORY


@pytest.fixture(scope="session")
def golden_root() -> Path:
    """The folder of numbers recorded from the reference; a test that needs them is skipped where it is absent."""
    if not GOLDEN.is_dir():
        pytest.skip(f"the recorded numbers are not here: {GOLDEN}")
    return GOLDEN


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small kernels, and a machine that others use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def _put_back() -> Iterator[None]:
    """What the body sets for the whole process is set back, or what a test sees would depend on those before it in the same process."""
    threads, number_type, gradients, folder = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), Path.cwd()
    logger = logging.getLogger("emberline")
    level = logger.level
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(number_type)
    torch.set_grad_enabled(gradients)
    os.chdir(folder)
    logger.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def _module_puts_back() -> Iterator[None]:
    with _put_back():
        yield


@pytest.fixture(autouse=True)
def _test_puts_back() -> Iterator[None]:
    with _put_back():
        yield


@pytest.fixture(scope="session")
def said(pytestconfig: pytest.Config) -> list[str]:
    """Lines shown at the end of the run: a check over files says how many it saw."""
    return pytestconfig.stash.setdefault(SAID, [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands on what its tests have said."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["said"] = session.config.stash.get(SAID, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended."""
    node.config.stash.setdefault(SAID, []).extend(getattr(node, "workeroutput", {}).get("said", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(SAID, []):
        terminalreporter.write_line(line)


def _reasons_to_skip() -> dict[str, str]:
    reasons = {}
    if not torch.cuda.is_available():
        reasons["gpu"] = "no CUDA device here"
    if shutil.which("tritonserver") is None and importlib.util.find_spec("pytriton") is None:
        reasons["triton"] = "no Triton here: neither tritonserver on PATH nor the wheel nvidia-pytriton"
    return reasons


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: with one of them at the end, a single worker would still run."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    reasons = _reasons_to_skip()
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
