"""Rules that no linter of ours knows, over every Python file that git tracks."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Who may read the environment, and why. Nobody may change it.
READS_ENVIRONMENT = {
    "serving/triton/launcher.py": "the environment of the Triton process that it starts",
    "src/emberline/doctor.py": "the environment of the Triton process that it tries",
    "train/sharding/process_group.py": "what torchrun tells its workers",
}
# Who may import pickle, and why. Nobody may call its load, loads, dump or dumps.
IMPORTS_PICKLE = {
    "train/checkpoint/tensors.py": "PyTorch's distributed checkpoint keeps its index as a pickle: read by an unpickler that knows only its classes",
}
MAX_FUNCTION_LINES = 80
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
RUNS_TEXT = {"eval", "exec", "builtins.eval", "builtins.exec"}
CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__"}
TESTS_AND_TOOLS = ("tests/", "benchmarks/")


@dataclass(frozen=True)
class Source:
    path: str
    text: str
    tree: ast.Module

    @property
    def shipped(self) -> bool:
        return not self.path.startswith(TESTS_AND_TOOLS)


def tracked_files(repository: Path) -> list[Path]:
    """What git tracks; outside a git checkout, what lies in the project's folders."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        folders = ("src/emberline", "train", "export", "serving", "model_repository", "tests", "examples", "benchmarks")
        return [path for folder in folders for path in (repository / folder).rglob("*") if path.is_file()]
    return [path for name in listing.stdout.split("\0") if name and (path := repository / name).is_file()]


@pytest.fixture(scope="module")
def sources(repository: Path, said: list[str]) -> list[Source]:
    found = []
    for path in tracked_files(repository):
        if path.suffix == ".py" and not path.name.endswith("_pb2.py"):
            text = path.read_text()
            found.append(Source(path.relative_to(repository).as_posix(), text, ast.parse(text)))
    num_functions = sum(isinstance(node, FUNCTIONS) for source in found for node in ast.walk(source.tree))
    said.append(f"house rules: {len(found)} Python files, {num_functions} functions seen")
    assert len(found) > 10
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def dotted(node: ast.AST) -> str:
    """`os.environ` for that attribute; empty for what is no plain dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def environment_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and kind (`read` or `change`) of every use of the process's environment."""
    names = {"os.environ", "os.environb"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and any(alias.name in ("environ", "getenv", "putenv") for alias in node.names):
            yield node.lineno, "change"
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name in ("os.putenv", "os.unsetenv"):
                yield node.lineno, "change"
            elif name in names or name == "os.getenv":
                yield node.lineno, "read"
            elif dotted(node.value) in names and node.attr in CHANGES:
                yield node.lineno, "change"
        elif isinstance(node, ast.Subscript) and dotted(node.value) in names and not isinstance(node.ctx, ast.Load):
            yield node.lineno, "change"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(dotted(target) in names for target in targets):
                yield node.lineno, "change"


def test_nothing_changes_the_environment(sources: list[Source]) -> None:
    assert [f"{source.path}:{line}" for source in sources for line, kind in environment_uses(source.tree) if kind == "change"] == []


def test_no_environment_variable_is_configuration(sources: list[Source]) -> None:
    readers = {source.path for source in sources if source.shipped and any(kind == "read" for _, kind in environment_uses(source.tree))}
    assert readers - set(READS_ENVIRONMENT) == set()


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("os.environ['A'] = 'b'", ["change", "read"]),
        ("os.environ.update(a='b')", ["change", "read"]),
        ("del os.environ['A']", ["change", "read"]),
        ("os.environ |= {}", ["change", "read"]),
        ("os.putenv('A', 'b')", ["change"]),
        ("from os import environ", ["change"]),
        ("x = os.environ.get('A')", ["read"]),
        ("x = os.getenv('A')", ["read"]),
        ("x = {**os.environ, 'A': 'b'}", ["read"]),
        ("x = environment['A']", []),
    ],
)
def test_every_way_to_the_environment_is_seen(code: str, kinds: list[str]) -> None:
    assert sorted(kind for _, kind in environment_uses(ast.parse(code))) == kinds


def dangerous_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what runs text as code, or reads pickles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in RUNS_TEXT or name in {f"{module}.{function}" for module in PICKLES for function in ("load", "loads", "dump", "dumps")}:
                yield node.lineno, name
            if name == "torch.load" and not any(
                key.arg == "weights_only" and isinstance(key.value, ast.Constant) and key.value.value is True for key in node.keywords
            ):
                yield node.lineno, "torch.load without weights_only=True"
            if name.endswith((".load", ".loads")) and any(
                key.arg == "allow_pickle" and not (isinstance(key.value, ast.Constant) and key.value.value is False) for key in node.keywords
            ):
                yield node.lineno, "allow_pickle"
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PICKLES:
            yield node.lineno, node.module


def test_no_text_is_run_and_nothing_is_unpickled(sources: list[Source]) -> None:
    uses = [(source.path, line, name) for source in sources if source.shipped for line, name in dangerous_uses(source.tree)]
    assert [f"{path}:{line}: {name}" for path, line, name in uses if not (name == "pickle" and path in IMPORTS_PICKLE)] == []


def test_what_is_allowed_is_still_needed(sources: list[Source]) -> None:
    there = {source.path: source for source in sources}
    assert [path for path in READS_ENVIRONMENT if "os.environ" not in there[path].text] == []
    assert [path for path in IMPORTS_PICKLE if "import pickle" not in there[path].text] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("eval('1')", True),
        ("model.eval()", False),
        ("import pickle", True),
        ("pickle.loads(data)", True),
        ("from cloudpickle import dumps", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=True)", False),
        ("numpy.load(path, allow_pickle=True)", True),
    ],
)
def test_every_danger_is_seen(code: str, found: bool) -> None:
    assert bool(list(dangerous_uses(ast.parse(code)))) == found


def test_no_function_is_long(sources: list[Source]) -> None:
    long = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                num_lines = node.end_lineno - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    long.append(f"{source.path}: {node.name} has {num_lines} lines")
    assert long == []


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_imports_are_absolute_and_inside_the_package(sources: list[Source]) -> None:
    names = [(source.path, name) for source in sources for node in ast.walk(source.tree) for name in imported_names(node)]
    assert [f"{path}: {name}" for path, name in names if name.split(".")[0] in ("", "train", "export", "serving", "src")] == []


def test_nothing_is_left_unfinished(sources: list[Source]) -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X:", "NotImplemented" + "Error")
    assert [f"{source.path}: {mark}" for source in sources if source.shipped for mark in marks if mark in source.text] == []
