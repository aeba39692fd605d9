"""Tables that grow, laid out for an artifact: each id's row, found by its id and in blocks, against dictionaries; and over what an artifact has."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import CheckpointError, ExportError
from emberline.export.dynamic_tables import LEAST_SPARE, DynamicTable
from emberline.export.row_source import RowSource
from emberline.serving.quantized import decode_rows, encode_rows
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.stored_dynamic import DynamicNotes, StoredDynamic
from emberline.train.checkpoint.tensors import save_tensors
from tests.export.dynamic_runs import ODD_KEYS, Grown, grown

NOTES = DynamicNotes(max_capacity=300, score_strategy="STEP", numbers=("step", "updates"))
IDS = st.one_of(st.integers(-9, 9), st.sampled_from(ODD_KEYS), st.integers(-(2**63), 2**63 - 1))


def stored(folder: Path, table: Grown, ranks: int = 1, notes: DynamicNotes = NOTES) -> DynamicRows:
    if not folder.exists():
        save_tensors(folder, table.tensors("t", ranks))
    return DynamicRows(StoredDynamic(folder, "t", notes))


def owners(table: DynamicTable) -> dict[int, int]:
    return dict(zip(table.remap.raw_ids.tolist(), table.remap.rows.tolist(), strict=True))


def require_rows(found: DynamicTable, wanted: Grown, rows: Mapping[int, int]) -> None:
    """Every row is that of its id, the default vector the last one, all others zeros; whole, in blocks, picked, and by ids."""
    whole = np.zeros(found.shape)
    for one, row in rows.items():
        whole[row] = wanted.vectors[one]
    whole[-1] = wanted.default
    read = found.read(0, found.shape[0])
    assert read.dtype == wanted.dtype
    np.testing.assert_array_equal(read.double().numpy(), whole)
    blocks = [found.read(first, min(first + 7, len(whole))) for first in range(0, len(whole), 7)]
    assert torch.equal(torch.cat(blocks), read)
    picked = torch.tensor([len(whole) - 1, *rows.values(), len(whole) - 1])
    np.testing.assert_array_equal(found.take(picked).double().numpy(), whole[picked.numpy()])
    asked = torch.tensor([*rows, 123, *ODD_KEYS, 123])
    assert found.find(asked).tolist() == [rows.get(one, len(whole) - 1) for one in asked.tolist()]
    assert found.find(asked[:0]).tolist() == []


@pytest.mark.parametrize(("ranks", "dtype"), [(1, torch.float32), (2, torch.float16), (3, torch.bfloat16)])
@pytest.mark.parametrize("count", [0, 1, 2, 150, 300])
def test_a_new_artifact_has_ids_ascending_then_spare_rows_then_the_default(tmp_path: Path, ranks: int, count: int, dtype: torch.dtype) -> None:
    ids = [*ODD_KEYS, *range(1000, 1300)][:count]
    table = grown(ids, 3, seed=1, dtype=dtype)
    found = DynamicTable.new(stored(tmp_path / "tensors", table, ranks))
    assert found.spare_rows == min(count // 8, 300 - count) + LEAST_SPARE
    assert found.shape == (count + found.spare_rows + 1, 3)
    assert owners(found) == {one: row for row, one in enumerate(sorted(ids))}
    assert (found.remap.fallback_starts.tolist(), found.remap.fallback_rows.tolist()) == ([-(2**63)], [found.shape[0] - 1])
    require_rows(found, table, owners(found))


@settings(max_examples=20, deadline=None)
@given(steps=st.lists(st.sets(IDS, max_size=30), min_size=2, max_size=4), ranks=st.integers(1, 3))
def test_ids_that_stay_keep_their_rows_and_others_find_room(tmp_path_factory: pytest.TempPathFactory, steps: list[set[int]], ranks: int) -> None:
    folder = tmp_path_factory.mktemp("steps")
    table = grown(sorted(steps[0]), 2, seed=0)
    found = DynamicTable.new(stored(folder / "0", table))
    num_rows = found.shape[0]
    for number, ids in enumerate(steps[1:], 1):
        before, table = owners(found), grown(sorted(ids), 2, seed=number)
        found = DynamicTable.after(stored(folder / str(number), table, ranks), found.remap)
        now = owners(found)
        assert found.shape[0] == num_rows
        assert sorted(now) == list(now) == sorted(ids)
        assert len({*now.values(), num_rows - 1}) == len(ids) + 1
        assert {one: now[one] for one in ids if one in before} == {one: row for one, row in before.items() if one in ids}
        require_rows(found, table, now)


def test_new_ids_beyond_the_room_are_refused_with_advice(tmp_path: Path) -> None:
    """Of three ids one goes; 64 rows were spare: room for 65 new ones, and not for 66."""
    base = DynamicTable.new(stored(tmp_path / "base", grown([1, 2, 3], 2, seed=0)))
    fits = stored(tmp_path / "fits", grown([1, 2, *range(100, 165)], 2, seed=1))
    assert DynamicTable.after(fits, base.remap).spare_rows == 0
    over = stored(tmp_path / "over", grown([1, 2, *range(100, 166)], 2, seed=1))
    message = r"^table 't': 66 ids are new, and the version has room for 65 \(64 were spare, and 1 ids went\); export a whole version instead$"
    with pytest.raises(ExportError, match=message):
        DynamicTable.after(over, base.remap)


def test_a_model_reads_it_by_ids_as_it_is_stored(tmp_path: Path) -> None:
    """Also while other vectors lie in the place of the default one; and blocks are those of the artifact."""
    table = grown([*ODD_KEYS, 7, 8], 4, seed=2)
    stored(tmp_path / "tensors", table, 2)
    source = RowSource(tmp_path / "tensors", {"t": NOTES})
    ids = torch.tensor([8, 99, 2**63 - 1, -3, -(2**63)])
    wanted = torch.from_numpy(np.array([table.vector(one) for one in ids.tolist()])).float()
    assert torch.equal(source.take_decoded("t", ids), wanted)
    assert (source.rows("t"), source.dim("t"), source.dtype("t"), source.spare_rows("t")) == (77, 4, torch.float32, 65)
    assert [len(block) for block in source.blocks("t", 30)] == [30, 30, 17]
    source.store_as({"t": "int8"})
    assert torch.equal(source.take_decoded("t", ids), decode_rows(encode_rows(wanted, "int8"), 4, "int8"))
    with source.stored_as({}), source.instead({"t": (source.dynamic("t").remap.fallback_rows, torch.full((4,), 2.0))}):
        assert torch.equal(source.take_decoded("t", ids)[[1, 3]], torch.full((2, 4), 2.0))
        assert torch.equal(source.take_decoded("t", ids)[[0, 2, 4]], wanted[[0, 2, 4]])


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    table = grown([1, 2], 2, seed=0)
    tensors = table.tensors("t", 1) | {"dynamic/t/keys": torch.tensor([2, 2])}
    save_tensors(tmp_path / "tensors", tensors)
    with pytest.raises(CheckpointError, match="has the id 2 twice"):
        RowSource(tmp_path / "tensors", {"t": NOTES}).dynamic("t")
