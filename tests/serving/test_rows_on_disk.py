"""Tables that stay on disk answer as those in memory do, changed rows included."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import ArtifactError
from emberline.serving.files import write_tensors
from emberline.serving.rows_on_disk import RowsOnDisk, rows_needed
from emberline.serving.tables import write_table


@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]))
def test_rows_and_blocks_after_changes_are_those_of_the_table(
    data: st.DataObject, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = torch.randint(0, 255, (40, 6), generator=torch.Generator().manual_seed(1)).to(dtype)
    write_table(folder / "rows", table)
    on_disk = RowsOnDisk.find(folder / "rows")
    for number in range(data.draw(st.integers(0, 3))):
        places = torch.tensor(sorted(data.draw(st.sets(st.integers(0, 39), max_size=8))), dtype=torch.int64)
        rows = torch.randint(0, 255, (len(places), 6)).to(dtype)
        write_tensors(folder / f"changed-{number}", {"places": places, "rows": rows})
        on_disk = on_disk.with_changes([(places, RowsOnDisk.find(folder / f"changed-{number}"))])
        table[places] = rows
    wanted = torch.tensor(data.draw(st.lists(st.integers(0, 39), max_size=30)), dtype=torch.int64)
    assert torch.equal(on_disk.take(wanted), table[wanted])
    first = data.draw(st.integers(0, 40))
    stop = data.draw(st.integers(first, 40))
    assert torch.equal(on_disk.read(first, stop), table[first:stop])
    assert (on_disk.shape, on_disk.dtype) == ((40, 6), dtype)
    small, places = rows_needed(on_disk, wanted)
    assert torch.equal(small[places], table[wanted])
    assert len(small) == len(set(wanted.tolist()))


def test_a_table_in_memory_is_read_as_it_is() -> None:
    table, ids = torch.zeros(3, 2), torch.tensor([2, 0])
    assert rows_needed(table, ids) == (table, ids)


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    write_tensors(tmp_path / "other", {"places": torch.zeros(3)})
    with pytest.raises(ArtifactError, match="other: there is no tensor 'rows' of rows"):
        RowsOnDisk.find(tmp_path / "other")
    write_table(tmp_path / "cut", torch.zeros(100, 8))
    on_disk = RowsOnDisk.find(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:500])
    with pytest.raises(ArtifactError, match=r"cut cannot be read: .* ends after"):
        on_disk.take(torch.tensor([99]))
    with pytest.raises(ArtifactError, match=r"cut cannot be read: .* ends after"):
        on_disk.read(0, 100)
