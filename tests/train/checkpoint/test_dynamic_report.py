"""What is told of tables that grow."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint import dynamic_report, stored_dynamic
from emberline.train.checkpoint.dynamic_report import AGES, RESHARDED, TITLES, age_cells, dynamic_rows, reshard_cells, table_cells
from tests.train.checkpoint.dynamic_files import state_of, stored, write_states


def test_size_load_and_ages(tmp_path: Path) -> None:
    state = replace(state_of(range(100, 140), step=50, counted={7: 1, 8: 2}, dtype=torch.float16), last_steps=torch.arange(1, 41))
    table = stored(write_states(tmp_path, 50, {"t": replace(state, counters={**state.counters, "evicted": 1234, "expired": 5})}, 3), "t")
    row_bytes = 8 + 3 * 2 + 3 * 4 + 4 + 8 + 8
    wanted = ("t", "40", "100", "40.0%", "3", "float16", "exp_avg, sum by row", "50", "STEP", "2", "1,234", "5", str(40 * row_bytes))
    assert dict(zip(TITLES, table_cells(table), strict=True)) == dict(zip(TITLES, wanted, strict=True)) | {"bytes": f"{40 * row_bytes:,}"}
    assert dict(zip(AGES, age_cells(table), strict=True)) == dict(zip(AGES, ("t", "10", "14", "30", "45", "49"), strict=True))
    assert dynamic_rows([table]) == [[TITLES, table_cells(table)], [AGES, age_cells(table)]]
    assert dynamic_rows([]) == []
    nothing = stored(write_states(tmp_path / "none", 1, {"t": state_of([])}), "t")
    assert age_cells(nothing) == ("t", "-", "-", "-", "-", "-")
    assert table_cells(nothing)[1:4] == ("0", "100", "0.0%")


def test_ages_of_a_large_table_are_a_sample(tmp_path: Path) -> None:
    state = replace(state_of(range(1000), step=1000), last_steps=torch.arange(1, 1001))
    table = stored(write_states(tmp_path, 1, {"t": state}), "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_report, "_SAMPLE", 10)
        sampled = age_cells(table)
    assert [int(cell) for cell in sampled[1:]] == pytest.approx([99, 199, 499, 899, 999], abs=101)


@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
def test_other_ranks(ranks: int, tmp_path: Path) -> None:
    keys = torch.arange(100, 140)
    table = stored(write_states(tmp_path, 40, {"t": state_of(keys.tolist())}, 3), "t")
    counts = torch.bincount(owner_of(keys, ranks, MIXED), minlength=ranks).tolist()
    room = -(-100 // ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_dynamic, "BLOCK_ROWS", 7)
        cells = dict(zip(RESHARDED, reshard_cells(table, ranks), strict=True))
    spread = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    dropped = sum(max(0, count - room) for count in counts)
    assert cells == {"growing table": "t", "ids": "40", "rows a rank": str(room), "ids a rank": spread, "dropped": str(dropped)}
