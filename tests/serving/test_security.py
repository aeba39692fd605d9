"""Who tries to get more out of a server than answers: by names, by links, by what lies in an artifact, and from other machines."""

import argparse
import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest
import torch
from tritonclient.grpc import service_pb2 as pb

from emberline.errors import ArtifactError
from emberline.serving import Engine
from emberline.serving.cli import configure_serve
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy, reseal

NAMES = (
    "..",
    "../secret",
    "../models/toy",
    "/etc/passwd",
    "toy/../../secret",
    "toy/1",
    "toy\\..\\x",
    "toy ",
    "t\u043ey",
    "\u2025",
    "toy\n",
    "toy\x7f",
    ".",
    "x" * 3000,
)
INSIDE = ("Traceback", 'File "', ".py", "manifest", "site-packages")


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one model, and beside the folder one that must stay unreachable."""
    folder = tmp_path_factory.mktemp("place")
    make_toy().write(folder / "models")
    make_toy(name="secret").write(folder)
    return folder / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1, metrics_port=0)) as server:
        yield server


def raw_http(server: EmbeddedServer, method: str, path: bytes) -> tuple[int, bytes]:
    """Status and all bytes of an answer to a path as it is."""
    host, port = server.http_url.removeprefix("http://").split(":")
    body = b"{}" if method == "POST" else b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            b"%b %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (method.encode(), path, len(body), body)
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_models_folder_over_http(server: EmbeddedServer, models: Path, name: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in name.encode()).encode()
    written = [
        encoded,
        encoded.replace(b"%2e", b"."),
        encoded.replace(b"%2f", b"/"),
        encoded.replace(b"%2f", b"/").replace(b"%2e", b"."),
        encoded + b"%00",
    ]
    routes = [("GET", b""), ("GET", b"/config"), ("GET", b"/ready"), ("GET", b"/stats"), ("POST", b"/infer")]
    asked = [(method, b"/v2/models/" + one + rest) for method, rest in routes for one in written]
    asked += [("POST", b"/v1/models/" + one + b":predict") for one in written]
    asked += [("POST", b"/v2/repository/models/" + one + verb) for one in written for verb in (b"/load", b"/unload")]
    for method, path in asked:
        status, answer = raw_http(server, method, path)
        assert 400 <= status < 500, (path, answer)
        assert not [word for word in (*INSIDE, str(models.parent)) if word.encode() in answer], answer


@pytest.mark.parametrize("name", [*NAMES, "toy\x00"])
def test_no_name_leads_out_of_the_models_folder_over_grpc(server: EmbeddedServer, models: Path, name: str) -> None:
    asked = [
        ("ModelInfer", pb.ModelInferRequest(model_name=name)),
        ("ModelInfer", pb.ModelInferRequest(model_name="toy", model_version=name)),
        ("ModelMetadata", pb.ModelMetadataRequest(name=name)),
        ("ModelConfig", pb.ModelConfigRequest(name=name)),
        ("ModelReady", pb.ModelReadyRequest(name=name)),
        ("ModelStatistics", pb.ModelStatisticsRequest(name=name)),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name)),
        ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=name)),
        ("RepositoryIndex", pb.RepositoryIndexRequest(repository_name=name)),
    ]
    with grpc.insecure_channel(server.grpc_url.removeprefix("grpc://")) as channel:
        for call, message in asked:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/inference.GRPCInferenceService/{call}", None, None)(message.SerializeToString())
            details = caught.value.details() or ""
            assert (call, caught.value.code().name) == (call, "NOT_FOUND")
            assert not [word for word in (*INSIDE, str(models.parent)) if word in details], details


def test_only_this_machine_can_connect_unless_told_otherwise(server: EmbeddedServer) -> None:
    ports = {int(url.rpartition(":")[2].partition("/")[0]) for url in (server.http_url, server.grpc_url, server.metrics_url)}
    assert len(ports) == 3
    heard = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port in ports]
    assert {one.laddr.port for one in heard} == ports
    assert {one.laddr.ip.removeprefix("::ffff:") for one in heard} == {"127.0.0.1"}


def test_the_command_listens_on_this_machine_unless_told_otherwise() -> None:
    parser = argparse.ArgumentParser()
    configure_serve(parser)
    assert parser.parse_args(["models"]).host == "127.0.0.1"


@pytest.mark.parametrize(
    "file", ["programs/outputs.ts", "programs/groups.ts", "tables/item_emb.safetensors", "remap/user_emb.safetensors", "golden.safetensors"]
)
@pytest.mark.parametrize("form", ["pickle", "torch.save", "torch.save, old"])
def test_a_pickle_in_an_artifact_is_refused_and_never_read(tmp_path: Path, file: str, form: str) -> None:
    root, target = make_toy().write(tmp_path), tmp_path / "ran"
    if form == "pickle":
        (root / file).write_bytes(f"cposix\nmkdir\n(V{target}\ntR.".encode())
    else:
        torch.save(Payload(target), root / file, _use_new_zipfile_serialization=form == "torch.save")
    reseal(root)
    with pytest.raises(ArtifactError):
        Engine.open(root)
    assert not target.exists()


def test_odd_entries_in_the_models_folder_do_no_harm(tmp_path: Path) -> None:
    models = tmp_path / "models"
    make_toy().write(models)
    (models / "loop").symlink_to("loop")
    (models / "dangling").symlink_to(tmp_path / "nothing")
    (models / "file").write_text("no folder")
    (models / "up").symlink_to("..")
    (models / "toy" / "7").symlink_to(tmp_path / "nothing")
    (models / "toy" / "8").write_text("no folder")
    (models / "toy" / "9").mkdir()
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
        connection.request("POST", "/v2/repository/index")
        index = json.loads(connection.getresponse().read())
        connection.close()
        assert [(model["name"], model["version"], model["state"]) for model in index] == [("toy", "1", "READY")]
        for name in ("loop", "dangling", "file", "up"):
            assert raw_http(server, "POST", f"/v2/repository/models/{name}/load".encode())[0] == 404


def test_a_file_that_is_a_link_to_elsewhere_holds_what_the_manifest_says_or_nothing(tmp_path: Path) -> None:
    root = make_toy().write(tmp_path / "models")
    table = root / "tables" / "item_emb.safetensors"
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * table.stat().st_size)
    table.unlink()
    table.symlink_to(secret)
    with pytest.raises(ArtifactError, match=r"item_emb\.safetensors"):
        Engine.open(root)
