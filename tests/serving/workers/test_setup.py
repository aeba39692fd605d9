"""What a worker is told."""

import json
from pathlib import Path

import pytest

from emberline.errors import ConfigError
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.workers.setup import Setup


def test_a_setup_survives_being_written() -> None:
    settings = ServerSettings(host="::1", http_port=7, workers=3, tables="mapped", cache=Path("/a/b"), model_control=False, timeout_s=0.5)
    for setup in (Setup("/models", settings, {"m": 3}), Setup("s3://x", ServerSettings(), None)):
        assert Setup.from_dict(json.loads(json.dumps(setup.to_dict()))) == setup


def test_a_server_in_a_thread_is_one_process() -> None:
    with pytest.raises(ConfigError, match="workers is 2"):
        EmbeddedServer("models", settings=ServerSettings(workers=2))
