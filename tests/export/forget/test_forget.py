"""An id that was forgotten: nowhere in any file, answered like one that was never seen, and no answer to any other is another."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from emberline.errors import ExportError, RequestError
from emberline.export.explain import explain
from emberline.export.forget.forget import Options, forget
from emberline.export.forget.ledger import Ledger, read_entries
from emberline.manifest import hash_tree
from emberline.serving.artifact import load_with_digest
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest
from tests.export.forget.conftest import STATES, Kept, open_state

pytestmark = pytest.mark.usefixtures("one_thread")
UNSEEN = -987654321
"""An id that no run has seen."""


def rows_with(kept: Kept, uids: Iterable[int]) -> list[dict[str, object]]:
    """Raw rows of some users."""
    rows = [{name: row[name] for name in ("uid", "tags", "buys")} for row in kept.run.rows]
    return [{**rows[place % len(rows)], "uid": one} for place, one in enumerate(uids)]


def answers(engine: Engine, rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    request: PackedRequest = engine.encode_rows(rows)
    return {**engine.lookup(request), **engine.predict(request), "known": engine.known(request)}


def require_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, answer in wanted.items():
        assert torch.equal(found[name], answer), name


def vectors_of(model: Path, one: int) -> list[bytes]:
    """The bytes of an id's row in each state in which it owns one."""
    found = []
    for state in STATES:
        artifact = open_state(model, state).artifact
        rows, known = artifact.remaps["uid_emb"](torch.tensor([one]))
        if bool(known):
            table = artifact.rows["uid_emb"]
            row = table[rows] if isinstance(table, torch.Tensor) else table.take(rows)
            found.append(row.numpy().tobytes())
    return found


def files_with(folder: Path, data: bytes) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file() and data in path.read_bytes()]


def some_id(kept: Kept, has: tuple[bool, ...]) -> int:
    """An id that owns a row in those of `STATES` where `has` says so."""
    every = {one for ids in kept.ids.values() for one in ids}
    return next(one for one in sorted(every) if tuple(one in kept.ids[state] for state in STATES) == has)


CASES = {
    "in all states": (True, True, True, True),
    "goes with delta 1": (True, False, False, True),
    "comes with delta 1": (False, True, True, False),
    "comes with delta 2": (False, False, True, False),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_gone_from_every_state_and_all_others_are_as_they_were(kept: Kept, tmp_path: Path, case: str) -> None:
    one, before = some_id(kept, CASES[case]), kept.models / "m"
    model = kept.copy(tmp_path)
    vectors = vectors_of(before, one)
    assert all(files_with(before, vector) for vector in vectors)
    entry = forget(model, "uid", [str(one)])
    assert (entry.feature, entry.tables, entry.done, len(entry.tags)) == ("uid", ("uid_emb_wide", "uid_emb"), True, 1)
    assert {int(version) for version in entry.versions} == {version for (version, _), has in zip(STATES, CASES[case], strict=True) if has}
    for vector in vectors:
        assert files_with(model, vector) == []
    others = [other for other in {*kept.ids[1, 0], *kept.ids[1, 2], UNSEEN, 0, 2**63 - 1} if other != one]
    for state in STATES:
        old, new = open_state(before, state), open_state(model, state)
        require_equal(answers(new, rows_with(kept, others)), answers(old, rows_with(kept, others)))
        require_equal(answers(new, rows_with(kept, [one])), answers(new, rows_with(kept, [UNSEEN])))
        assert one not in new.artifact.ids["uid_emb"].raw_ids.tolist()
        assert not bool(explain(model / str(state[0]), "uid", str(one))[0]["known"])
        Engine.open(model / str(state[0]), deltas=state[1], tables="disk")  # which builds each index of ids anew, and compares all digests


def test_an_id_of_sixty_bits_is_in_no_file_either(kept: Kept, tmp_path: Path) -> None:
    model, data = kept.copy(tmp_path), np.int64(2**63 - 2).tobytes()
    assert len(files_with(model, data)) > 3
    forget(model, "uid", [str(2**63 - 2), "-5"])
    assert files_with(model, data) == []
    assert files_with(model, str(2**63 - 2).encode()) == []
    for state in STATES:
        for name in ("uid_emb", "uid_emb_wide"):
            assert not {2**63 - 2, -5} & set(open_state(model, state).artifact.ids[name].raw_ids.tolist())


def test_golden_samples_that_had_it_have_another_and_say_so(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    sample = open_state(model, (1, 0)).artifact.golden()["ids"].tolist()
    one = next(one for one in sample if one in kept.ids[1, 0])
    forget(model, "uid", [str(one)])
    artifact = open_state(model, (1, 0)).artifact
    after = artifact.golden()["ids"].tolist()
    assert len(after) == len(sample)
    assert {(old, new) for old, new in zip(sample, after, strict=True) if old != new} == {(one, min(set(kept.ids[1, 0]) - {one}))}
    assert "engine" in artifact.manifest.parity["forgotten"]["golden"]
    assert artifact.manifest.parity["forgotten"]["times"] == 1


def test_files_that_do_not_change_are_shared_with_no_copy(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    before = {path: (model / "2" / path).stat().st_ino for path in hash_tree(model / "2")}
    forget(model, "uid", [str(2**62)])
    same = {path for path, inode in before.items() if (model / "2" / path).stat().st_ino == inode}
    assert same >= {"tables/tags_emb.safetensors", "tables/buys_emb.safetensors", "remap/buys_emb.safetensors", "programs/dense.ts"}
    assert not same & {"tables/uid_emb.safetensors", "remap/uid_emb.safetensors"}


def test_a_second_time_changes_nothing(kept: Kept, tmp_path: Path) -> None:
    model, lines = kept.copy(tmp_path), list[str]()
    forget(model, "uid", [str(2**62)])
    before = hash_tree(model)
    forget(model, "uid", [str(2**62)], tell=lines.append)
    assert hash_tree(model) == before
    assert lines == ["all of these ids were forgotten before", "no version has any of them; later exports leave them out"]


def test_an_id_that_no_version_has_is_listed_and_changes_no_version(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    before = {version: load_with_digest(model / version)[1] for version in ("1", "2")}
    entry = forget(model, "uid", [str(UNSEEN)])
    assert (dict(entry.versions), entry.done) == ({}, True)
    assert {version: load_with_digest(model / version)[1] for version in ("1", "2")} == before
    assert len(read_entries(model)[1]) == 1


def test_a_dry_run_tells_and_changes_nothing(kept: Kept, tmp_path: Path) -> None:
    model, lines = kept.copy(tmp_path), list[str]()
    before = hash_tree(model)
    entry = forget(model, "uid", [str(2**62)], Options(dry_run=True), lines.append)
    assert hash_tree(model) == before
    assert (set(entry.versions), entry.done) == ({"1", "2"}, False)
    assert "version 1, table uid_emb: 1 ids in the version, delta 1, delta 2" in lines


def test_the_list_has_no_id_and_its_key_is_the_owners_alone(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    forget(model, "uid", [str(2**62)])
    text = (model / "forgotten.jsonl").read_text()
    assert str(2**62) not in text
    assert (model / ".forgotten.key").stat().st_mode & 0o777 == 0o600
    (model / ".forgotten.key").unlink()
    with pytest.raises(ExportError, match="name the key's file by --key-file"):
        Ledger.read(model)
    other = tmp_path / "other.key"
    other.write_bytes(bytes(32))
    with pytest.raises(ExportError, match="is not the key of"):
        forget(model, "uid", ["-5"], Options(key_file=other))


def test_static_rows_are_refused_and_become_zeros_where_that_is_asked_for(kept: Kept, tmp_path: Path) -> None:
    model = kept.copy(tmp_path)
    with pytest.raises(ExportError, match=r"feature 'tags': ids of a bucket table of 10 rows own no rows.*--shared-rows zero"):
        forget(model, "tags", ["3"])
    assert read_entries(model)[1] == ()
    before = {state: open_state(model, state) for state in STATES}
    vectors = [engine.artifact.rows["tags_emb"] for engine in before.values()]
    held = [table[3] if isinstance(table, torch.Tensor) else table.take(torch.tensor([3]))[0] for table in vectors]
    forget(model, "tags", ["3"], Options(zero_shared=True))
    for vector in held:
        assert files_with(model, vector.numpy().tobytes()) == []
    rows = rows_with(kept, [5] * 10)
    for place, row in enumerate(rows):
        row["tags"] = [place]
    for state, old in before.items():
        mine, theirs = answers(open_state(model, state), rows), answers(old, rows)
        changed = [place for place in range(10) if not torch.equal(mine["deep"][place], theirs["deep"][place])]
        assert changed == [3]
        start = 4  # behind uid
        assert mine["deep"][3, start : start + 8].tolist() == [0.0] * 8


@pytest.mark.parametrize(
    ("feature", "value", "error", "text"),
    [
        ("uidd", "1", RequestError, "did you mean 'uid'"),
        ("tags", "99", RequestError, "tags"),
        ("uid", "", RequestError, "is 0 ids, not one"),
    ],
)
def test_what_it_does_not_know_is_refused(kept: Kept, feature: str, value: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        forget(kept.models / "m", feature, [value], Options(dry_run=True, zero_shared=True))


def test_folders_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no such folder"):
        forget(tmp_path / "none", "uid", ["1"])
    with pytest.raises(ExportError, match="no version"):
        forget(tmp_path, "uid", ["1"])
