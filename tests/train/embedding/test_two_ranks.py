"""ZCH tables whose rows lie on two ranks: means and sums of bags with ids of both, and of none."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.embedding.zch_on_ranks import BAGS, DIM
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked


def test_means_and_sums_over_both_ranks(tmp_path: Path) -> None:
    run_forked(tmp_path, [Job(2, [str(Path(__file__).with_name("zch_on_ranks.py")), str(tmp_path)])])
    found = [load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2)]
    for part in found:
        assert torch.equal(part["narrow"], part["wide"])  # ids of 32 bits are the same ids
        assert len(set(part["wide"].flatten().tolist())) > 2
    for place, name in enumerate(("mean", "sum")):
        row_of = {one: row for part in found for one, row in zip(part[f"{name}_emb/ids"].tolist(), part[f"{name}_emb/rows"].tolist(), strict=True)}
        table = torch.cat([part[f"{name}_emb/weight"] for part in found]).double()
        assert len({row_of[one] for rank in BAGS for bag in rank for one in bag}) == 6  # each id has a row of its own
        for part, bags in zip(found, BAGS, strict=True):
            for row, bag in enumerate(bags):
                total = sum((table[row_of[one]] for one in bag), torch.zeros(DIM, dtype=torch.float64))
                expected = total / max(len(bag), 1) if name == "mean" else total
                assert part["answer"][row, place * DIM :][:DIM].tolist() == pytest.approx(expected.tolist())
