"""Lookups as plain operators: bags of any sizes, weights, means."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import ExportError
from emberline.export import full
from emberline.export.export import export_model
from emberline.export.full import bag_of_each
from tests.export.conftest import SmallRun


@given(st.lists(st.integers(0, 5), max_size=8))
def test_each_id_is_in_its_bag(sizes: list[int]) -> None:
    found = bag_of_each(torch.tensor(sizes, dtype=torch.int64), sum(sizes))
    assert found.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_tables_over_a_formats_limit_are_refused(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(full.LIMITS, "torchscript", 1000)
    with pytest.raises(ExportError, match=r"GiB of tables are too much for a full program of format 'torchscript'.*leave out --full"):
        export_model(small_run.path, tmp_path, "m", full=True)
