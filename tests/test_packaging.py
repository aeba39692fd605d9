"""The package as users get it: links, names, console script, the built wheel, and what importing serving costs."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("train", "export", "serving")
NOT_CODE = (".md",)


def run_python(code: str, cwd: Path, *, path: Path | None = None) -> str:
    """What `code` prints in a new process, with `path` first in its module path."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", PACKAGES)
def test_links_lead_to_the_folders(repository: Path, name: str) -> None:
    link = repository / "src" / "emberline" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../../{name}"
    assert link.resolve() == repository / name


def test_names_of_the_folders_are_not_taken_from_others(tmp_path: Path) -> None:
    code = f"import importlib.util; print([name for name in {PACKAGES!r} if importlib.util.find_spec(name)])"
    assert run_python(code, tmp_path) == "[]"


def test_each_package_has_one_module_object(tmp_path: Path) -> None:
    code = "import emberline.serving.artifact, sys; print([name for name in sys.modules if name.endswith('serving.artifact')])"
    assert run_python(code, tmp_path) == "['emberline.serving.artifact']"


def test_console_script() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="emberline")
    assert script.value == "emberline.cli:main"
    assert callable(script.load())


def test_serving_loads_no_training_package(tmp_path: Path) -> None:
    heavy = ("torchrec", "fbgemm_gpu", "pyarrow", "pandas", "tensorboard", "emberline.train", "emberline.export")
    code = f"import emberline.serving, sys; print([name for name in {heavy!r} if name in sys.modules])"
    assert run_python(code, tmp_path) == "[]"


def tracked_package_files(repository: Path) -> list[str]:
    """Tracked files of the package, as their paths in the wheel."""
    listing = subprocess.run(["git", "ls-files", "-z", "src/emberline", *PACKAGES], cwd=repository, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout: which files belong to the package is not known")
    names = [name for name in listing.stdout.split("\0") if name and (repository / name).is_file()]
    return [name.removeprefix("src/") if name.startswith("src/") else f"emberline/{name}" for name in names if not name.endswith(NOT_CODE)]


def copy_tracked(repository: Path, target: Path) -> None:
    """A clean tree, as a clone has it: setuptools would take over what an earlier build left behind."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    for name in listing.stdout.split("\0"):
        source = repository / name
        if name and (source.is_symlink() or source.is_file()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which is built from a clean tree."""
    tracked_package_files(repository)
    tree, output = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    copy_tracked(repository, tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", str(output), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = output.glob("*.whl")
    return built


def test_the_wheel_has_every_file(repository: Path, wheel: Path, said: list[str]) -> None:
    expected = set(tracked_package_files(repository))
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
        empty = sorted(name for name in there if not archive.read(name) and not name.endswith(("__init__.py", "py.typed")))
    assert sorted(expected - there) == []
    assert empty == []
    assert sorted(there - expected) == []
    said.append(f"packaging: {len(there)} files in the wheel")


def test_the_wheel_works_where_the_repository_is_not(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import json, emberline, emberline.cli, emberline.serving, emberline.train, emberline.export\n"
        "modules = (emberline, emberline.cli, emberline.serving, emberline.train, emberline.export)\n"
        "print(json.dumps([str(module.__file__) for module in modules]))"
    )
    files = json.loads(run_python(code, elsewhere, path=site))
    assert [file for file in files if not Path(file).is_relative_to(site)] == []
