"""The doctor: what it makes of packages that are missing, broken, crashing or mismatched."""

import argparse
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import pytest

from emberline import doctor
from emberline.doctor import Finding, Probe


def probe(code: str, *, distributions: tuple[str, ...] = ("pytest",), purposes: tuple[str, ...] = ("train",)) -> Finding:
    """What a probe of an installed package finds where using it runs `code`."""
    return Probe("thing", distributions, code, purposes).run(("train",))


def test_a_package_that_works() -> None:
    version = importlib.metadata.version("pytest")
    assert probe("print('noise')\nprint('all well')") == Finding(name="thing", required=True, state="ok", version=version, detail="all well")


def test_a_package_that_is_not_installed() -> None:
    found = probe("import never_run", distributions=("no-such-package",))
    assert (found.state, found.failed) == ("missing", True)
    assert found.advice == "install no-such-package; the lock files in requirements/ have it"


def test_an_optional_package_that_is_not_installed_is_no_failure() -> None:
    found = probe("import never_run", distributions=("no-such-package",), purposes=("serve",))
    assert (found.state, found.failed, found.advice) == ("missing", False, "")


def test_two_builds_in_one_folder() -> None:
    found = probe("pass", distributions=("pytest", "pluggy"))
    assert (found.state, found.failed) == ("broken", True)
    assert found.detail == "both pytest and pluggy are installed, and they fill the same folder"
    assert found.advice.startswith("`pip uninstall pytest pluggy`, then reinstall it from one lock")


@pytest.mark.parametrize(
    ("code", "detail", "advice"),
    [
        (
            "raise ImportError('fbgemm_gpu_py.so: undefined symbol: _ZN3c10')",
            "ImportError: fbgemm_gpu_py.so: undefined symbol: _ZN3c10",
            "torch, torchrec and fbgemm are of different releases (they need torch 2.13, torchrec 1.8, fbgemm 1.8)",
        ),
        (
            "raise OSError('libcudart.so.13: cannot open shared object file: No such file or directory')",
            "OSError: libcudart.so.13: cannot open shared object file: No such file or directory",
            "this is a CUDA build without its CUDA libraries",
        ),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'", "a package that it needs is not installed"),
        ("raise ImportError('/lib/libc.so.6: version `GLIBC_2.38` not found')", "GLIBC_2.38", "the system's C library is older"),
        ("assert [1] == [2], [1]", "AssertionError: [1]", "reinstall it from one lock"),
        ("import os; os.abort()", "crashed with signal 6", "it may be built for another CPU"),
    ],
)
def test_a_package_that_fails(code: str, detail: str, advice: str) -> None:
    found = probe(code)
    assert (found.state, found.failed) == ("broken", True)
    assert detail in found.detail
    assert found.advice.startswith(advice)


def test_a_package_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 1)
    assert probe("import time; time.sleep(60)").detail == "did not import in 1 s"


def test_a_package_is_not_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pluggy.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert probe("import pluggy").state == "ok"


@pytest.mark.parametrize(
    ("versions", "state", "detail"),
    [
        (("2.13.0+cpu", "1.8.0", "1.8.0"), "ok", "torch 2.13, torchrec 1.8, fbgemm 1.8"),
        (("2.12.1", "1.8.0", "1.8.0"), "warning", "torch 2.12, torchrec 1.8, fbgemm 1.8 are not one tested set"),
        (("2.13.0", "", ""), "missing", "without torchrec, fbgemm: this environment can serve, not train"),
    ],
)
def test_the_three_have_to_fit(versions: tuple[str, str, str], state: str, detail: str) -> None:
    found = doctor.check_trio(*versions)
    assert (found.state, found.detail, found.failed) == (state, detail, False)


def test_the_three_are_those_of_the_lock(repository: Path) -> None:
    pins = dict(line.split("==") for line in (repository / "requirements/cpu.txt").read_text().splitlines() if "==" in line)
    assert doctor.check_trio(pins["torch"], pins["torchrec"], pins["fbgemm-gpu-cpu"]).state == "ok"


@pytest.mark.parametrize(("version", "warned"), [("1.26.4", False), ("2.0.0", True), ("10.1", True), ("", False)])
def test_numpy_2_is_a_warning_for_triton(version: str, warned: bool) -> None:
    assert (doctor.check_numpy_for_triton(version) is not None) == warned


@pytest.mark.parametrize(
    ("text", "share", "state", "detail"),
    [
        ("always [madvise] never\n", 1.0, "ok", "madvise; memory that asked for them got them"),
        ("[always] madvise never\n", None, "ok", "always"),
        ("always [madvise] never\n", 0.25, "warning", "madvise, but 25% of what was asked for was got; lookups in large tables are slower"),
        ("always madvise [never]\n", 0.0, "warning", "never; lookups in large tables are slower"),
    ],
)
def test_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, share: float | None, state: str, detail: str) -> None:
    monkeypatch.setattr(doctor, "try_huge_pages", lambda: share)
    setting = tmp_path / "enabled"
    setting.write_text(text)
    found = doctor.check_huge_pages(setting)
    assert (found.state, found.detail, bool(found.advice)) == (state, detail, state == "warning")


def test_a_system_without_huge_pages(tmp_path: Path) -> None:
    assert doctor.check_huge_pages(tmp_path / "absent").state == "missing"


@pytest.mark.parametrize("kernel", doctor.KERNELS)
def test_a_kernel_is_compiled_where_there_is_a_compiler(kernel: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.check_kernel(*kernel)
    if shutil.which("cc"):
        assert found.state == "ok"
        assert Path(found.detail.removeprefix("compiled: ")).is_file()
    monkeypatch.setattr(doctor, "_run", lambda *_: (1, "", "numpy and torch: there is no C compiler (cc, gcc, clang)\n"))
    found = doctor.check_kernel(*kernel)
    assert (found.state, found.failed, found.advice) == ("warning", False, "install a C compiler, such as gcc")
    assert found.detail == f"numpy and torch: there is no C compiler (cc, gcc, clang); {kernel[2]}"


def make_tool(folder: Path, name: str, script: str) -> None:
    tool = folder / name
    tool.write_text(f"#!{sys.executable}\n{script}\n")
    tool.chmod(0o755)


def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_gpu().state == "missing"
    make_tool(tmp_path, "nvidia-smi", "print('NVIDIA H200, 143771 MiB, 580.1\\nNVIDIA H200, 143771 MiB, 580.1')")
    assert doctor.check_gpu().detail == "NVIDIA H200, 143771 MiB, 580.1; NVIDIA H200, 143771 MiB, 580.1"
    make_tool(tmp_path, "nvidia-smi", "raise SystemExit('Failed to initialize NVML')")
    found = doctor.check_gpu()
    assert (found.state, found.detail) == ("warning", "Failed to initialize NVML")


def test_triton_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    make_tool(tmp_path / "bin", "tritonserver", "print('Usage: tritonserver [options]'); raise SystemExit(1)")
    (tmp_path / "TRITON_VERSION").write_text("2.59.0\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    expected = Finding(name="Triton", required=False, state="ok", version="2.59.0", detail=str(tmp_path / "bin" / "tritonserver"))
    assert doctor.check_triton() == expected


def test_a_triton_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tool(tmp_path, "tritonserver", "raise SystemExit('libb64.so.0d: cannot open shared object file')")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.check_triton()
    assert (found.state, found.failed) == ("broken", False)
    assert found.detail.endswith("tritonserver does not run: libb64.so.0d: cannot open shared object file")


@pytest.mark.triton
def test_the_triton_here_runs() -> None:
    assert doctor.check_triton().state == "ok"


def test_without_triton_the_embedded_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = doctor.check_triton()
    assert found.state == "missing"
    assert "pip install --no-deps nvidia-pytriton==0.7.0" in found.detail
    assert found.advice == "`emberline serve --backend embedded` does without it"


GOOD = Probe("good", ("pytest",), "print('fine')", ("serve",))
BAD = Probe("bad", ("no-such-package",), "", ("train",))


@pytest.fixture
def good_and_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages, and no kernels, which import torch."""
    monkeypatch.setattr(doctor, "PROBES", (GOOD, BAD))
    monkeypatch.setattr(doctor, "KERNELS", ())


@pytest.mark.usefixtures("good_and_bad")
@pytest.mark.parametrize(("purpose", "status"), [("all", 1), ("train", 1), ("serve", 0)])
def test_only_what_the_purpose_needs_fails(capsys: pytest.CaptureFixture[str], purpose: str, status: int) -> None:
    assert doctor.run_doctor(argparse.Namespace(purpose=purpose, json=False)) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["ok", "good", importlib.metadata.version("pytest"), "fine"]
    assert lines[3].split() == ["MISSING" if status else "missing", "bad"]
    assert lines[-1].endswith("bad must be put right" if status else "all that is needed works")


@pytest.mark.usefixtures("good_and_bad")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_doctor(argparse.Namespace(purpose="all", json=True)) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert [(finding["name"], finding["state"]) for finding in report["findings"][:2]] == [("good", "ok"), ("bad", "missing")]


def test_real_packages_of_this_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    light = tuple(entry for entry in doctor.PROBES if entry.name in ("numpy", "safetensors", "pyarrow", "protobuf", "grpcio"))
    monkeypatch.setattr(doctor, "PROBES", light)
    assert doctor.run_doctor(argparse.Namespace(purpose="all", json=False)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[2:7]] == [["ok", entry.name, importlib.metadata.version(entry.name)] for entry in light]
    told = [line[11:27].strip() for line in lines]
    assert [name for name in told if name in {kernel[0] for kernel in doctor.KERNELS}] == [kernel[0] for kernel in doctor.KERNELS]
