"""FastAPI around TorchRec: one route, bytes in and bytes out, on uvicorn with uvloop and httptools."""

import multiprocessing
import socket
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response

from benchmarks._serving_model import unpack
from benchmarks._serving_peers import answer_many, open_answerer


def run(kind: str, artifact: Path, port: int, workers: int, threads: int) -> None:
    """Serve until SIGTERM, each worker a process with a model of its own, as uvicorn's workers are."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    spawn, arguments = multiprocessing.get_context("spawn"), (kind, artifact, listener, threads)
    for _ in range(workers - 1):
        spawn.Process(target=work, args=arguments, daemon=True).start()
    work(kind, artifact, listener, threads)


def work(kind: str, artifact: Path, listener: socket.socket, threads: int) -> None:
    """One worker."""
    config = uvicorn.Config(make_app(kind, artifact, threads), loop="uvloop", http="httptools", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


def make_app(kind: str, artifact: Path, threads: int) -> FastAPI:
    """The answer is made on the event loop: handing each request to a thread took longer."""
    answerer, app = open_answerer(kind, artifact, threads), FastAPI()

    @app.post("/lookup")
    async def lookup(request: Request) -> Response:
        (answer,) = answer_many(answerer, [unpack(await request.body())])
        return Response(answer.tobytes(), media_type="application/octet-stream")

    return app
