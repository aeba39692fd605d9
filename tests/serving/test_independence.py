"""Serving in a process where only torch, numpy and safetensors can be imported."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import emberline.serving
from emberline.digests import PiecesDigest
from emberline.errors import ArtifactError
from emberline.manifest import FileEntry, hash_file, read_manifest, write_manifest
from emberline.serving.artifact import Artifact
from emberline.serving.tables import TABLE_MEMORIES
from tests.serving.conftest import ToyModel, random_request

BARE = """
import sys

BLOCKED = {blocked!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED or name.startswith(("emberline.train", "emberline.export")):
            raise ModuleNotFoundError(f"blocked: {{name}}")
        return None


sys.meta_path.insert(0, Blocker())
"""
ANSWER = """
import json
import numpy as np
from emberline.serving import Engine, PackedRequest

engine = Engine.open(sys.argv[1], tables="private", num_threads=1)
answers = []
for given in json.loads(sys.stdin.read()):
    parts = {name: np.array(values, dtype) for name, (dtype, values) in given.items()}
    answers.append({name: value.tolist() for name, value in engine.predict(PackedRequest(**parts)).items()})
assert "emberline.serving.client" not in sys.modules
print(json.dumps(answers))
"""
COMPARE = """
from emberline.errors import ArtifactError
from emberline.serving.artifact import Artifact
from emberline.serving.tables import TABLE_MEMORIES

for root in sys.argv[1:]:
    for memory in TABLE_MEMORIES:
        try:
            Artifact.open(root, tables=memory)
            print("sound")
        except ArtifactError as error:
            print(error)
"""
WRITE = """
import json
import torch
from dataclasses import asdict
from pathlib import Path
from emberline.serving.tables import write_table

print(json.dumps(asdict(write_table(Path(sys.argv[1]), torch.load(sys.argv[2])))))
"""
BLOCKED = [
    "xxhash",
    "torchrec",
    "fbgemm_gpu",
    "pyarrow",
    "pandas",
    "fastapi",
    "starlette",
    "uvicorn",
    "grpc",
    "google",
    "tritonclient",
    "pytriton",
    "tqdm",
]


def run_bare(code: str, *arguments: object, given: str = "") -> str:
    """What code prints in a process that has no other packages."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", BARE.format(blocked=BLOCKED) + code, *map(str, arguments)]
    run = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def relist(root: Path, entries: dict[str, FileEntry]) -> None:
    """Let the manifest say something else of some files."""
    data = read_manifest(root)
    data["files"].update({file: asdict(entry) for file, entry in entries.items()})
    write_manifest(root, data)


def fast_entry(path: Path) -> FileEntry:
    """With both digests."""
    digest = PiecesDigest()
    digest.update(path.read_bytes())
    return replace(hash_file(path), xxh3=digest.hexdigest())


@pytest.fixture
def fast_artifact(toy_artifact: Path) -> Path:
    """An artifact whose tables and maps have both digests, as exports write them where xxhash is installed."""
    files = [f"{path.parent.name}/{path.name}" for folder in ("tables", "remap") for path in sorted((toy_artifact / folder).iterdir())]
    relist(toy_artifact, {file: fast_entry(toy_artifact / file) for file in files})
    return toy_artifact


def test_an_artifact_answers_in_a_bare_process(toy: ToyModel, fast_artifact: Path) -> None:
    """Weighted and not, full and empty, no row and many: each equals the oracle."""
    requests = [
        random_request(toy.schema, num_rows=rows, seed=rows, weights=weights) for rows, weights in ((0, True), (1, True), (5, True), (5, False))
    ]
    requests.append({"ids": np.empty(0, np.int64), "lengths": np.zeros(8, np.int32), "dense": np.ones(6, np.float32)})
    given = json.dumps([{name: (str(values.dtype), values.tolist()) for name, values in request.items()} for request in requests])
    for request, found in zip(requests, json.loads(run_bare(ANSWER, fast_artifact, given=given)), strict=True):
        for name, value in toy.answers(request).items():
            if name.startswith("output."):
                answer = torch.tensor(found[name.removeprefix("output.")]).reshape(value.shape)
                torch.testing.assert_close(answer, value, rtol=1e-6, atol=1e-6)


def test_without_xxhash_the_other_digest_is_compared(fast_artifact: Path, tmp_path: Path) -> None:
    """Of files that have both: the faster one is not looked at, and every change is seen all the same."""
    root, other, file = fast_artifact, tmp_path / "other" / fast_artifact.name, "tables/city_emb.safetensors"
    shutil.copytree(root, other)
    entry = fast_entry(root / file)
    relist(root, {file: replace(entry, xxh3="0" * 32)})
    for memory in TABLE_MEMORIES:
        with pytest.raises(ArtifactError, match=rf"{file} was changed: its XXH3 differs"):
            Artifact.open(root, tables=memory)
    relist(other, {file: replace(entry, sha256="0" * 64)})
    found, each = run_bare(COMPARE, root, other).splitlines(), len(TABLE_MEMORIES)
    told = f"{other}: the artifact is damaged: {file} was changed: its sha256 differs"
    assert found[:each] == ["sound"] * each
    assert [line[: len(told)] for line in found[each:]] == [told] * each


def test_what_a_bare_process_wrote_is_compared_where_xxhash_is(fast_artifact: Path, tmp_path: Path) -> None:
    root, file = fast_artifact, "tables/city_emb.safetensors"
    rows = torch.randn(Artifact.open(root).tables["city_emb"].shape)
    torch.save(rows, tmp_path / "rows")
    entry = FileEntry(**json.loads(run_bare(WRITE, root / file, tmp_path / "rows")))
    assert (entry, entry.xxh3) == (hash_file(root / file), None)
    relist(root, {file: entry})
    for memory in ("private", "mapped"):
        assert torch.equal(Artifact.open(root, tables=memory).tables["city_emb"], rows)
    data = bytearray((root / file).read_bytes())
    data[-1] ^= 1
    (root / file).write_bytes(data)
    for memory in TABLE_MEMORIES:
        with pytest.raises(ArtifactError, match=rf"{file} was changed: its sha256 differs"):
            Artifact.open(root, tables=memory)


def test_the_client_is_there_when_asked_for() -> None:
    assert emberline.serving.Client.__module__.startswith("emberline.serving.client")
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        emberline.serving.Server  # noqa: B018
