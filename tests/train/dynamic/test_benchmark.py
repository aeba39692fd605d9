"""`benchmarks/dynamic.py` at tiny sizes: its forms answer alike, and it measures each of them."""

import math

import pytest
import torch

from benchmarks._dynamic_work import DYNAMIC, FBGEMM, IDS_A_ROW, NUM_ROWS, STATIC, Case, keys_of, make_batches, new_ids
from benchmarks.dynamic import ADAGRAD, ADAM, MEMORY_AIM, WHAT, check, measure, ratios, report


@pytest.mark.parametrize("optimizer", [ADAGRAD, ADAM])
def test_all_forms_answer_alike_and_are_measured(optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(26, optimizer)
    case = Case(26 * 50, 26, 4, optimizer)
    best = measure(case, 1)
    names = [DYNAMIC, STATIC, *([FBGEMM] if optimizer == ADAGRAD else [])]
    assert set(best) == {(name, what) for name in names for what in WHAT}
    assert all(0 < seconds < math.inf for seconds in best.values())
    report(case, best, 1.5)
    told = capsys.readouterr().out
    assert f"memory 1.50 times rows and moments ({30 if optimizer == ADAGRAD else 72} bytes a key)" in told
    assert [name for name in names if f"\n{name}" in told] == names
    found = ratios({case: best}, {case: 1.5})
    assert (found["memory_vs_rows"], found["memory_of_aim"]) == (1.5, MEMORY_AIM / 1.5)
    assert found["train_vs_static"] == best[STATIC, "all known"] / best[DYNAMIC, "all known"]


def test_batches_have_the_same_ids_for_all_and_one_new_one_in_a_hundred() -> None:
    case = Case(26 * 50, 26, 4, ADAGRAD)
    first, second = make_batches(case, 2)
    later = make_batches(case, 1, new_ids(2))[0]
    known: set[int] = set(keys_of(torch.arange(case.rows)).tolist())
    seen: set[int] = set()
    for batch in (first, second, later):
        assert len(batch.rows) == NUM_ROWS * IDS_A_ROW == int(case.offsets[-1])
        assert torch.equal(batch.keys, keys_of(batch.rows))
        assert 0 <= int(batch.rows.min()) <= int(batch.rows.max()) < case.rows
        new = set(batch.with_new.tolist()) - known
        assert (batch.with_new != batch.keys).sum() == len(new) == pytest.approx(len(batch.rows) / 100, abs=1)
        assert not new & seen
        seen |= new
    assert len(set(keys_of(torch.arange(10_000)).tolist())) == 10_000
