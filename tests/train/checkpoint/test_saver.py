"""Saving beside the training: what is written is the state at the call, one checkpoint at a time, and errors are told."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError
from emberline.train.checkpoint import run_state, saver, store
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.run_state import RunContent
from emberline.train.checkpoint.saver import CheckpointSaver
from emberline.train.checkpoint.tensors import read_tensors, save_tensors
from emberline.train.sharding import process_group

TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


def content(step: int, tensors: dict[str, torch.Tensor | Chunks]) -> RunContent:
    return RunContent(step, tensors, {"state.json": "{}"}, {"layout": {}})


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writers wait until it is set."""
    event, before = threading.Event(), save_tensors

    def wait(*args: object) -> None:
        assert event.wait(TIMEOUT_S)
        before(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(run_state, "save_tensors", wait)
    yield event
    event.set()


def test_the_state_at_the_call_is_written(tmp_path: Path, held: threading.Event) -> None:
    weight, whole, empty = torch.arange(12.0).view(4, 3), torch.tensor([5]), torch.zeros(0)
    chunks = Chunks((6, 3), torch.float32, [Chunk((2, 0), weight), Chunk((0, 0), weight[:2])])
    after: list[tuple[Path, str]] = []
    with CheckpointSaver(tmp_path, after=lambda path: after.append((path, threading.current_thread().name))) as checkpoints:
        checkpoints.save(content(1, {"w": chunks, "n": whole, "e": empty}))
        weight.zero_()
        whole.fill_(7)
        assert store.list_steps(tmp_path) == []
        held.set()
        checkpoints.wait()
        assert store.list_steps(tmp_path) == [1]
        checkpoints.save(content(2, {"w": chunks, "n": whole, "more": torch.ones(2)}))
    first, second = (read_tensors(tmp_path / f"step-{step}" / "tensors") for step in (1, 2))
    expected = torch.arange(12.0).view(4, 3)
    assert torch.equal(first["w"], torch.cat([expected[:2], expected]))
    assert (first["n"].item(), first["e"].shape, sorted(first)) == (5, (0,), ["e", "n", "w"])
    assert (second["w"].count_nonzero().item(), second["n"].item(), sorted(second)) == (0, 7, ["more", "n", "w"])
    assert after == [(tmp_path / "step-1", "checkpoint_0"), (tmp_path / "step-2", "checkpoint_0")]


def test_memory_is_used_again() -> None:
    copies = saver._Copies()
    tensors: dict[str, torch.Tensor | Chunks] = {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}
    first = copies.of(tensors)
    tensors["b"] = torch.ones(3, dtype=torch.int64)
    second = copies.of(tensors)
    assert isinstance(first["a"], torch.Tensor)
    assert first["a"] is second["a"]
    assert first["b"] is not second["b"]


def test_one_waits_for_the_one_before(tmp_path: Path, held: threading.Event) -> None:
    with CheckpointSaver(tmp_path) as checkpoints:
        checkpoints.save(content(1, {"a": torch.ones(1)}))
        timer = threading.Timer(0.2, held.set)
        timer.start()
        checkpoints.save(content(2, {"a": torch.ones(1)}))
        assert 1 in store.list_steps(tmp_path)
        assert checkpoints.stalled_s > 0.1
        timer.join()
    assert store.list_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("call", [lambda one: one.wait(), lambda one: one.save(content(2, {}))])
def test_what_went_wrong_is_told_by_the_next_call(tmp_path: Path, call: Callable[[CheckpointSaver], None]) -> None:
    run = tmp_path / "run"
    run.write_text("a file")
    with CheckpointSaver(run) as checkpoints:
        checkpoints.save(content(1, {"a": torch.ones(1)}))
        with pytest.raises(CheckpointError, match="step-1 cannot be written"):
            call(checkpoints)
        run.unlink()
        checkpoints.save(content(3, {"a": torch.ones(1)}))
    assert store.list_steps(run) == [3]


def test_what_went_wrong_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="step-1 cannot be written"), CheckpointSaver(tmp_path / "run") as checkpoints:
        checkpoints.save(content(1, {"a": torch.ones(1)}))


def save_and_fail(run: Path) -> None:
    with CheckpointSaver(run) as checkpoints:
        checkpoints.save(content(1, {"a": torch.ones(1)}))
        raise KeyError


def test_an_error_of_the_training_waits_for_the_write_and_goes_first(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        save_and_fail(tmp_path)
    assert store.list_steps(tmp_path) == [1]
    (tmp_path / "run").write_text("a file")
    with pytest.raises(KeyError):
        save_and_fail(tmp_path / "run")


def test_without_a_thread_the_caller_waits(tmp_path: Path) -> None:
    names = []
    checkpoints = CheckpointSaver(tmp_path, asynchronous=False, after=lambda _: names.append(threading.current_thread().name))
    checkpoints.save(content(4, {"a": torch.ones(1)}))
    assert (store.list_steps(tmp_path), names) == ([4], [threading.current_thread().name])
