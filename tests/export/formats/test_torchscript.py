"""TorchScript programs: what is written answers as the module does, and what cannot be is refused with a reason."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from emberline.errors import ExportError
from emberline.export.formats.check import ProgramSource
from emberline.export.formats.torchscript import Trace, find_libraries, write_torchscript
from emberline.manifest import ProgramEntry
from emberline.program_inputs import ProgramInput

_BOUND = 1e-6
_INPUTS = tuple(ProgramInput(name=name, dtype="float32", dims=("B", width)) for name, width in (("pooled", 6), ("dense", 2)))


class _Net(nn.Module):
    """Pooled [B, 6] and dense [B, 2] -> logits [B] and two halves added up [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(8, 1)

    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.drop(self.norm(torch.cat([pooled, dense], dim=1)))
        return self.linear(x).squeeze(1), x.reshape(-1, 2, 4).sum(dim=1)


def _trained_net() -> _Net:
    torch.manual_seed(3)
    net = _Net().train()
    for _ in range(3):
        net(torch.randn(16, 6) + 1, torch.randn(16, 2))
    return net


def _write(module: nn.Module, path: Path) -> ProgramEntry:
    source = _source(module)
    return write_torchscript(source, Trace.of(source), path, _BOUND)


def _source(module: nn.Module) -> ProgramSource:
    return ProgramSource(module.eval(), _INPUTS, ("logits", "halves"), "outputs")


def test_written_program_equals_the_module_in_eval_mode_though_it_came_in_train_mode(tmp_path: Path) -> None:
    net = _trained_net()
    entry = _write(net, tmp_path / "programs" / "dense.ts")
    assert entry == ProgramEntry(role="outputs", file="programs/dense.ts", format="torchscript", device="cpu", libraries=())
    load: Any = torch.jit.load
    loaded = load(str(tmp_path / entry.file))
    mean, variance = net.norm.running_mean, net.norm.running_var
    assert mean is not None
    assert variance is not None
    for rows in (0, 1, 2, 5, 100):
        pooled, dense = torch.randn(rows, 6), torch.randn(rows, 2)
        x = (torch.cat([pooled, dense], dim=1) - mean) / torch.sqrt(variance + net.norm.eps)
        logits, halves = loaded(pooled, dense)
        torch.testing.assert_close(logits, x @ net.linear.weight[0] + net.linear.bias, rtol=0, atol=_BOUND)
        torch.testing.assert_close(halves, x[:, :4] + x[:, 4:], rtol=0, atol=_BOUND)


def test_program_loads_in_a_process_that_imports_only_torch(tmp_path: Path) -> None:
    _write(_trained_net(), tmp_path / "dense.ts")
    script = "import torch, sys; print(torch.jit.load(sys.argv[1])(torch.zeros(1, 6), torch.zeros(1, 2))[1].shape)"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "dense.ts")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([1, 4])"


class _AlwaysDrops(_Net):
    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (nn.functional.dropout(torch.cat([pooled, dense], dim=1), 0.5, training=True),)


class _FrozenRows(_Net):
    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (pooled if len(pooled) != 7 else pooled * 2,)


class _RefusesEmpty(_Net):
    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (pooled.max().expand(len(pooled)),)


class _Raises(_Net):
    def forward(self, pooled: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise ValueError("no such luck")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_AlwaysDrops(), "not deterministic in eval mode: two calls on 1 rows differ"),
        (_FrozenRows(), "the trace of the outputs program differs from the model on 7 rows.*while it was traced"),
        (_RefusesEmpty(), "fails on 0 rows"),
        (_Raises(), "cannot be traced: ValueError: no such luck"),
    ],
)
def test_module_that_would_answer_wrongly_is_refused_and_not_written(tmp_path: Path, module: nn.Module, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        _write(module, tmp_path / "dense.ts")
    assert list(tmp_path.iterdir()) == []


def test_operator_libraries_are_named() -> None:
    pytest.importorskip("fbgemm_gpu")
    from_fbgemm = torch.jit.CompilationUnit("def f(x):\n  return torch.ops.fbgemm.asynchronous_complete_cumsum(x)\n").f

    class _Graph:
        inlined_graph = from_fbgemm.graph

    assert find_libraries(_Graph()) == ("fbgemm_gpu",)  # type: ignore[arg-type]


def test_a_digest_is_the_same_until_a_weight_or_the_code_changes() -> None:
    net = _trained_net().eval()
    digests = [Trace.of(_source(net)).digest() for _ in range(2)]
    assert digests[0] == digests[1]
    with torch.no_grad():
        net.linear.bias.copy_(torch.nextafter(net.linear.bias, torch.ones(1)))
    digests.append(Trace.of(_source(net)).digest())
    net.norm.eps *= 2
    digests.append(Trace.of(_source(net)).digest())
    assert len(set(digests)) == 3
