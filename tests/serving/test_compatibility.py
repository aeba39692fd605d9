"""Programs made elsewhere: what matters is refused with what to do, and what does not is told."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError
from emberline.manifest import ProgramEntry, read_manifest
from emberline.serving import Engine, compatibility
from emberline.serving.compatibility import architecture, made_here, require_fit
from tests.serving.conftest import ToyModel, reseal

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SCRIPT = made_here(ProgramEntry(role="outputs", file="programs/dense.ts", format="torchscript"))
COMPILED = made_here(ProgramEntry(role="outputs", file="programs/dense.pt2", format="aoti", libraries=("json",)))
RELEASE = torch.__version__.partition("+")[0]


def test_an_entry_tells_what_made_it() -> None:
    assert (SCRIPT.arch, SCRIPT.versions) == ("", {"torch": torch.__version__})
    assert COMPILED.versions == {"torch": torch.__version__, "json": "2.0.9"}
    assert COMPILED.arch == architecture(CPU)
    told = COMPILED.arch.split()
    assert told[1:] == sorted(set(told[1:]))
    facts = Path("/proc/cpuinfo").read_text().split()
    assert all(name in facts for name in told[1:])


@pytest.mark.parametrize(
    "entry", [SCRIPT, COMPILED, replace(SCRIPT, versions={}), replace(COMPILED, versions={**COMPILED.versions, "torch": RELEASE})]
)
def test_what_was_made_here_fits_without_a_word(entry: ProgramEntry) -> None:
    assert require_fit(entry, CPU) == []


@pytest.mark.parametrize("release", ["2.0.1", "99.1.0+cu999"])
def test_torchscript_of_another_torch_is_told(release: str) -> None:
    found = require_fit(replace(SCRIPT, versions={"torch": release}), CPU)
    assert found == [f"programs/dense.ts: made with torch {release}, and this is torch {torch.__version__}"]


def test_torchscript_goes_to_any_device() -> None:
    assert require_fit(SCRIPT, GPU) == []


@pytest.mark.parametrize(
    ("change", "device", "problem"),
    [
        ({"versions": {"torch": "2.0.1+cpu", "json": "2.0.9"}}, CPU, rf"made with torch 2\.0\.1\+cpu, and this is torch {RELEASE}"),
        ({"versions": {"torch": RELEASE, "json": "1"}}, CPU, r"made with json 1, and this is json 2\.0\.9\. Export again on a machine like this one"),
        ({"versions": {"torch": RELEASE}}, CPU, r"made with json of an unknown release, and this is json 2\.0\.9"),
        (
            {"device": "cuda", "arch": "sm_90"},
            CPU,
            r"made for cuda, and the engine is on cpu \(open it with device='cuda'\)\. Export again .* cuda sm_90\.",
        ),
        ({}, GPU, r"made for cpu, and the engine is on cuda \(open it with device='cpu'\)\. Export again on a machine like this one"),
        ({"format": "onnx"}, GPU, r"made for cpu, and the engine is on cuda \(open it with device='cpu'\)"),
        ({"arch": "pdp11 avx"}, CPU, "compiled for pdp11, and this CPU is "),
        ({"arch": ""}, CPU, "compiled for an unknown CPU, and this CPU is "),
        ({"arch": f"{COMPILED.arch} avx99_new amx_z"}, CPU, "compiled for a CPU that has amx_z, avx99_new, which this one has not"),
    ],
)
def test_what_cannot_run_here_is_refused_with_what_to_do(change: dict[str, object], device: torch.device, problem: str) -> None:
    entry = replace(COMPILED, **change)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match=rf"^programs/dense\.pt2: the outputs program cannot run here: .*{problem}") as failure:
        require_fit(entry, device)
    assert "or with --format torchscript" in str(failure.value)


def test_machine_code_of_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert architecture(GPU) == "sm_90"
    entry = replace(COMPILED, device="cuda", arch="sm_90")
    assert require_fit(entry, GPU) == []
    with pytest.raises(ArtifactError, match="it was compiled for sm_80, and this GPU is sm_90"):
        require_fit(replace(entry, arch="sm_80"), GPU)


def test_a_cpu_without_facts_has_a_machine_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_CPU_FACTS", tmp_path / "none")
    compatibility._instruction_sets.cache_clear()
    assert architecture(CPU) == COMPILED.arch.split()[0]
    (tmp_path / "none").write_text("processor: 0\nFeatures : fp asimd sve2 aes\n")
    compatibility._instruction_sets.cache_clear()
    assert architecture(CPU).split()[1:] == ["asimd", "sve2"]
    monkeypatch.undo()
    compatibility._instruction_sets.cache_clear()
    assert architecture(CPU) == COMPILED.arch


def test_missing_libraries_tell_what_was_there(tmp_path: Path) -> None:
    entry = replace(SCRIPT, libraries=("json", "not_there"), versions={"torch": "2.0.1", "json": "2", "not_there": "7"})
    with pytest.raises(
        ArtifactError, match=r"cannot be imported here: not_there \(.*; it was made with torch 2\.0\.1, json 2, not_there 7, on torch"
    ):
        require_fit(entry, CPU)


def test_an_engine_tells_of_another_torch_and_answers(toy: ToyModel, toy_artifact: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = read_manifest(toy_artifact)
    for program in data["programs"]:
        program["versions"] = {"torch": "2.0.1"}
    reseal(toy_artifact, data)
    with caplog.at_level(logging.WARNING):
        engine = Engine.open(toy_artifact)
    assert engine.version == 1
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(": made with ")[0] for message in messages] == [
        f"model toy, version 1: {program['file']}" for program in data["programs"]
    ]


def test_an_engine_refuses_machine_code_of_another_release(toy_artifact: Path) -> None:
    data = read_manifest(toy_artifact)
    for program in data["programs"]:
        program.update(format="aoti", arch=architecture(CPU), versions={"torch": "2.0.1"})
    reseal(toy_artifact, data)
    with pytest.raises(ArtifactError, match=r"the outputs program cannot run here: made with torch 2\.0\.1"):
        Engine.open(toy_artifact)
