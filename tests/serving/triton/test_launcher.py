"""Starting Triton: what is found, what is refused before it starts, and (with the real server) that nothing is left behind."""

import errno
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from emberline.errors import ArtifactError, LaunchError, MissingDependencyError
from emberline.serving.triton import launcher
from emberline.serving.triton.install import TritonInstall, find_triton
from emberline.serving.triton.launcher import TritonServer, check_shared_memory
from emberline.serving.triton.ports import Ports
from emberline.serving.triton.scratch import SHM, Owner, remove_leftovers
from tests.serving.conftest import ToyModel


def leftovers(scratch: Path, pid: int) -> list[str]:
    """Temporary folders and shared memory of the servers of one process."""
    return sorted(str(path) for path in [*scratch.iterdir(), *SHM.glob(f"emberline_{pid}_*")])


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


@pytest.fixture
def ports() -> Iterator[Ports]:
    found = Ports("127.0.0.1", (0, 0, 0))
    yield found
    found.let_go()


def bound(port: int, *options: int) -> bool:
    """Whether another process could bind a port with these options."""
    with socket.socket() as other, suppress(OSError):
        for option in options:
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind(("127.0.0.1", port))
        return True
    return False


def test_ports_are_kept_for_who_shares_them(ports: Ports) -> None:
    assert ports.take() == ["--reuse-http-port=true", "--reuse-grpc-port=true"]
    assert len(set(ports.chosen)) == 3
    for options, can in (((), False), ((socket.SO_REUSEADDR,), False), ((socket.SO_REUSEADDR, socket.SO_REUSEPORT), True)):
        assert [bound(port, *options) for port in ports.chosen] == [can, can, True]
    ports.let_go()
    assert all(bound(port) for port in ports.chosen)


def test_no_two_servers_are_given_the_same_ports() -> None:
    """Nobody else is given one that is kept, whoever asks, and in whatever order they start: here two hundred, more than chance would keep apart."""
    with ExitStack() as stack:
        found = [Ports("127.0.0.1", (0, 0, 1)) for _ in range(200)]
        for ports in found:
            stack.callback(ports.let_go)
            ports.take()
        assert len({port for ports in found for port in ports.chosen[:2]}) == 400


def test_a_port_that_is_asked_for_is_not_shared(ports: Ports) -> None:
    asked = Ports("127.0.0.1", (12345, 0, 0))
    assert asked.take() == ["--reuse-grpc-port=true"]
    assert asked.chosen[0] == 12345
    asked.let_go()


def test_an_address_without_ports_is_told() -> None:
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1 has no free port for Triton: Cannot assign"):
        Ports("192.0.2.1", (0, 0, 0)).take()


ONE_THAT_ONLY_LISTENS = f"""#!{sys.executable}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
ports = {{option.split("-port=")[0]: option.split("=")[1] for option in sys.argv if "-port=" in option}}
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
HTTPServer.allow_reuse_port = ports["--reuse-http"] == "true"
metrics = HTTPServer(("127.0.0.1", int(ports["--metrics"])), Answer)
HTTPServer(("127.0.0.1", int(ports["--http"])), Answer).serve_forever()
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toy: ToyModel) -> Path:
    """A models folder, and in the place of Triton a program that listens where Triton would."""
    program = tmp_path / "listens"
    program.write_text(ONE_THAT_ONLY_LISTENS)
    program.chmod(0o755)
    monkeypatch.setattr(launcher, "find_triton", lambda: TritonInstall(program=program))
    toy.write(tmp_path / "models")
    return tmp_path / "models"


def test_a_metrics_port_that_is_lost_meanwhile_is_chosen_anew(quick: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Ports.take
    lost: list[int] = []
    with socket.socket() as thief:

        def takes(ports: Ports) -> list[str]:
            options = take(ports)
            if not lost:
                lost.append(ports.chosen[-1])
                thief.bind(("127.0.0.1", lost[0]))
            return options

        monkeypatch.setattr(Ports, "take", takes)
        with TritonServer(quick) as server:
            assert server.poll() is None
            assert server.metrics_port not in (0, *lost)
    assert len(lost) == 1
    assert leftovers(scratch, os.getpid()) == []


def test_a_port_that_was_asked_for_is_not_replaced(quick: Path, scratch: Path) -> None:
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match="before it was ready"):
            TritonServer(quick, metrics_port=thief.getsockname()[1]).__enter__()


def test_what_a_killed_process_left_is_removed_at_the_next_start(quick: Path, scratch: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = Owner.of(process.pid)
        left = owner.make_folder()
        (left / "log.txt").write_text("x")
        (SHM / f"{owner.shm_prefix}0_part").write_text("x")
        assert (owner.is_gone, remove_leftovers()) == (False, [])
        process.kill()
    pid = process.pid
    assert len(leftovers(scratch, pid)) == 2
    mine, of_others = Owner.of(os.getpid()).make_folder(), scratch / "emberline-triton-old"
    elsewhere = scratch / left.name.replace(
        f"-{Owner.of(os.getpid()).namespace}-", "-1-"
    )  # another container's, where the number means another process
    of_others.mkdir()
    elsewhere.mkdir()
    with TritonServer(quick):
        assert not left.exists()
    assert leftovers(scratch, pid) == sorted(map(str, (mine, of_others, elsewhere)))


def test_what_may_be_of_a_living_process_is_left_alone(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine where its state cannot be read just now, and of another, where the number means another process."""
    gone = Owner(Owner.of(os.getpid()).namespace, os.getpid(), 1)
    folder = gone.make_folder()

    def fails(path: Path) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", fails)
        assert (remove_leftovers(), folder.exists()) == ([], True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
        assert (remove_leftovers(), folder.exists()) == ([], True)
    assert remove_leftovers() == [folder]


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
