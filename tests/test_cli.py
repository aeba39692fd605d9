"""The command line: what it offers, what it loads, and the exit status of each outcome."""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from emberline import cli
from emberline.errors import ArtifactError, ConfigError

# The command line that users have: a name that goes away breaks them.
COMMANDS = (
    "train",
    "evaluate",
    "score",
    "import-torcheasyrec",
    "plan",
    "export",
    "inspect",
    "explain",
    "verify",
    "forget",
    "reshard",
    "expire",
    "increments",
    "serve",
    "triton-repository",
    "lookup",
    "predict",
    "probe",
    "loadtest",
    "canary",
    "demo",
    "doctor",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "emberline", *arguments], capture_output=True, text=True, check=False)


def test_the_commands_are_these() -> None:
    assert tuple(command.name for command in cli.COMMANDS) == COMMANDS


def test_help_lists_each_command_on_a_line() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in cli.COMMANDS:
        assert re.search(rf"^    {command.name}\s+{re.escape(command.summary)}$", done.stdout, re.MULTILINE)


def test_help_and_version_load_neither_torch_nor_numpy() -> None:
    code = """
import sys
from emberline.cli import main
try:
    main(["{}"])
except SystemExit as end:
    print(end.code, [name for name in ("torch", "numpy", "google") if name in sys.modules])
"""
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code.format(option)], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "0 []"


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "emberline 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("trian",), "invalid choice: 'trian'"),
        (("--fast", "doctor"), "unrecognized arguments: --fast"),
        (("doctor", "--jso"), "unrecognized arguments: --jso"),
    ],
)
def test_a_wrong_command_line_is_status_2(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_options_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"usage: emberline {name} ")
    assert f"example:\n  emberline {name}" in output


Runner = Callable[[argparse.Namespace], int]


def offer(monkeypatch: pytest.MonkeyPatch, run_try: Runner) -> None:
    """Make `emberline try --number N` a command that calls `run_try`."""

    def configure_try(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=0)

    module = ModuleType("emberline_try")
    vars(module).update(configure_try=configure_try, run_try=run_try)
    monkeypatch.setitem(sys.modules, "emberline_try", module)
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("try", "emberline_try", "Try.", "emberline try --number 3"),))


def fail(error: BaseException) -> Runner:
    def run_try(args: argparse.Namespace) -> int:
        raise error

    return run_try


def test_the_status_is_what_the_command_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, lambda args: int(args.number))
    assert cli.main(["try", "--number", "7"]) == 7


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("feature a: no such table", "x.config"), 2, "emberline: error: x.config: feature a: no such table\n"),
        (ArtifactError("models/m/1: manifest.json is missing"), 1, "emberline: error: models/m/1: manifest.json is missing\n"),
        (KeyboardInterrupt(), 130, "emberline: interrupted\n"),
    ],
)
def test_deliberate_errors_are_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    offer(monkeypatch, fail(error))
    assert cli.main(["try"]) == status
    assert capsys.readouterr().err == message


def test_other_errors_keep_their_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, fail(ZeroDivisionError("division by zero")))
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        cli.main(["try"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("try", "no_such_package.cli", "Try.", "emberline try"),))
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err == (
        "emberline: error: `emberline try` cannot load what it needs: No module named 'no_such_package'. "
        "Run `emberline doctor`: it tries each package and says what to do\n"
    )


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    code = """
import sys, types
from emberline import cli
module = types.ModuleType("emberline_try")
def run_try(args):
    for number in range(200_000):
        print(number)
    return 0
module.configure_try, module.run_try = lambda parser: None, run_try
sys.modules["emberline_try"] = module
cli.COMMANDS = (cli.Command("try", "emberline_try", "Try.", "emberline try"),)
sys.exit(cli.main(["try"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "0\n"
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(timeout=60) == 1
