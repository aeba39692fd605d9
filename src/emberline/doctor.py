"""`emberline doctor`: try each package and program that Emberline uses, and say what to do where one fails.

Each package is imported and used once in a process of its own, so that one that crashes takes nothing down. Nothing is changed.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import emberline
from emberline.errors import MissingDependencyError
from emberline.memory import HUGE_PAGES, try_huge_pages, why_no_huge_pages

State = Literal["ok", "warning", "missing", "broken"]

PROBE_TIMEOUT_S = 180
# The three are compiled against each other; these are the releases in requirements/.
TRIO = {"torch": "2.13", "torchrec": "1.8", "fbgemm": "1.8"}
_REINSTALL = "reinstall it from one lock: `pip install --no-deps --force-reinstall -r requirements/cpu.txt` (cuda.txt with CUDA)"
_TRITON_IN_WHEEL = {"0.7.0": "2.51"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check saw.

    Args:
        required: the purpose asked for cannot do without it.
        state: `ok`; `warning`, works but not as it should; `missing`, not installed; `broken`, there but fails.
        detail: what was seen, in a few words.
        advice: what to do; empty where all is well.
    """

    name: str
    required: bool
    state: State
    version: str = ""
    detail: str = ""
    advice: str = ""

    @property
    def failed(self) -> bool:
        """Whether Emberline cannot work here because of it."""
        return self.required and self.state in ("missing", "broken")


@dataclass(frozen=True)
class Probe:
    """One package to try.

    Args:
        name: the name shown.
        distributions: names under which it may be installed; the first is the one to install.
        code: Python that uses it; the last line that it prints becomes the finding's detail.
        purposes: the purposes (`train`, `export`, `serve`) that need it; none: it is optional.
    """

    name: str
    distributions: tuple[str, ...]
    code: str
    purposes: tuple[str, ...] = ()

    def run(self, purposes: Sequence[str]) -> Finding:
        """Import the package in a process of its own."""
        required = any(purpose in self.purposes for purpose in purposes)
        versions = {name: version for name in self.distributions if (version := installed_version(name))}
        if not versions:
            advice = f"install {self.distributions[0]}; the lock files in requirements/ have it" if required else ""
            return Finding(name=self.name, required=required, state="missing", advice=advice)
        version = ", ".join(versions.values())
        if len(versions) > 1:
            detail = f"both {' and '.join(versions)} are installed, and they fill the same folder"
            advice = f"`pip uninstall {' '.join(versions)}`, then {_REINSTALL}"
            return Finding(name=self.name, required=required, state="broken", version=version, detail=detail, advice=advice)
        status, output, errors = _run([sys.executable, "-P", "-W", "ignore", "-c", self.code], PROBE_TIMEOUT_S)
        if status == 0:
            return Finding(name=self.name, required=required, state="ok", version=version, detail=_last_line(output))
        detail, advice = explain_failure(status, errors)
        return Finding(name=self.name, required=required, state="broken", version=version, detail=detail, advice=advice)


ALL_PURPOSES = ("train", "export", "serve")
KERNELS = (
    ("id index", "emberline.serving.remap.native", "raw ids are looked up several times as slowly"),
    ("lookups", "emberline.serving.lookup.native", "rows of tables are looked up several times as slowly"),
    ("requests", "emberline.serving.lookup.direct", "requests are checked and cut several times as slowly"),
    ("growing ids", "emberline.train.dynamic.slots", "training looks up ids of tables that grow many times as slowly"),
)
"""Of the server, and one of training: name, module, and what is so without it."""
_TRAINING = ("train", "export")
_TORCH_CODE = """
import torch
assert torch.ones(3).sum().item() == 3
print(f"CUDA {torch.version.cuda} build, {torch.cuda.device_count()} GPUs usable" if torch.version.cuda else "CPU build")
"""
_FBGEMM_CODE = (
    "import torch, fbgemm_gpu; sums = torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2])); assert sums.tolist() == [0, 1, 3], sums"
)
PROBES = (
    Probe("torch", ("torch",), _TORCH_CODE, ALL_PURPOSES),
    Probe("fbgemm", ("fbgemm-gpu-cpu", "fbgemm-gpu"), _FBGEMM_CODE, _TRAINING),
    Probe("torchrec", ("torchrec",), "from torchrec import EmbeddingBagCollection", _TRAINING),
    Probe("numpy", ("numpy",), "import numpy; assert numpy.arange(3).sum() == 3", ALL_PURPOSES),
    Probe("safetensors", ("safetensors",), "import safetensors.numpy", ALL_PURPOSES),
    Probe("pyarrow", ("pyarrow",), "import pyarrow.parquet, pyarrow.csv", _TRAINING),
    Probe("protobuf", ("protobuf",), "import google.protobuf.text_format", ALL_PURPOSES),
    Probe("growing tables", ("emberline",), "from emberline.train.dynamic.nvidia.package import kernel_here; print(kernel_here())"),
    Probe("tensorboard", ("tensorboard",), "import tensorboard.summary", ("train",)),
    Probe("grpcio", ("grpcio",), "import grpc", ("serve",)),
    Probe("fastapi", ("fastapi",), "import fastapi", ("serve",)),
    Probe("uvicorn", ("uvicorn",), "import uvicorn, httptools, uvloop", ("serve",)),
    Probe("tritonclient", ("tritonclient",), "import tritonclient.http, tritonclient.grpc", ("serve",)),
    Probe("xxhash", ("xxhash",), "import xxhash; assert xxhash.xxh3_128_hexdigest(b'') == '99aa06d3014798d86001c324468d497f'"),
    Probe("onnx", ("onnx",), "import onnx"),
    Probe("onnxruntime", ("onnxruntime", "onnxruntime-gpu"), "import onnxruntime; print(', '.join(onnxruntime.get_available_providers()))"),
)


def installed_version(distribution: str) -> str:
    """The version of an installed distribution; empty where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def explain_failure(status: int | None, errors: str) -> tuple[str, str]:
    """What a failed import means, and what to do about it.

    Args:
        status: exit status of the child; negative: the signal that ended it; None: it ran out of time.
        errors: what it wrote on standard error.

    Returns:
        detail, advice.
    """
    detail = _last_line(errors)
    if status is None:
        return f"did not import in {PROBE_TIMEOUT_S} s", "see what else loads this machine, then run `emberline doctor` again"
    if status < 0:
        return f"crashed with signal {-status}", f"it may be built for another CPU; else {_REINSTALL}"
    if "undefined symbol" in errors:
        return detail, f"torch, torchrec and fbgemm are of different releases (they need {_pairing(TRIO)}): {_REINSTALL}"
    if "cannot open shared object file" in errors and ("cuda" in errors.lower() or "nv" in errors):
        return detail, f"this is a CUDA build without its CUDA libraries: {_REINSTALL}"
    if "GLIBC" in errors:
        return detail, "the system's C library is older than the wheel needs: use a newer distribution or container image"
    if "ModuleNotFoundError" in errors:
        return detail, f"a package that it needs is not installed; {_REINSTALL}"
    return detail, _REINSTALL


def check_trio(torch: str, torchrec: str, fbgemm: str) -> Finding:
    """Whether the three versions are of releases made for each other; empty: not installed."""
    versions = {"torch": torch, "torchrec": torchrec, "fbgemm": fbgemm}
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return Finding(name="trio", required=False, state="missing", detail=f"without {', '.join(missing)}: this environment can serve, not train")
    found = {name: ".".join(version.split(".")[:2]) for name, version in versions.items()}
    if found == TRIO:
        return Finding(name="trio", required=False, state="ok", detail=_pairing(found))
    advice = f"tested together are {_pairing(TRIO)}; {_REINSTALL}"
    return Finding(name="trio", required=False, state="warning", detail=f"{_pairing(found)} are not one tested set", advice=advice)


def check_numpy_for_triton(version: str) -> Finding | None:
    """A warning where Triton's Python backend would answer nothing: the one in nvidia-pytriton 0.7.0 cannot read numpy 2's arrays."""
    if not version or int(version.split(".")[0]) < 2:
        return None
    advice = "`pip install --no-deps numpy==1.26.4`, if that is the Triton that serves"
    return Finding(
        name="numpy for Triton", required=False, state="warning", version=version, detail="nvidia-pytriton's Triton needs numpy 1", advice=advice
    )


def check_triton() -> Finding:
    """The Triton Inference Server that `emberline serve --backend triton` would start: whether its program runs here."""
    try:
        # Inside the function: it loads torch, which may be what is broken.
        from emberline.serving.triton.install import find_triton

        install = find_triton()
    except MissingDependencyError as error:
        advice = "`emberline serve --backend embedded` does without it"
        return Finding(name="Triton", required=False, state="missing", detail=str(error), advice=advice)
    except (ImportError, OSError) as error:
        advice = "put right what is named above first"
        return Finding(name="Triton", required=False, state="broken", detail=f"emberline.serving does not load: {error}", advice=advice)
    status, output, errors = _run([str(install.program), "--help"], 60, install.environment(os.environ))
    version = triton_version(install.program) if install.wheel is None else _TRITON_IN_WHEEL.get(installed_version("nvidia-pytriton"), "")
    # It prints its usage whatever its exit status, which has differed between releases.
    if "Usage" not in output + errors:
        detail = f"{install.program} does not run: {_last_line(errors) or status}"
        return Finding(name="Triton", required=False, state="broken", version=version, detail=detail, advice="a library that it needs is missing")
    return Finding(name="Triton", required=False, state="ok", version=version, detail=str(install.program))


def triton_version(program: Path) -> str:
    """The version that NVIDIA's image writes beside its server; empty elsewhere."""
    release = program.resolve().parent.parent / "TRITON_VERSION"
    return release.read_text().strip() if release.is_file() else ""


def check_gpu() -> Finding:
    """The GPUs that the NVIDIA driver shows."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return Finding(name="GPU", required=False, state="missing", detail="no NVIDIA driver: everything runs on the CPU")
    status, output, errors = _run([tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"], 30)
    gpus = [line.strip() for line in output.splitlines() if line.strip()]
    if status != 0 or not gpus:
        advice = "the driver does not answer: `nvidia-smi` by hand tells more; in a container, start it with the GPUs"
        return Finding(name="GPU", required=False, state="warning", detail=_last_line(errors or output), advice=advice)
    return Finding(name="GPU", required=False, state="ok", detail="; ".join(gpus))


def check_huge_pages(setting: Path = HUGE_PAGES) -> Finding:
    """Whether memory of this process gets 2 MiB pages, which make lookups in large tables faster: some is asked for, and looked at."""
    if not setting.is_file():
        return Finding(name="huge pages", required=False, state="missing", detail="this system has none; lookups in large tables are slower")
    text = setting.read_text().strip()
    mode = text.partition("[")[2].partition("]")[0] or text
    share = try_huge_pages() if mode in ("always", "madvise") else None
    if share == 1 or (share is None and mode in ("always", "madvise")):
        detail = mode if share is None else f"{mode}; memory that asked for them got them"
        return Finding(name="huge pages", required=False, state="ok", detail=detail)
    got = mode if share is None else f"{mode}, but {share:.0%} of what was asked for was got"
    return Finding(
        name="huge pages", required=False, state="warning", detail=f"{got}; lookups in large tables are slower", advice=why_no_huge_pages(setting)
    )


def check_kernel(name: str, module: str, without: str) -> Finding:
    """Whether one of our kernels is compiled. It is compiled where that was not done before.

    Args:
        name: as the finding is called.
        module: has the kernel.
        without: what that means.
    """
    status, output, errors = _run([sys.executable, "-P", "-W", "ignore", "-m", module], PROBE_TIMEOUT_S)
    if status == 0:
        return Finding(name=name, required=False, state="ok", detail=f"compiled: {_last_line(output)}")
    detail = f"{_last_line(errors) or status}; {without}"
    return Finding(name=name, required=False, state="warning", detail=detail, advice="install a C compiler, such as gcc")


def examine(purposes: Sequence[str] = ALL_PURPOSES) -> Iterator[Finding]:
    """Run every check, several at once; takes about as long as importing torch five times.

    Args:
        purposes: what the environment is for: any of `train`, `export`, `serve`.
    """
    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        probed = pool.map(lambda probe: probe.run(purposes), PROBES)
        kernels = pool.map(lambda kernel: check_kernel(*kernel), KERNELS)
        yield from probed
    yield check_trio(
        installed_version("torch"), installed_version("torchrec"), installed_version("fbgemm-gpu-cpu") or installed_version("fbgemm-gpu")
    )
    triton = check_triton()
    yield triton
    numpy = check_numpy_for_triton(installed_version("numpy"))
    if numpy and triton.state == "ok":
        yield numpy
    yield check_gpu()
    yield check_huge_pages()
    yield from kernels


def configure_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the options of `emberline doctor`."""
    parser.add_argument("--for", dest="purpose", choices=("all", *ALL_PURPOSES), default="all", help="what this environment is for (default: all)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run_doctor(args: argparse.Namespace) -> int:
    """Print every finding; 1 where a required one fails."""
    findings = examine(ALL_PURPOSES if args.purpose == "all" else (args.purpose,))
    about = {"emberline": emberline.__version__, "python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count()}
    if args.json:
        seen = list(findings)
        failed = [finding.name for finding in seen if finding.failed]
        print(json.dumps({**about, "ok": not failed, "findings": [asdict(finding) for finding in seen]}, indent=1))
        return 1 if failed else 0
    print(f"emberline {about['emberline']}, Python {about['python']}, {about['platform']}, {about['cpus']} CPUs\n")
    seen = []
    for finding in findings:
        seen.append(finding)
        print(render(finding), flush=True)
    failed = [finding.name for finding in seen if finding.failed]
    print(f"\n{len(seen)} checks: {', '.join(failed)} must be put right" if failed else f"\n{len(seen)} checks: all that is needed works")
    return 1 if failed else 0


def render(finding: Finding) -> str:
    """One finding as text: a line, and a second one with the advice."""
    state = finding.state.upper() if finding.failed else finding.state
    line = f"  {state:<8} {finding.name:<16} {finding.version:<14} {finding.detail}".rstrip()
    return f"{line}\n           -> {finding.advice}" if finding.advice else line


def _pairing(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> tuple[int | None, str, str]:
    """Exit status (None: out of time), standard output and standard error of a child process; `environment` None: this process's own."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace", env=environment)
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OSError as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr
