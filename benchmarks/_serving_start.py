"""Starts one server of `serving.py`, in a process of its own; it serves until SIGTERM.

python -m benchmarks._serving_start SERVER KIND MODELS PORT GRPC_PORT WORKERS THREADS FOLDER
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._serving_model import ANSWER, NAME, VERSION, WIDTH

ROOT = Path(__file__).resolve().parents[1]
SHM_PREFIX = "bench_"
"""Of the shared memory of peers' Tritons; their process id follows."""
MODEL_SOURCE = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks._serving_peers import TritonPeer as TritonPythonModel
"""


def main() -> None:
    """Start what the arguments name, in an empty folder."""
    server, kind, models, port, grpc_port, workers, threads, folder = sys.argv[1:]
    os.chdir(folder)
    ours = {"embedded": _embedded, "triton": _emberline_triton}
    if server in ours:
        ours[server](kind, Path(models), int(port), int(grpc_port), int(workers), int(threads))
        return
    peers = {"triton-peer": _triton_peer, "fastapi": _fastapi, "litserve": _litserve}
    peers[server](kind, Path(models), int(port), int(workers), int(threads))


def _embedded(kind: str, models: Path, port: int, grpc_port: int, workers: int, threads: int) -> None:
    """`emberline serve`; the do-nothing model is the same server, whose engine is replaced."""
    from emberline.cli import main as emberline

    if kind == "nothing":
        _replace_engine()
    command = ["serve", str(models), "--http-port", str(port), "--grpc-port", str(grpc_port), "--threads", str(threads), "--delta-poll", "0"]
    sys.exit(emberline([*command, *(["--workers", str(workers)] if workers > 1 else [])]))


def _replace_engine() -> None:
    """Every engine of this process answers zeros, whatever it is asked."""
    import torch

    from emberline.serving.engine import Engine

    zeros = torch.zeros(1 << 16, WIDTH)

    def predict_many(self: Engine, requests: Sequence[Any], answers: Any = None) -> list[dict[str, torch.Tensor]]:
        return [{ANSWER: zeros[: request.lengths.size // len(self.schema.sparse_features)]} for request in requests]

    Engine.predict_many = predict_many  # type: ignore[method-assign, assignment]


def _emberline_triton(kind: str, models: Path, port: int, grpc_port: int, workers: int, threads: int) -> None:
    """What `emberline serve --backend triton` starts, with as many instances of the model as there are workers."""
    from emberline.serving.triton.launcher import TritonServer
    from emberline.serving.triton.settings import TritonSettings

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = TritonSettings(instances=workers, num_threads=threads, delta_poll_s=0)
    with TritonServer(models, http_port=port, grpc_port=grpc_port, settings=settings, show_log=True):
        while True:
            signal.pause()


def _triton_peer(kind: str, models: Path, port: int, workers: int, threads: int) -> None:
    """Triton with a Python backend of TorchRec's modules, or of nothing, in place of this process."""
    from emberline.serving.triton.install import find_triton

    folder = Path.cwd()
    (folder / "repository" / NAME / "1").mkdir(parents=True)
    (folder / "repository" / NAME / "1" / "model.py").write_text(MODEL_SOURCE)
    (folder / "repository" / NAME / "config.pbtxt").write_text(_config(kind, models / NAME / str(VERSION), workers, threads))
    install = find_triton()
    command = [str(install.program), f"--model-repository={folder / 'repository'}", "--disable-auto-complete-config", "--exit-timeout-secs=5"]
    if backends := install.assemble_backends(folder / "backends"):
        command.append(f"--backend-directory={backends}")
    command += ["--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    command += [
        f"--backend-config=python,shm-region-prefix-name={SHM_PREFIX}{os.getpid()}_",
        "--backend-config=python,shm-default-byte-size=67108864",
    ]
    os.execve(command[0], command, dict(install.environment(os.environ)))


def _config(kind: str, artifact: Path, workers: int, threads: int) -> str:
    parameters = {"kind": kind, "artifact": str(artifact), "threads": str(threads)}
    lines = [f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}' for name, value in parameters.items()]
    types = {"ids": "TYPE_INT64", "lengths": "TYPE_INT32"}
    inputs = [f'{{ name: "{name}" data_type: {type_} dims: [ -1 ] allow_ragged_batch: true }}' for name, type_ in types.items()]
    return "\n".join(
        [
            f'name: "{NAME}" backend: "python" max_batch_size: 64 dynamic_batching {{ }}',
            f"input [ {', '.join(inputs)} ]",
            f'output [ {{ name: "{ANSWER}" data_type: TYPE_FP32 dims: [ -1, {WIDTH} ] }} ]',
            f"instance_group [ {{ count: {workers} kind: KIND_CPU }} ]",
            *lines,
        ]
    )


def _end_all_on_sigterm() -> None:
    """End workers with the first process: these servers leave theirs behind where only that one is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))


def _fastapi(kind: str, models: Path, port: int, workers: int, threads: int) -> None:
    from benchmarks import _serving_fastapi

    _end_all_on_sigterm()
    _serving_fastapi.run(kind, models / NAME / str(VERSION), port, workers, threads)


def _litserve(kind: str, models: Path, port: int, workers: int, threads: int) -> None:
    from benchmarks import _serving_litserve

    _end_all_on_sigterm()
    _serving_litserve.run(kind, models / NAME / str(VERSION), port, workers, threads)


if __name__ == "__main__":
    main()
