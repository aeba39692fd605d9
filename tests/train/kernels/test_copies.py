"""Tables of which every rank has a copy: the copies are equal to the bit, and learn what one table learns from all rows."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from emberline.train.checkpoint.tensors import read_index, read_tensors
from emberline.train.kernels.copies import _packed, _unpacked
from emberline.train.kernels.segments import by_row
from emberline.train.sharding.process_group import process_group
from tests.train.jobs import Job
from tests.train.kernels.copy_runs import BAGS, CASES, train
from tests.train.rank_runs import run_forked

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
SCRIPT = str(Path(__file__).with_name("copy_runs.py"))
NUM_RANKS = (2, 4)
TOLERANCES = {"by_chance": 0.05}
"""Of weights that are rounded by chance; of others 1e-5."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copies")
    run_forked(folder, [Job(ranks, [SCRIPT, str(folder)]) for ranks in NUM_RANKS])
    return folder


def held(runs: Path, case: str, ranks: int) -> list[dict[str, Tensor]]:
    return [load_file(runs / f"{case}-on-{ranks}-{rank}.safetensors") for rank in range(ranks)]


@pytest.mark.parametrize("ranks", NUM_RANKS)
@pytest.mark.parametrize("case", CASES)
def test_copies_are_equal_to_the_bit(runs: Path, case: str, ranks: int) -> None:
    first, *others = held(runs, case, ranks)
    tables = {*BAGS, "steps"} - {"other"}
    names = {name for name in first if name.removeprefix("drawn/").split("/")[0] in tables}
    assert {name.split("/")[1] for name in names if name.startswith("drawn/")} == tables  # one draw for all
    assert {name.split("/")[0] for name in names if name.endswith("/weight")} == tables
    for other in others:
        for name in names:
            assert torch.equal(other[name], first[name]), name
    assert ("other/weight" in first, "other/weight" in others[-1]) == (False, True)


@pytest.mark.parametrize("case", CASES)
def test_they_learn_what_one_table_does(runs: Path, case: str, tmp_path: Path) -> None:
    with process_group() as alone:
        own = train(CASES[case], alone, tmp_path / "alone", copies=False)
    wanted, tolerance = read_tensors(tmp_path / "alone"), TOLERANCES.get(case, 1e-5)
    for ranks in NUM_RANKS:
        found = read_tensors(runs / f"{case}-on-{ranks}")
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, atol=tolerance, rtol=tolerance, msg=name)
        for rank in held(runs, case, ranks):
            others = {name for name in own if name.startswith(("dense/", "ema/", "scaler/"))}
            for name in others:
                torch.testing.assert_close(rank[name], own[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("ranks", NUM_RANKS)
def test_a_checkpoint_has_each_table_once(runs: Path, ranks: int) -> None:
    index = read_index(runs / f"adam-on-{ranks}")
    for table, rows in {**BAGS, "steps": 6}.items():
        for part in ("weight", *(() if table == "frozen" else ("exp_avg", "exp_avg_sq"))):
            entry = index.state_dict_metadata[f"tables/{table}/{part}"]
            assert isinstance(entry, TensorStorageMetadata)
            assert sum(chunk.sizes.numel() for chunk in entry.chunks) == entry.size.numel()
            assert entry.size[0] == rows
            assert len(entry.chunks) == (1 if table == "other" else min(rows, ranks))


def test_rows_and_sums_travel_as_one_tensor() -> None:
    ids = (torch.tensor([5, 2, 5]), torch.empty(0, dtype=torch.int64), torch.tensor([1 << 40]))
    own = [by_row(one, torch.arange(len(one) * dim).view(-1, dim).float() + 0.5) for one, dim in zip(ids, (3, 2, 1), strict=True)]
    packed = _packed(own)
    assert (packed.dtype, len(packed) % 2) == (torch.int32, 0)
    (first, sums), (nothing, none), (far, one) = _unpacked(torch.cat([packed, torch.zeros(4, dtype=torch.int32)]), own)
    assert (first.tolist(), sums.tolist()) == ([2, 5], [[3.5, 4.5, 5.5], [7.0, 9.0, 11.0]])
    assert (nothing.tolist(), none.shape) == ([], (0, 2))
    assert (far.tolist(), one.tolist()) == ([1 << 40], [[0.5]])
