"""What a user may ask for, and how far answers may be off then."""

import pytest
import torch

from emberline.errors import ExportError
from emberline.export.program_options import ProgramOptions
from emberline.manifest import ProgramEntry


@pytest.mark.parametrize(
    ("formats", "wanted"),
    [
        ("torchscript", ("torchscript",)),
        ("onnx, torchscript", ("torchscript", "onnx")),
        (["onnx", "aoti,onnx"], ("aoti", "onnx")),
    ],
)
def test_formats_come_in_one_order_and_once(formats: str | list[str], wanted: tuple[str, ...]) -> None:
    assert ProgramOptions.of(formats).formats == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formats": "xla"}, "unknown format 'xla'; known: torchscript, aoti, onnx"),
        ({"formats": "onnx,"}, "unknown format ''"),
        ({"formats": []}, "no format is given"),
        ({"formats": "aoti", "precision": "fp8"}, "unknown precision 'fp8'; known: fp32, bf16, fp16"),
        ({"formats": "aoti", "device": "tpu"}, "unknown device 'tpu'; known: cpu, cuda"),
        ({"formats": "torchscript,onnx", "precision": "bf16"}, "precision 'bf16' cannot be had with format 'onnx'"),
        ({"formats": "onnx", "device": "cuda"}, "device 'cuda' is what format 'aoti' compiles for, and onnx would not use it"),
        ({"formats": "aoti", "device": "cuda"}, "device 'cuda' is not there: torch .* sees no CUDA device"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExportError, match=message):
        ProgramOptions.of(**arguments)  # type: ignore[arg-type]


def test_bounds_go_by_format_precision_and_the_type_of_groups() -> None:
    plain, half = ProgramOptions.of("torchscript,aoti,onnx"), ProgramOptions.of("aoti", precision="bf16")
    assert [plain.bound(format, "outputs", "fp32") for format in plain.formats] == [1e-6, 1e-5, 1e-5]
    assert plain.bound("aoti", "groups", "fp16") == torch.finfo(torch.float16).eps
    assert (half.bound("aoti", "outputs", "fp32"), half.bound("aoti", "full", "fp32"), half.bound("aoti", "groups", "fp32")) == (2**-5, 2**-5, 1e-5)


def test_a_deltas_options_are_those_of_its_version() -> None:
    programs = [
        ProgramEntry(role="outputs", file="programs/dense.pt2", format="aoti", device="cuda", precision="bf16"),
        ProgramEntry(role="groups", file="programs/groups.ts", format="torchscript"),
        ProgramEntry(role="full", file="programs/full.ts", format="torchscript", precision="bf16"),
    ]
    wanted = ProgramOptions(formats=("torchscript", "aoti"), precision="bf16", full=True, device="cuda")
    assert ProgramOptions.as_in(programs) == wanted
