"""Whether a program that was made elsewhere can run here, by what its entry tells: torch, libraries, device, and what its machine code is for.

A compiled program (`.pt2`) holds machine code and calls torch by an interface that changes from release to release, so all of that must be as it
was. TorchScript is read by any torch that knows its operators, on any device: another release is told of, and the golden sample decides.
"""

import importlib
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from emberline.errors import ArtifactError, first_line
from emberline.manifest import ProgramEntry

_COMPILED = ("aoti",)
_OF_ONE_DEVICE = ("aoti", "onnx")
_CPU_FACTS = Path("/proc/cpuinfo")
_INSTRUCTION_SETS = ("avx", "amx", "sse", "fma", "bmi", "f16c", "vaes", "vpclmul", "gfni", "popcnt", "movbe", "adx", "abm", "sha", "asimd", "sve")
"""How names of instruction sets that compilers use begin, in what Linux tells of a CPU."""


def made_here(entry: ProgramEntry) -> ProgramEntry:
    """The entry of a program that was made by this process: with versions, and what its machine code is for, unless it tells itself.

    Raises:
        ArtifactError: one of its libraries cannot be imported.
    """
    import_libraries(entry)
    arch = entry.arch or (architecture(torch.device(entry.device)) if entry.format in _COMPILED else "")
    return replace(entry, arch=arch, versions=versions_of(entry.libraries))


def require_fit(entry: ProgramEntry, device: torch.device) -> list[str]:
    """Make sure that a program can run here, after importing the libraries whose operators it calls.

    Args:
        entry: the program's.
        device: where the engine runs.

    Returns:
        What is otherwise than where it was made, and does not matter by itself: a sentence for each.

    Raises:
        ArtifactError: it cannot; the message says what to do.
    """
    import_libraries(entry)
    problems, notes = _device_problems(entry, device), _other_releases(entry)
    if entry.format in _COMPILED:
        problems += [*notes, *([] if problems else _architecture_problems(entry, device))]
    if problems:
        raise ArtifactError(f"{entry.file}: the {entry.role} program cannot run here: {'; '.join(problems)}. {_remedy(entry)}")
    return [f"{entry.file}: {note}" for note in notes]


def import_libraries(entry: ProgramEntry) -> None:
    """Import the modules that register a program's operators.

    Raises:
        ArtifactError: some are not installed; the message lists all of them.
    """
    missing = []
    for name in entry.libraries:
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:
            missing.append(f"{name} ({first_line(error)})")
    if missing:
        made = f"; it was made with {_listed(entry)}, on torch {torch.__version__} here: install what fits, or export again" if entry.versions else ""
        raise ArtifactError(f"{entry.file}: the {entry.role} program needs libraries that cannot be imported here: {', '.join(missing)}{made}")


def versions_of(libraries: Sequence[str]) -> dict[str, str]:
    """The versions of torch and of imported libraries, by module."""
    return {name: str(getattr(importlib.import_module(name), "__version__", "unknown")) for name in ("torch", *libraries)}


def architecture(device: torch.device) -> str:
    """What machine code that is made for a device here is for: `sm_90`, or a CPU and its instruction sets in order of the alphabet."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return " ".join((platform.machine(), *_instruction_sets()))


@cache
def _instruction_sets() -> tuple[str, ...]:
    """Those that Linux names for the first CPU; none where it tells nothing."""
    try:
        lines = _CPU_FACTS.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    flags = next((line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))), [])
    return tuple(sorted({flag for flag in flags if flag.startswith(_INSTRUCTION_SETS)}))


def _device_problems(entry: ProgramEntry, device: torch.device) -> list[str]:
    if entry.format not in _OF_ONE_DEVICE or device.type == entry.device:
        return []
    return [f"it was made for {entry.device}, and the engine is on {device.type} (open it with device={entry.device!r})"]


def _architecture_problems(entry: ProgramEntry, device: torch.device) -> list[str]:
    here = architecture(device)
    if device.type == "cuda":
        return [f"it was compiled for {entry.arch}, and this GPU is {here}"] if entry.arch != here else []
    machine, *wanted = entry.arch.split() or [""]
    if machine != (found := here.split()[0]):
        return [f"it was compiled for {machine or 'an unknown CPU'}, and this CPU is {found}"]
    lacking = sorted(set(wanted) - set(here.split()[1:]))
    return [f"it was compiled for a CPU that has {', '.join(lacking)}, which this one has not"] if lacking else []


def _other_releases(entry: ProgramEntry) -> list[str]:
    """Packages of another release than where the program was made; what follows a `+` names a build of one release."""
    here = versions_of(entry.libraries)
    told = {name: entry.versions.get(name, "of an unknown release") for name in here if name in entry.versions or entry.format in _COMPILED}
    pairs = [(name, made, here[name]) for name, made in told.items()]
    return [f"made with {name} {made}, and this is {name} {found}" for name, made, found in pairs if _release(made) != _release(found)]


def _release(version: str) -> str:
    return version.partition("+")[0]


def _remedy(entry: ProgramEntry) -> str:
    made = f" Or open it where it was made for: {_listed(entry)}, {entry.device}{f' {entry.arch}' if entry.device == 'cuda' else ''}."
    return "Export again on a machine like this one, or with --format torchscript, which runs on any." + (made if entry.versions else "")


def _listed(entry: ProgramEntry) -> str:
    return ", ".join(f"{name} {version}" for name, version in entry.versions.items())
