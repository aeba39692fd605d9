"""When a Triton is asked to look into its folder again: one that is played, over folders that are real."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.errors import LaunchError
from emberline.serving.triton.updates import TritonUpdates
from tests.serving.conftest import make_toy, random_request
from tests.serving.ways import Way


class PlayedServer:
    """Takes what it is asked to, or refuses it."""

    def __init__(self, models: dict[str, int]) -> None:
        self.models, self.asked, self.unloads = models, list[set[str]](), list[bool]()
        self.refuse = ""

    def refresh(self, *, again: Collection[str], unload_gone: bool = True) -> dict[str, int]:
        self.asked.append(set(again))
        self.unloads.append(unload_gone)
        if self.refuse:
            raise LaunchError(self.refuse)
        self.models = {"toy": 9}
        return self.models


def publish(models: Path, version: int, seed: int = 0, name: str = "toy") -> Path:
    root = make_toy(seed=seed, name=name).write(models.parent / "drafts", version)
    (models / name).mkdir(parents=True, exist_ok=True)
    return root.rename(models / name / str(version))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    publish(tmp_path / "models", 1)
    return tmp_path / "models"


def test_it_is_asked_where_something_is_new_and_only_then(models: Path) -> None:
    server, told = PlayedServer({"toy": 1}), list[str]()
    updates = TritonUpdates(models, server, told.append)  # type: ignore[arg-type]
    updates.look()
    assert server.asked == []
    (models / "toy" / "2").mkdir()  # it is being copied
    updates.look()
    assert server.asked == []
    (models / "toy" / "2").rmdir()
    publish(models, 2)
    publish(models, 1, name="other")
    for _ in range(3):
        updates.look()
    assert (server.asked, told) == ([{"toy", "other"}], ["serving toy version 9"])
    (models / "toy" / "served.json").write_text('{"version": 1}')
    updates.look()
    shutil.rmtree(models / "other")
    updates.look()
    assert server.asked[1:] == [{"toy"}], "a model whose folder is gone is served on"
    shutil.rmtree(models / "toy" / "1")
    publish(models, 1, seed=5)
    updates.look()
    assert server.asked[2:] == [{"toy"}], "another artifact of the same number"
    assert not any(server.unloads)


def test_a_look_that_is_asked_for_loads_another_artifact_of_the_same_number_and_unloads_what_is_gone(models: Path) -> None:
    server = PlayedServer({"toy": 1})
    updates = TritonUpdates(models, server, pytest.fail)  # type: ignore[arg-type]
    assert updates.refresh() == {"toy": 9}
    shutil.rmtree(models / "toy" / "1")
    publish(models, 1, seed=5)
    server.refuse = "it does not load"
    with pytest.raises(LaunchError, match="it does not load"):
        updates.refresh()
    server.refuse = ""
    for _ in range(2):
        updates.refresh()
    updates.look()
    assert (server.asked, server.unloads) == ([set(), {"toy"}, {"toy"}, set()], [True] * 4)


def test_what_is_refused_is_told_once_and_tried_ever_more_seldom_until_it_changes(models: Path) -> None:
    server, told = PlayedServer({"toy": 1}), list[str]()
    updates = TritonUpdates(models, server, told.append)  # type: ignore[arg-type]
    root = publish(models, 2)
    server.refuse = "it does not load"
    tried = []
    for turn in range(1, 20):
        before = len(server.asked)
        updates.look()
        tried += [turn] if len(server.asked) > before else []
    assert (tried, told) == ([1, 2, 4, 8, 16], ["not all that is new is served: it does not load"])
    table = root / "tables" / "item_emb.safetensors"
    os.utime(table, ns=(1, 1))
    updates.look()
    assert len(server.asked) == 6
    server.refuse = ""
    os.utime(table, ns=(2, 2))
    updates.look()
    assert told[1:] == ["serving toy version 9"]
    models.rename(models.parent / "gone")
    updates.look()
    updates.look()
    assert [line.partition(":")[0] for line in told[2:]] == ["the models folder cannot be read; what is served is served on"]


def test_a_version_that_came_while_the_server_started_is_new(models: Path) -> None:
    publish(models, 2)
    server = PlayedServer({"toy": 1})
    updates = TritonUpdates(models, server, lambda line: None)  # type: ignore[arg-type]
    for _ in range(2):
        updates.look()
    assert server.asked == [{"toy"}]


SERVE = """
import sys
from pathlib import Path
from emberline.serving.triton.launcher import serve_triton
from emberline.serving.triton.settings import TritonSettings
settings = TritonSettings(num_threads=1, delta_poll_s=0)
sys.exit(serve_triton(Path(sys.argv[1]), http_port=0, grpc_port=0, metrics_port=0, settings=settings, version_poll_s=0.2))
"""


@pytest.mark.triton
def test_triton_goes_over_to_what_comes_and_not_to_what_is_damaged(models: Path) -> None:
    request = random_request(make_toy().schema, num_rows=3, seed=3)
    with subprocess.Popen([sys.executable, "-c", SERVE, str(models)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")

        def line(wanted: Callable[[str], bool]) -> str:
            return next(text for text in lines if wanted(text))

        try:
            place = line(lambda text: text.startswith("serving toy version 1 on http ")).split(" on http ")[1].partition(",")[0]

            def assert_answers(seed: int) -> None:
                found: Any = Way("http", place).infer(request, ["probs"]).as_numpy("probs")[0].copy()
                torch.testing.assert_close(torch.from_numpy(found), make_toy(seed=seed).answers(request)["output.probs"], rtol=1e-6, atol=1e-6)

            assert_answers(0)
            publish(models, 2, seed=2)
            line(lambda text: text == "serving toy version 2\n")
            assert_answers(2)
            root = make_toy(seed=3).write(models.parent / "drafts", 3)
            table = root / "tables" / "item_emb.safetensors"
            table.write_bytes(table.read_bytes()[:-1])
            root.rename(models / "toy" / "3")
            line(lambda text: text.startswith("not all that is new is served: ") and "item_emb.safetensors has 447 bytes, not 448" in text)
            assert_answers(2)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        assert process.returncode == 0
