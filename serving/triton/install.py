"""Find a Triton Inference Server on this machine: `tritonserver` on PATH, or the one inside the nvidia-pytriton wheel."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emberline.errors import MissingDependencyError

_STUB = "triton_python_backend_stub"


@dataclass(frozen=True, kw_only=True)
class TritonInstall:
    """A server that can be started.

    Args:
        program: the `tritonserver` binary.
        wheel: the wheel's folder `pytriton/tritonserver`; None for a server on PATH, which has its own backends.
    """

    program: Path
    wheel: Path | None = None

    def assemble_backends(self, target: Path) -> Path | None:
        """Lay out the Python backend with the stub of the running Python; None where the server has its own.

        Args:
            target: an empty or missing folder.
        """
        if self.wheel is None:
            return None
        folder = target / "python"
        folder.mkdir(parents=True)
        for path in (self.wheel / "backends" / "python").iterdir():
            if path.is_file():
                (folder / path.name).symlink_to(path)
        (folder / _STUB).symlink_to(_stub(self.wheel))
        return target

    def environment(self, base: Mapping[str, str]) -> Mapping[str, str]:
        """The server's environment: `base`, with the running Python first, where the stub looks for packages."""
        found = dict(base)
        found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found.get("PATH", "")])
        if self.wheel is not None:
            libraries = [str(self.wheel.parent.parent / "nvidia_pytriton.libs"), str(sysconfig.get_config_var("LIBDIR") or "")]
            found["LD_LIBRARY_PATH"] = os.pathsep.join([path for path in (*libraries, found.get("LD_LIBRARY_PATH", "")) if path])
        return found


def find_triton() -> TritonInstall:
    """The server that `emberline serve --backend triton` starts: the one on PATH, else the wheel's.

    Raises:
        MissingDependencyError: there is none, or the wheel has no stub for this Python.
    """
    if on_path := shutil.which("tritonserver"):
        return TritonInstall(program=Path(on_path))
    package = importlib.util.find_spec("pytriton")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError(
            "Triton Inference Server is not installed: there is no tritonserver on PATH, and no nvidia-pytriton in this Python environment."
            " Install it with: pip install --no-deps nvidia-pytriton==0.7.0"
        )
    wheel = Path(package.submodule_search_locations[0]) / "tritonserver"
    _stub(wheel)
    return TritonInstall(program=wheel / "bin" / "tritonserver", wheel=wheel)


def _stub(wheel: Path) -> Path:
    """The wheel's Python process for the running Python."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = wheel / "python_backend_stubs" / version / _STUB
    if not path.is_file():
        have = ", ".join(sorted(folder.parent.name for folder in wheel.glob(f"python_backend_stubs/*/{_STUB}"))) or "none"
        raise MissingDependencyError(f"nvidia-pytriton has no Python backend for Python {version}; it has {have}")
    return path
