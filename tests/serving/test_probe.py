"""A probe of a model, against the embedded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.errors import NotFoundError, RequestError, UnavailableError
from emberline.serving.probe import empty_row, probe
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_steps_toy, make_toy


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    models = tmp_path_factory.mktemp("models")
    for model in (make_toy(), make_steps_toy()):
        model.write(models)
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server.http_url


@pytest.mark.parametrize("model", ["toy", "steps"])
def test_a_model_that_answers(url: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 < probe(url, model, timeout_s=20) < 20
    assert main(["probe", "--url", url, "--model", model, "--timeout", "20"]) == 0
    assert capsys.readouterr().out.startswith(f"{model} answered in ")


def test_a_model_that_does_not(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        probe(url, "nope", timeout_s=20)
    with pytest.raises(UnavailableError, match="cannot reach http://127"):
        probe("http://127.0.0.1:1", "toy")
    with pytest.raises(RequestError, match="must be http://host:port"):
        probe("grpc://127.0.0.1:1", "toy")
    assert main(["probe", "--url", "http://127.0.0.1:1", "--model", "toy"]) == 1
    assert "cannot reach" in capsys.readouterr().err


def test_the_row_has_every_input_that_must_be_there() -> None:
    found = empty_row(make_steps_toy().schema)
    assert {one["name"]: one["data"] for one in found["inputs"]} == {
        "ids": [],
        "lengths": [0, 0, 0],
        "dense": [0],
        "steps": [0, 0, 0],
        "step_lengths": [],
        "dense_steps": [],
    }
    assert found["outputs"] == [{"name": "score"}]
