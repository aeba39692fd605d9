"""LitServe around TorchRec, with its faster queue. It reads JSON only, so bytes come as base64; they go out as they are."""

import base64
from pathlib import Path
from typing import Any

import litserve  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from fastapi import Response

from benchmarks._serving_model import Request, unpack
from benchmarks._serving_peers import answer_many, open_answerer


class Api(litserve.LitAPI):  # type: ignore[misc]
    """One request is one answer: batches of LitServe's own wait for their time to pass."""

    def __init__(self, kind: str, artifact: Path, threads: int) -> None:
        super().__init__()
        self._opening = (kind, artifact, threads)

    def setup(self, device: str) -> None:
        self._answerer = open_answerer(*self._opening)

    def decode_request(self, request: dict[str, str]) -> Request:
        return unpack(base64.b64decode(request["body"]))

    def predict(self, request: Request) -> npt.NDArray[np.float32]:
        return answer_many(self._answerer, [request])[0]

    def encode_response(self, output: npt.NDArray[np.float32]) -> Any:
        return Response(output.tobytes(), media_type="application/octet-stream")


def run(kind: str, artifact: Path, port: int, workers: int, threads: int) -> None:
    """Serve until SIGTERM, each worker a process with a model of its own."""
    server = litserve.LitServer(Api(kind, artifact, threads), accelerator="cpu", workers_per_device=workers, fast_queue=True, timeout=60)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
