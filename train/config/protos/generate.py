"""Make the Python of the `.proto` files anew, or elsewhere for a comparison: `python -m emberline.train.config.protos.generate [FOLDER]`."""

import subprocess
import sys
from pathlib import Path

import emberline

_HERE = Path(__file__).parent
_IMPORT_PATH = "emberline/train/config/protos"
_STUB_HEAD = '# mypy: disable-error-code="type-arg"\n'
"""protoc's stubs leave out what their mappings hold."""


def generate(target: Path | None = None) -> list[Path]:
    """Run protoc over all `.proto` files.

    Args:
        target: the folder that gets `emberline/train/config/protos/*_pb2.py[i]`; None writes beside the `.proto` files.

    Returns:
        The files written.

    Raises:
        subprocess.CalledProcessError: protoc found an error.
    """
    root = Path(emberline.__file__).parent.parent
    out = target or root
    names = sorted(f"{_IMPORT_PATH}/{path.name}" for path in _HERE.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--python_out={out}", f"--pyi_out={out}", *names]
    subprocess.run(command, check=True)
    for name in names:
        stub = out / name.replace(".proto", "_pb2.pyi")
        stub.write_text(_STUB_HEAD + stub.read_text(encoding="utf-8"), encoding="utf-8")
    return [out / name.replace(".proto", suffix) for name in names for suffix in ("_pb2.py", "_pb2.pyi")]


if __name__ == "__main__":
    written = generate(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(f"{len(written)} files written")
