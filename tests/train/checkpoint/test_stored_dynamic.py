"""Tables that grow in a checkpoint, read by any number of ranks."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import CheckpointError
from emberline.train.checkpoint import chunks, stored_dynamic
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.tensors import read_tensors, save_tensors
from tests.train.checkpoint.dynamic_files import assert_same, part_of, state_of, stored, vectors_of, write_states

EDGES = [-(2**63), -1, 0, 1, 2**63 - 1]
KEYS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES), max_size=30, unique=True)
DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


@settings(max_examples=25, deadline=None)
@given(keys=KEYS, waiting=KEYS, written=st.integers(1, 4), read=st.integers(1, 4), dtype=DTYPES)
def test_any_number_of_ranks_reads_what_any_other_wrote(
    keys: list[int], waiting: list[int], written: int, read: int, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counted = {key: place + 1 for place, key in enumerate(waiting)}
    state = state_of(keys, step=9, dtype=dtype, counted=counted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_dynamic, "BLOCK_ROWS", 4)
        patch.setattr(chunks, "MAX_PIECE_BYTES", 40)
        patch.setattr(stored_dynamic, "ASIDE_BYTES", 30)
        folder = tmp_path_factory.mktemp("run")
        table = stored(write_states(folder, 9, {"t": state}, written), "t")
        for rank in range(read):
            assert_same(table.state(rank, read, aside=folder if rank % 2 else None), part_of(state, rank, read))
    assert [path.name for path in folder.iterdir()] == ["step-9"]


def test_vectors_by_raw_ids(tmp_path: Path) -> None:
    state = state_of([*EDGES, 5, 70000], dtype=torch.float16)
    rows = DynamicRows(stored(write_states(tmp_path, 1, {"t": state}, 3), "t"))
    asked = torch.tensor([5, 6, 2**63 - 1, -(2**63), -2, 70000, 5])
    known = torch.tensor([True, False, True, True, False, True, True])
    wanted = torch.where(known.unsqueeze(1), vectors_of(asked), torch.tensor(0.25)).half()
    assert torch.equal(rows.take(asked), wanted)
    assert torch.equal(rows.find(asked) >= 0, known)
    nothing = DynamicRows(stored(write_states(tmp_path / "none", 1, {"t": state_of([])}), "t"))
    assert nothing.take(asked).tolist() == [[0.25] * 3] * 7
    assert nothing.take(asked[:0]).shape == (0, 3)


def test_files_grow_with_ids(tmp_path: Path) -> None:
    sizes = []
    for count in (10, 1000, 100000):
        path = write_states(tmp_path / str(count), 1, {"t": state_of(range(count))})
        sizes.append(sum(file.stat().st_size for file in (path / "tensors").glob("*.distcp")))
    row = 8 * 3 + 4 * (3 + 1 + 3)
    assert sizes[1] - sizes[0] == pytest.approx(990 * row, rel=0.1)
    assert sizes[2] - sizes[1] == pytest.approx(99000 * row, rel=0.01)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = write_states(tmp_path, 1, {"t": state_of([1, 2, 3])})
    whole = read_tensors(path / "tensors")

    def opened(**changed: torch.Tensor | None) -> None:
        tensors = {**whole, **{f"dynamic/t/{name}": tensor for name, tensor in changed.items() if tensor is not None}}
        for name, tensor in changed.items():
            if tensor is None:
                del tensors[f"dynamic/t/{name}"]
        save_tensors(path / "tensors", tensors)
        stored(path, "t").state(0, 1)

    for part in ("keys", "scores", "numbers", "default", "counts"):
        with pytest.raises(CheckpointError, match=f"dynamic/t/{part} missing"):
            opened(**{part: None})
    with pytest.raises(CheckpointError, match=r"dynamic/t/last_steps is int64 \[2\], where int64 \[3\] is needed"):
        opened(last_steps=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(CheckpointError, match=r"dynamic/t/sum is float32 \[2, 3\], where 3 rows are needed"):
        opened(sum=torch.zeros(2, 3))
    with pytest.raises(CheckpointError, match="dynamic/t/keys has the id 2 twice"):
        opened(keys=torch.tensor([1, 2, 2]))
    with pytest.raises(CheckpointError, match="dynamic/t/counted_keys has the id -4 twice"):
        opened(counted_keys=torch.tensor([-4, 5, -4]), counts=torch.ones(3, dtype=torch.int64))
    with pytest.raises(CheckpointError, match=r"dynamic/t/counted_keys is int64 \[\], where int64 \[0\] is needed"):
        opened(counted_keys=torch.tensor(5))
    with pytest.raises(CheckpointError, match="dynamic/t/numbers is float32"):
        opened(numbers=whole["dynamic/t/numbers"].float())
    with pytest.raises(CheckpointError, match=r"dynamic/t/numbers is int64 \[1, 2\], and the manifest names step, updates"):
        opened(numbers=torch.zeros(1, 2, dtype=torch.int64))
    opened()
