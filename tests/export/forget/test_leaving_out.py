"""Exports and deltas of checkpoints that still have an id which was forgotten: it does not come back, and they pass their own gates."""

import fcntl
import os
from pathlib import Path

import pytest
import torch

from emberline.errors import ExportError
from emberline.export.delta import export_delta
from emberline.export.export import export_model
from emberline.export.forget.forget import Options, forget
from emberline.export.forget.ledger import LEDGER_NAME
from emberline.serving.engine import Engine
from tests.export.dynamic_runs import DynamicRun, new_run, rows_of, tables_of
from tests.export.forget.conftest import Kept
from tests.export.forget.test_forget import UNSEEN, answers, files_with, require_equal, rows_with
from tests.export.test_delta import POLICIES

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = 5
"""A user that the checkpoint has."""


def test_an_export_and_a_delta_leave_it_out(kept: Kept, tmp_path: Path) -> None:
    model, lines = kept.copy(tmp_path), list[str]()
    table = kept.run.load().model.embedding_group.table_weights()["uid_emb"].detach()
    whole = Engine.open(model / "1")  # with its deltas, what the checkpoint is
    assert ONE in whole.artifact.ids["uid_emb"].raw_ids.tolist()
    row = table[whole.artifact.remaps["uid_emb"](torch.tensor([ONE]))[0]].numpy().tobytes()
    old_rows = rows_with(kept, [one for one in kept.ids[1, 2] if one != ONE])
    for other in old_rows:
        other["tags"] = [0, 4]
    before = answers(whole, old_rows)
    forget(model, "uid", [str(ONE)])
    forget(model, "tags", ["3", "7"], Options(zero_shared=True))
    path = export_model(kept.run.path, tmp_path / "models", "m", unknown=POLICIES, progress=lines.append)
    told = {f"table {table}: 1 id left out, as forgotten" for table in ("uid_emb", "uid_emb_wide")}
    assert told | {"table tags_emb: 2 rows made zeros, as forgotten"} <= set(lines)
    assert files_with(path, row) == []
    again = Engine.open(path)
    require_equal(answers(again, old_rows), before)
    require_equal(answers(again, rows_with(kept, [ONE])), answers(again, rows_with(kept, [UNSEEN])))
    assert not bool(again.known(again.encode_rows(rows_with(kept, [ONE])))[0])

    delta = export_delta(kept.run.path, tmp_path / "models", "m", 1, progress=lines.append)
    assert files_with(model, row) == []
    assert (delta.name, "table uid_emb: 0 of 42 rows changed" in lines) == ("3", False)
    with_delta = Engine.open(model / "1")
    for engine in (again, with_delta):
        assert (engine.artifact.tables["tags_emb"] == 0).all(dim=1).nonzero().flatten().tolist() == [3, 7]
    require_equal(answers(with_delta, old_rows), before)
    require_equal(answers(with_delta, rows_with(kept, [ONE])), answers(with_delta, rows_with(kept, [UNSEEN])))


def test_nothing_is_published_that_was_begun_before_somebody_was_forgotten(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)

    def forget_meanwhile(line: str) -> None:
        if line.startswith("table tags_emb"):
            forget(model, "uid", [str(ONE)])

    with pytest.raises(ExportError, match="ids were forgotten meanwhile"):
        export_model(kept.run.path, tmp_path / "models", "m", progress=forget_meanwhile)
    assert sorted(path.name for path in model.iterdir()) == [".forgotten.key", "1", "2", LEDGER_NAME]


def test_a_delta_that_is_being_exported_is_waited_for(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    building = model / "1" / "deltas" / ".building-00"
    building.mkdir()
    descriptor = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ExportError, match="a delta is being exported; call again"):
            forget(model, "uid", [str(ONE)])
    finally:
        os.close(descriptor)
    entry = forget(model, "uid", [str(ONE)])
    assert (set(entry.versions), entry.done, building.exists()) == ({"1", "2"}, True, False)


IDS = [*range(100, 120), 0, 5, -(2**63), 2**63 - 1]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[DynamicRun, Path]:
    """A run with tables that grow, one shared by a feature and a sequence, and stored in a half type; a version with a delta."""
    root = tmp_path_factory.mktemp("grown")
    run = new_run(root / "run")
    run.save(1, tables_of(IDS, 1))
    export_model(run.path, root / "models", "m", unknown=["buys=zeros"], quantize="item_table=bf16", quality_rows=0)
    run.save(2, tables_of([*IDS[2:], 500, 501], 2))
    export_delta(run.path, root / "models", "m", 1)
    return run, root / "models"


def asked(engine: Engine, items: list[int]) -> dict[str, torch.Tensor]:
    """The answers to rows with one of these items each, and with all of them as steps."""
    rows = rows_of(IDS, len(items))
    steps = ";".join(map(str, items[:6]))
    return answers(engine, [{**row, "uid": 0, "item": item, "buys": {5: 1.0}, "click__item": steps} for row, item in zip(rows, items, strict=True)])


@pytest.mark.parametrize("one", [104, 100, 500])
def test_tables_that_grow_lose_it_and_never_get_it_back(grown: tuple[DynamicRun, Path], tmp_path: Path, one: int) -> None:
    """An id that stays, one that goes with the delta, and one that comes with it; `item` is read by a sequence too."""
    run, before = grown
    models = Kept(None, before, {}).copy(tmp_path).parent  # type: ignore[arg-type]
    feature, table = "item", "item_table"
    states = [Engine.open(before / "m", deltas=number, tables="mapped") for number in (0, 1)]
    held = []
    for state in states:
        row, known = state.artifact.remaps[table](torch.tensor([one]))
        rows = state.artifact.rows[table]
        if bool(known):
            held.append((rows[row] if isinstance(rows, torch.Tensor) else rows.take(row)).view(torch.uint8).numpy().tobytes())
    assert held
    assert all(files_with(before, vector) for vector in held)
    entry = forget(models / "m", feature, [str(one)])
    assert entry.tables == (table,)
    assert all(files_with(models, vector) == [] for vector in held)
    others = [other for other in IDS if other != one]
    for number, state in enumerate(states):
        now = Engine.open(models / "m", deltas=number, tables="mapped")
        require_equal(asked(now, others), asked(state, others))
        require_equal(asked(now, [5, one, 101]), asked(now, [5, UNSEEN, 101]))
        remap = next(entry.remap for entry in now.artifact.manifest.tables if entry.table == table)
        assert remap is not None
        assert remap.num_ids + remap.spare_rows == states[0].artifact.rows[table].shape[0] - 1
    if one != 500:
        return
    export_delta(run.path, models, "m", 1)
    newest = Engine.open(models / "m")
    assert not torch.isin(torch.tensor([one]), newest.artifact.ids[table].raw_ids).any()
    assert newest.delta == 2
    assert all(files_with(models, vector) == [] for vector in held)
