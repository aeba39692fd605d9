"""Serving in a process where only torch, numpy and safetensors can be imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import emberline.serving
from tests.serving.conftest import ToyModel, random_request

SCRIPT = """
import sys

BLOCKED = {blocked!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED or name.startswith(("emberline.train", "emberline.export")):
            raise ModuleNotFoundError(f"blocked: {{name}}")
        return None


sys.meta_path.insert(0, Blocker())
import json
import numpy as np
from emberline.serving import Engine, PackedRequest

engine = Engine.open(sys.argv[1], num_threads=1)
answers = []
for given in json.loads(sys.stdin.read()):
    parts = {{name: np.array(values, dtype) for name, (dtype, values) in given.items()}}
    answers.append({{name: value.tolist() for name, value in engine.predict(PackedRequest(**parts)).items()}})
assert "emberline.serving.client" not in sys.modules
print(json.dumps(answers))
"""
BLOCKED = ["torchrec", "fbgemm_gpu", "pyarrow", "pandas", "fastapi", "starlette", "uvicorn", "grpc", "google", "tritonclient", "pytriton", "tqdm"]


def test_an_artifact_answers_in_a_bare_process(toy: ToyModel, toy_artifact: Path) -> None:
    """Weighted and not, full and empty, no row and many: each equals the oracle."""
    requests = [
        random_request(toy.schema, num_rows=rows, seed=rows, weights=weights) for rows, weights in ((0, True), (1, True), (5, True), (5, False))
    ]
    requests.append({"ids": np.empty(0, np.int64), "lengths": np.zeros(8, np.int32), "dense": np.ones(6, np.float32)})
    given = json.dumps([{name: (str(values.dtype), values.tolist()) for name, values in request.items()} for request in requests])
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", SCRIPT.format(blocked=BLOCKED), str(toy_artifact)]
    run = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    for request, found in zip(requests, json.loads(run.stdout), strict=True):
        for name, value in toy.answers(request).items():
            if name.startswith("output."):
                answer = torch.tensor(found[name.removeprefix("output.")]).reshape(value.shape)
                torch.testing.assert_close(answer, value, rtol=1e-6, atol=1e-6)


def test_the_client_is_there_when_asked_for() -> None:
    assert emberline.serving.Client.__module__.startswith("emberline.serving.client")
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        emberline.serving.Server  # noqa: B018
