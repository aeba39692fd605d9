"""Certificates for tests, made by the program `openssl`."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates. Where there is no `openssl` the test is skipped.

    Args:
        folder: where files go.
        name: of the authority.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the program openssl, which makes the certificates of this test, is not installed")
        self._folder, self._name = folder, name
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        _run(*request, "-keyout", str(self._key), "-out", str(self.cert))

    def sign(self, name: str, alternatives: str = "IP:127.0.0.1,DNS:localhost", *, days: int = 2) -> Pair:
        """A certificate; of -1 days it is past already."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternatives}\n")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(pair.key)]
        _run("req", *key, "-subj", f"/CN={name}", "-out", str(request))
        by = ["-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial", "-days", str(days), "-extfile", str(extensions)]
        _run("x509", "-req", "-in", str(request), *by, "-out", str(pair.cert))
        return pair


def _run(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
