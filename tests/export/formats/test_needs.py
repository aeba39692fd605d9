"""What is missing on this machine is told before any work begins: before a checkpoint is opened, and whatever else is asked for."""

import sys
from pathlib import Path

import pytest
import torch

from emberline.errors import ExportError, MissingDependencyError
from emberline.export.export import export_model
from emberline.export.formats.needs import require_needs


def test_nothing_is_missing_here() -> None:
    require_needs(("torchscript", "aoti", "onnx"))


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"ONNX needs the package '{package}': `pip install 'emberline\[onnx\]'`"):
        export_model(tmp_path / "nowhere", tmp_path / "models", "m", format="torchscript,aoti,onnx")
    require_needs(("torchscript", "aoti"))


def test_a_missing_compiler_is_told_first(tmp_path: Path) -> None:
    gone = str(tmp_path / "g++")
    with torch._inductor.config.patch({"cpp.cxx": (gone,)}):
        with pytest.raises(ExportError, match=r"^programs of format 'aoti' cannot be compiled: there is no working C\+\+ compiler: install g\+\+"):
            export_model(tmp_path / "nowhere", tmp_path / "models", "m", format="torchscript,aoti")
        require_needs(("torchscript", "onnx"))
    assert list(tmp_path.iterdir()) == []
