"""Starting Triton: what is found, what is refused before it starts, and (with the real server) that nothing is left behind."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from emberline.errors import ArtifactError, LaunchError, MissingDependencyError
from emberline.serving.triton.install import TritonInstall, find_triton
from emberline.serving.triton.launcher import SHM, TritonServer, check_shared_memory
from tests.serving.conftest import ToyModel


def leftovers(scratch: Path, pid: int) -> list[str]:
    """Temporary folders and shared memory of the servers of one process."""
    return [str(path) for path in [*scratch.iterdir(), *SHM.glob(f"emberline_{pid}_*")]]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders go, in this process and in those that it starts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_the_server_on_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = find_triton()
    assert found == TritonInstall(program=program)
    assert found.assemble_backends(tmp_path / "backends") is None
    assert "LD_LIBRARY_PATH" not in found.environment({})
    assert found.environment({"PATH": "/bin", "A": "b"}) == {"PATH": f"{Path(sys.executable).parent}:/bin", "A": "b"}


def fake_wheel(tmp_path: Path, *versions: str) -> Path:
    root = tmp_path / "site" / "pytriton"
    for folder in ("tritonserver/bin", "tritonserver/backends/python", *(f"tritonserver/python_backend_stubs/{version}" for version in versions)):
        (root / folder).mkdir(parents=True)
    for version in versions:
        (root / "tritonserver/python_backend_stubs" / version / "triton_python_backend_stub").write_text(version)
    (root / "tritonserver/backends/python/libtriton_python.so").write_text("library")
    (root / "__init__.py").write_text("raise AssertionError('found, never imported')")
    return root


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_without_triton_it_says_how_to_get_it(no_triton: None) -> None:
    with pytest.raises(MissingDependencyError, match="pip install --no-deps nvidia-pytriton"):
        find_triton()


def test_the_wheel_is_found_without_importing_it(no_triton: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = fake_wheel(tmp_path, version, "3.99")
    monkeypatch.delitem(sys.modules, "pytriton", raising=False)
    monkeypatch.syspath_prepend(str(root.parent))
    found = find_triton()
    assert found == TritonInstall(program=root / "tritonserver/bin/tritonserver", wheel=root / "tritonserver")
    backends = found.assemble_backends(tmp_path / "backends")
    assert backends == tmp_path / "backends"
    assert (backends / "python" / "triton_python_backend_stub").read_text() == version
    assert (backends / "python" / "libtriton_python.so").read_text() == "library"
    assert found.environment({"LD_LIBRARY_PATH": "/mine"})["LD_LIBRARY_PATH"].split(":")[::2] == [str(root.parent / "nvidia_pytriton.libs"), "/mine"]


def test_a_wheel_without_this_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delitem(sys.modules, "pytriton", raising=False)
    monkeypatch.syspath_prepend(str(fake_wheel(tmp_path, "3.98", "3.99").parent))
    with pytest.raises(MissingDependencyError, match=r"has no Python backend for Python 3\.\d+; it has 3\.98, 3\.99"):
        find_triton()


def test_too_little_shared_memory_is_told_with_what_to_do() -> None:
    check_shared_memory(Path("/"), 1)
    with pytest.raises(LaunchError, match=r"^/ has \d+ MiB free, but the model instances need 1048576 MiB .*--shm-size=2097152m"):
        check_shared_memory(Path("/"), 1 << 40)


def test_ports_are_free_and_differ(tmp_path: Path) -> None:
    server = TritonServer(tmp_path, grpc_port=12345)
    assert server.grpc_port == 12345
    assert len({server.http_port, server.grpc_port, server.metrics_port}) == 3
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", server.http_port))


@pytest.mark.triton
def test_nothing_starts_without_models(scratch: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(ArtifactError, match="no models here"), TritonServer(tmp_path / "models"):
        pass
    assert leftovers(scratch, os.getpid()) == []


@pytest.mark.triton
def test_a_model_that_does_not_load_is_told_with_its_reason(toy: ToyModel, scratch: Path, tmp_path: Path) -> None:
    root = toy.write(tmp_path / "models")
    (root / "tables" / "item_emb.safetensors").unlink()
    with pytest.raises(LaunchError, match=r"(?s)Triton ended with exit code 1 before it was ready.*tables/item_emb\.safetensors is missing"):
        TritonServer(tmp_path / "models").__enter__()
    assert leftovers(scratch, os.getpid()) == []


SERVE = """
import sys
from pathlib import Path
from emberline.serving.triton.launcher import serve_triton
sys.exit(serve_triton(Path(sys.argv[1]), http_port=0, grpc_port=0, metrics_port=0))
"""


@pytest.mark.triton
def test_serving_ends_cleanly_on_sigterm(toy: ToyModel, scratch: Path, tmp_path: Path) -> None:
    toy.write(tmp_path / "models")
    command = [sys.executable, "-c", SERVE, str(tmp_path / "models")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("serving "):
            line = process.stdout.readline()
        assert line.startswith("serving toy version 1 on http 127.0.0.1:")
        assert leftovers(scratch, process.pid)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "serving toy version 1\n"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 0
    assert leftovers(scratch, process.pid) == []


@pytest.mark.triton
def test_a_sigterm_while_models_load_ends_it_too(toy: ToyModel, scratch: Path, tmp_path: Path) -> None:
    toy.write(tmp_path / "models")
    command = [sys.executable, "-c", SERVE, str(tmp_path / "models")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not leftovers(scratch, process.pid) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert leftovers(scratch, process.pid) == []
