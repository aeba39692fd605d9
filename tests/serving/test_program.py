"""Programs: loaded with the libraries that they need, or refused with the list of those missing."""

from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError
from emberline.manifest import ProgramEntry
from emberline.program_inputs import ProgramInput
from emberline.serving import Engine
from emberline.serving.program import Program, load_program
from tests.serving.conftest import ToyGroups, ToyModel

CPU = torch.device("cpu")
INPUTS = tuple(ProgramInput(name=name, dtype="float32", dims=("B", width)) for name, width in (("pooled", 6), ("dense", 2)))


def load(path: Path, libraries: tuple[str, ...] = (), names: tuple[str, ...] = ("deep", "wide"), format: str = "torchscript") -> Program:
    entry = ProgramEntry(role="groups", file="programs/groups.ts", format=format, libraries=libraries)
    return load_program(path, entry, INPUTS, names, CPU)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.jit.save(torch.jit.script(ToyGroups()), str(tmp_path / "groups.ts"))
    return tmp_path / "groups.ts"


@pytest.mark.parametrize("num_rows", [1, 0, 5])
def test_any_number_of_rows(saved: Path, num_rows: int) -> None:
    pooled, dense = torch.randn(num_rows, 6), torch.randn(num_rows, 2)
    found = load(saved)({"dense": dense, "pooled": pooled})
    assert torch.equal(found["deep"], torch.cat([pooled, dense], dim=1))
    assert torch.equal(found["wide"], pooled[:, :4])


def test_missing_libraries_are_all_listed(saved: Path) -> None:
    with pytest.raises(ArtifactError) as failure:
        load(saved, libraries=("json", "not_there_a", "not_there_b"))
    text = str(failure.value)
    assert text.startswith("programs/groups.ts: the groups program needs libraries that cannot be imported here: not_there_a (")
    assert "not_there_b" in text
    assert "json" not in text


def test_an_engine_with_missing_libraries_does_not_open(toy: ToyModel, tmp_path: Path) -> None:
    model = ToyModel(toy.schema, toy.tables, toy.remaps, toy.outputs, toy.groups, libraries=("not_there",))
    with pytest.raises(ArtifactError, match="needs libraries that cannot be imported here: not_there"):
        Engine.open(model.write(tmp_path))


def test_another_format_is_refused(saved: Path) -> None:
    with pytest.raises(ArtifactError, match="programs of format 'xla' are not supported; this release runs torchscript, aoti, onnx"):
        load(saved, format="xla")


@pytest.mark.parametrize("content", [b"", b"not a program", b"PK\x03\x04 half a zip"])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "groups.ts").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"^programs/groups\.ts: the groups program does not load: "):
        load(tmp_path / "groups.ts")


def test_the_number_of_results_must_fit_the_names(saved: Path) -> None:
    program = load(saved, names=("deep",))
    with pytest.raises(ArtifactError, match="the program gives 2 tensors, but the schema names 1: deep"):
        program({"pooled": torch.zeros(1, 6), "dense": torch.zeros(1, 2)})
