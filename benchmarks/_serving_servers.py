"""The servers of `serving.py`: how each is started and asked, and what its processes take."""

import base64
import ctypes
import http.client
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks._processes import cpu_s, memory_mib
from benchmarks._serving_model import ANSWER, NAME, WIDTH, pack
from benchmarks._serving_start import ROOT, SHM_PREFIX
from emberline.compiled import library_folders, open_library
from emberline.serving.triton.process import GroupProcess
from emberline.serving.triton.scratch import SHM

INFER = f"/v2/models/{NAME}/infer"
LENGTH = "Inference-Header-Content-Length"
READY_S = 300
_START = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module('benchmarks._serving_start', run_name='__main__')"
LOAD = Path(__file__).with_name("_load.c")
Ids = npt.NDArray[np.int64]
HttpRequest = tuple[str, dict[str, str], bytes]
"""Path, headers and body."""


def kserve(ids: Ids) -> HttpRequest:
    """A KServe v2 request with binary tensors."""
    headers, body = binary(ids, np.ones(ids.size, np.int32))
    return INFER, headers | {"Content-Type": "application/octet-stream"}, body


def binary(ids: Ids, lengths: npt.NDArray[np.int32], output: str = ANSWER) -> tuple[dict[str, str], bytes]:
    """Headers and body of a KServe v2 request with binary tensors."""
    inputs = [
        {"name": name, "shape": [1, values.size], "datatype": datatype, "parameters": {"binary_data_size": values.nbytes}}
        for name, values, datatype in (("ids", ids, "INT64"), ("lengths", lengths, "INT32"))
    ]
    head = json.dumps({"inputs": inputs, "outputs": [{"name": output, "parameters": {"binary_data": True}}]}).encode()
    return {LENGTH: str(len(head))}, head + ids.tobytes() + lengths.tobytes()


def plain(ids: Ids) -> HttpRequest:
    """Bytes as they are."""
    return "/lookup", {"Content-Type": "application/octet-stream"}, pack(ids)


def in_json(ids: Ids) -> HttpRequest:
    """Bytes as base64 in JSON."""
    return "/predict", {"Content-Type": "application/json"}, json.dumps({"body": base64.b64encode(pack(ids)).decode()}).encode()


@dataclass(frozen=True, kw_only=True)
class Server:
    """One row of the table.

    Args:
        title: as the table shows it.
        start: which server `_serving_start` starts.
        kind: of the model behind it.
        encode: a request as this server takes it.
        package: what it needs, if that may be absent.
        floor: which server shows its floor: the same one with a model that does nothing.
        bound: how far its answers may be from the tables' rows.
        ours: whether it is Emberline's.
    """

    title: str
    start: str
    kind: str
    floor: str
    package: str = ""
    bound: float = 1e-6
    ours: bool = False

    def encode(self, ids: Ids) -> HttpRequest:
        """The request for ids [F, B], one for each bag."""
        return {"fastapi": plain, "litserve": in_json}.get(self.start, kserve)(ids)

    @property
    def missing(self) -> bool:
        """Whether what it needs is not installed."""
        return bool(self.package) and importlib.util.find_spec(self.package) is None


EMBEDDED, TRITON = "Emberline, embedded", "Emberline, Triton"
SERVERS = [
    Server(title=EMBEDDED, start="embedded", kind="emberline", floor="embedded", ours=True),
    Server(title=TRITON, start="triton", kind="emberline", floor="triton-peer", package="pytriton", ours=True),
    Server(title="TorchRec eager, Triton", start="triton-peer", kind="eager", floor="triton-peer", package="pytriton"),
    Server(title="TorchRec int8 scripted, Triton", start="triton-peer", kind="quantized", floor="triton-peer", package="pytriton", bound=0.01),
    Server(title="TorchRec eager, FastAPI", start="fastapi", kind="eager", floor="fastapi"),
    Server(title="TorchRec eager, LitServe", start="litserve", kind="eager", floor="litserve", package="litserve"),
]


class Running:
    """A server that answers, once it was waited for.

    Args:
        server: what it is.
        port: where it listens.
        grpc_port: where Emberline's listen for gRPC.
        process: its first process.
        log: what it says.
    """

    def __init__(self, server: Server, port: int, grpc_port: int, process: GroupProcess, log: Path) -> None:
        self.server = server
        self.port, self.grpc_port = port, grpc_port
        self._process, self._log, self._pid = process, log, process.pid

    def wait(self, probe: Ids) -> None:
        """Until it answers this.

        Raises:
            RuntimeError: it does not.
        """
        end = time.monotonic() + READY_S
        while True:
            try:
                self.ask(probe)
                return
            except (OSError, AssertionError, http.client.HTTPException) as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{self.server.title} did not start: {error}\n{self._log.read_text(errors='replace')[-3000:]}") from error
            time.sleep(0.2)

    def ask(self, ids: Ids) -> npt.NDArray[np.float32]:
        """One request's answer: float32 [B, 448]."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        path, headers, body = self.server.encode(ids)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            found = answer.read()
            assert answer.status == 200, (self.server.title, answer.status, found[:300])
        finally:
            connection.close()
        start = int(answer.headers.get(LENGTH, 0))
        return np.frombuffer(found[start:], np.float32).reshape(-1, WIDTH)

    def load(self, requests: Sequence[Ids], connections: int, seconds: float) -> "Load":
        """Ask for so long, and see what it takes."""
        raw = [post(*self.server.encode(ids)) for ids in requests]
        bytes_, ends = b"".join(raw), np.cumsum([len(one) for one in raw], dtype=np.int64)
        latencies, failures, took = np.empty(4_000_000, np.float32), ctypes.c_int64(), ctypes.c_double()
        library, _ = open_library(LOAD, library_folders(LOAD))
        library.load.restype = ctypes.c_int64
        before, client_before = cpu_s(self._pid), time.process_time()
        answered = library.load(
            ctypes.c_int(self.port),
            ctypes.c_char_p(bytes_),
            ends.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(len(raw)),
            ctypes.c_int(connections),
            ctypes.c_double(seconds),
            latencies.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(latencies.size),
            ctypes.byref(failures),
            ctypes.byref(took),
        )
        assert (answered > 0, failures.value) == (True, 0), f"{self.server.title}: {answered} answers, {failures.value} failures"
        client_cpu_s = time.process_time() - client_before
        return Load(requests[0].shape[1], took.value, latencies[:answered].copy(), cpu_s(self._pid) - before, client_cpu_s)

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._pid

    def memory_mib(self) -> float:
        """Of all its processes."""
        return memory_mib(self._pid)


@dataclass(frozen=True, eq=False)
class Load:
    """What came of asking for a while: rows of each request, seconds, the latency of each answer, and the processor time of server and client."""

    request_rows: int
    seconds: float
    latencies: npt.NDArray[np.float32]
    cpu_s: float
    client_cpu_s: float

    @property
    def requests_per_s(self) -> float:
        """Answers a second."""
        return self.latencies.size / self.seconds

    @property
    def rows_per_s(self) -> float:
        """Rows a second."""
        return self.requests_per_s * self.request_rows

    @property
    def cpu_us_per_row(self) -> float:
        """Microseconds of the server's processor time."""
        return self.cpu_s * 1e6 / (self.latencies.size * self.request_rows)

    @property
    def client_cpu_us_per_row(self) -> float:
        """Microseconds of the client's."""
        return self.client_cpu_s * 1e6 / (self.latencies.size * self.request_rows)

    def ms(self, percent: float) -> float:
        """The latency that so many of a hundred answers keep."""
        return float(np.percentile(self.latencies, percent)) * 1e3


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as an error does: by way of what ends the servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def running(server: Server, models: Path, probe: Ids, *, workers: int = 1, threads: int = 1) -> Iterator[Running]:
    """The server, ready: see `started`."""
    with started(server, models, workers=workers, threads=threads) as found:
        found.wait(probe)
        yield found


@contextmanager
def started(server: Server, models: Path, *, workers: int = 1, threads: int = 1) -> Iterator[Running]:
    """The server in processes of its own, on its way up; none of them is left afterwards, nor where this process is killed."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, grpc_port = free.getsockname()[1], other.getsockname()[1]
    arguments = [server.start, server.kind, str(models), str(port), str(grpc_port), str(workers), str(threads)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.txt")
        process = GroupProcess([sys.executable, "-c", _START, *arguments, folder], os.environ, log)
        try:
            yield Running(server, port, grpc_port, process, log)
        finally:
            process.stop(20)
            for path in SHM.glob(f"{SHM_PREFIX}{process.pid}_*"):
                path.unlink(missing_ok=True)


def post(path: str, headers: dict[str, str], body: bytes) -> bytes:
    """A whole HTTP request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
