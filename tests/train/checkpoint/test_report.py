"""What is told of checkpoints."""

from pathlib import Path

import pytest
import torch

from emberline import cli
from emberline.errors import ConfigError
from emberline.train.checkpoint import report, store
from emberline.train.checkpoint.report import checkpoint_lines, reshard_lines
from emberline.train.checkpoint.tensors import TensorInfo, read_tensors
from emberline.train.zch import MIXED, owner_of

FREE = 2**63 - 1


def cells(lines: list[str], first: str) -> list[str]:
    """The cells of the row that begins so."""
    (line,) = (line for line in lines if line.split("  ")[0] == first)
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_tables_moments_ids_and_the_rest(finished_run: Path) -> None:
    lines = checkpoint_lines(store.read_checkpoint(finished_run / "step-4"))
    ids = read_tensors(finished_run / "step-4" / "tensors", "zch/user_emb/raw_ids")["zch/user_emb/raw_ids"]
    assert lines[0] == "  epoch 0, 128 rows into it, 4 optimiser steps; written by 1 rank"
    assert cells(lines, "table") == ["table", "rows", "dim", "type", "moments", "updates", "ids", "bytes"]
    assert cells(lines, "item_emb") == ["item_emb", "50", "8", "float32", "sum", "4", "-", "3,200"]
    assert cells(lines, "user_emb") == ["user_emb", "40", "8", "float32", "sum", "4", str(int((ids != FREE).sum())), "2,560"]
    assert cells(lines, "hour_emb") == ["hour_emb", "24", "8", "float32", "-", "-", "-", "768"]
    assert cells(lines, "also") == ["also", "tensors", "bytes"]
    stored = read_tensors(finished_run / "step-4" / "tensors")
    for prefix, label in (("dense/", "dense parameters and buffers"), ("dense_optim/", "the dense optimiser's state")):
        own = [tensor for name, tensor in stored.items() if name.startswith(prefix)]
        assert cells(lines, label)[1:] == [str(len(own)), f"{sum(tensor.numel() * tensor.element_size() for tensor in own):,}"]


def test_moments_by_row_are_called_such() -> None:
    def row(moments: dict[str, tuple[int, ...]], cuts: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        infos = {name: TensorInfo(shape, torch.float32) for name, shape in moments.items()}
        return report._row(report._Table("t", TensorInfo((7, 16), torch.bfloat16), infos, 3), cuts)

    assert row({"exp_avg": (7, 16), "exp_avg_sq": (7,)}, {}) == ("t", "7", "16", "bfloat16", "exp_avg, exp_avg_sq by row", "3", "-", f"{224 + 476}")
    assert row({"exp_avg": (7, 16), "sum": (7, 2)}, {"t": (0, 8)})[4] == "exp_avg, sum by row"
    assert row({"sum": (7, 16)}, {"t": (0, 8)})[4] == "sum"
    assert row({}, {})[4] == "-"


def test_other_numbers_of_ranks(finished_run: Path) -> None:
    lines = reshard_lines(finished_run, 1)
    assert lines[0] == f"{finished_run}/step-4: step 4, written by 1 rank"
    assert lines[1].startswith("nothing needs to be rewritten: `emberline train --resume` on 1 rank takes up")
    ids = read_tensors(finished_run / "step-4" / "tensors", "zch/user_emb/raw_ids")["zch/user_emb/raw_ids"]
    owned = [int(one) for one in ids if one != FREE]
    assert cells(lines, "user_emb") == ["user_emb", "40", str(len(owned)), str(len(owned)), "0", "0"]
    assert any(one < 0 for one in owned)
    counts = torch.bincount(owner_of(torch.tensor(owned), 2, MIXED), minlength=2).tolist()
    kept = [min(count, 19) for count in counts]
    table = cells(reshard_lines(finished_run, 2), "user_emb")
    assert table[:4] == ["user_emb", "40", str(len(owned)), f"{min(kept)} to {max(kept)}"]
    assert table[5] == str(len(owned) - sum(kept))
    with pytest.raises(ConfigError, match="table 'user_emb': 40 rows cannot be cut into 50 equal blocks with none empty"):
        reshard_lines(finished_run, 50)


def test_the_commands(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reshard", str(finished_run / "step-2"), "--world-size", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{finished_run}/step-2: step 2, written by 1 rank\nnothing needs to be rewritten")
    assert cli.main(["inspect", str(finished_run)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "checkpoint of step 4"
    assert any(line.startswith("user_emb ") for line in told)
    assert cli.main(["verify", str(finished_run)]) == 0
    assert "all as they were written" in capsys.readouterr().out
    assert cli.main(["reshard", str(finished_run / "nowhere"), "--world-size", "2"]) == 1
    with pytest.raises(SystemExit):
        cli.main(["reshard", str(finished_run), "--world-size", "0"])
