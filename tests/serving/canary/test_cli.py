"""`emberline canary`, against a server."""

import json
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.serving import Client
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy

SETTINGS = ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0, max_batch_rows=8)


def test_a_canary_from_start_to_promotion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_toy(seed=1).write(tmp_path, 1)
    with EmbeddedServer(tmp_path, settings=SETTINGS) as server:
        make_toy(seed=2).write(tmp_path, 2)
        where = ["--url", server.http_url, "--model", "toy"]
        assert main(["canary", "start", *where, "--version", "2", "--share", "1"]) == 0
        assert capsys.readouterr().out.startswith("toy: version 2 beside 1, share 1\nrequests: 0 seen, 0 mirrored, 0 compared")
        with Client(server.http_url, "toy") as client:
            client.predict([{"user": 100}])
        assert main(["canary", "report", *where, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requests"]["mirrored"] == 1
        assert main(["canary", "promote", *where]) == 0
        assert capsys.readouterr().out == "toy: version 2 is served\n"
        assert main(["canary", "drop", *where]) == 1
        assert 'model "toy" has no canary; that of version 2 has ended: it was promoted' in capsys.readouterr().err
        assert main(["canary", "start", *where]) == 1
        assert "--version K" in capsys.readouterr().err
        assert main(["canary", "drop", *where, "--seed", "1"]) == 1
        assert "--seed goes with" in capsys.readouterr().err
