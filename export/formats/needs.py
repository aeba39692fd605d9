"""What the making of each format needs of this machine, asked before any work begins."""

from collections.abc import Sequence

from emberline.errors import ExportError, MissingDependencyError

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_needs(formats: Sequence[str]) -> None:
    """Find out whether programs of these formats can be made here at all.

    Args:
        formats: as `ProgramOptions` has them.

    Raises:
        MissingDependencyError: a package is not installed.
        ExportError: there is no C++ compiler.
    """
    if "onnx" in formats:
        _require_packages()
    if "aoti" in formats:
        _require_compiler()


def no_compiler(what: str) -> ExportError:
    """That there is none."""
    return ExportError(f"{what} cannot be compiled: there is no working C++ compiler: install g++; --format torchscript needs no compiler")


def _require_packages() -> None:
    for package in _ONNX_PACKAGES:
        try:
            __import__(package)
        except ImportError as error:
            raise MissingDependencyError(f"ONNX needs the package {package!r}: `pip install 'emberline[onnx]'`") from error


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise no_compiler("programs of format 'aoti'") from error
