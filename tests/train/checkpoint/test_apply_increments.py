"""Increments applied to their base: the tables of a full save at the last step, or an error that says what does not lead on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline import cli
from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import chunks, store
from emberline.train.checkpoint.apply_increments import apply_increments
from emberline.train.checkpoint.run_state import Progress, read_progress, require_one_step
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.dynamic.state import DynamicState
from tests.train.checkpoint.dynamic_files import state_of, write_changes, write_states

KEY = st.integers(-5, 12) | st.sampled_from([-(2**63), 2**63 - 1])

SOME = st.sets(KEY, max_size=6)


def merged(parts: dict[int, tuple[int, int]], step: int, version: int, dtype: torch.dtype) -> DynamicState:
    """The oracle: a dictionary of key -> (last step, version of its vector)."""
    found = state_of(list(parts), step=step, version=version, dtype=dtype)
    each = [state_of([key], step=parts[key][0], version=parts[key][1], dtype=dtype) for key in found.keys.tolist()]
    if not each:
        return found
    return replace(
        found,
        weights=torch.cat([one.weights for one in each]),
        moments={name: torch.cat([one.moments[name] for one in each]) for name in found.moments},
        last_steps=torch.cat([one.last_steps for one in each]),
        scores=torch.cat([one.scores for one in each]),
    )


@settings(max_examples=15, deadline=None)
@given(
    first=st.sets(KEY, max_size=12),
    steps=st.lists(
        st.tuples(st.sets(KEY, max_size=6), st.sets(KEY, max_size=6), st.dictionaries(KEY, st.integers(1, 9), max_size=3)), min_size=1, max_size=4
    ),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_increments_give_what_a_full_save_has(
    first: set[int],
    steps: list[tuple[set[int], set[int], dict[int, int]]],
    ranks: tuple[int, int],
    dtype: torch.dtype,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("increments")
    rows = dict.fromkeys(first, (10, 0))
    base = write_states(folder / "run", 10, {"t": merged(rows, 10, 0, dtype)}, ranks[0], Progress(step=10, run="r", mark="m0", times=((5, 300),)))
    counted: dict[int, int] = {}
    paths = []
    for place, (gone, read, counted) in enumerate(steps, 1):
        end = 10 + 5 * place
        removed = gone & rows.keys()
        rows = {key: row for key, row in rows.items() if key not in removed} | dict.fromkeys(read, (end, place))
        changed = _waiting(merged(dict.fromkeys(read, (end, place)), end, place, dtype), counted)
        marks = (f"m{place - 1}", f"m{place}")
        paths.append(write_changes(folder / f"{end - 5}-{end}", (end - 5, end), marks, {"t": (changed, sorted(removed))}, ranks[1]))
    last = 10 + 5 * len(steps)
    full = _waiting(merged(rows, last, len(steps), dtype), counted)
    wanted = write_states(folder / "full", last, {"t": full}, ranks[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MAX_PIECE_BYTES", 48)
        found = apply_increments(base, paths, folder / "new", lambda line: None)
    assert found == folder / "new" / f"step-{last}"
    tensors, expected = read_tensors(found / "tensors", "dynamic/"), read_tensors(wanted / "tensors", "dynamic/")
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name
    others = {name: tensor for name, tensor in read_tensors(base / "tensors").items() if not name.startswith("dynamic/")}
    kept = read_tensors(found / "tensors")
    assert len(kept) == len(tensors) + len(others)
    assert all(torch.equal(kept[name], tensor) for name, tensor in others.items())
    progress = read_progress(found)
    assert (progress.step, progress.mark, progress.times[-1]) == (10, f"m{len(steps)}", (last, 60 * last))


def _waiting(state: DynamicState, counted: dict[int, int]) -> DynamicState:
    keys = sorted(counted)
    counts = torch.tensor([counted[key] for key in keys], dtype=torch.int64)
    return replace(state, counted_keys=torch.tensor(keys, dtype=torch.int64), counts=counts)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """RUN/step-10, and increments to 30 of it."""
    run = tmp_path / "run"
    write_states(run, 10, {"t": state_of([1, 2])}, 1, Progress(step=10, run="r", mark="m0"))
    for place in (1, 2):
        end = 10 + 10 * place
        marks = (f"m{place - 1}", f"m{place}")
        write_changes(run / "increments" / f"{end - 10}-{end}", (end - 10, end), marks, {"t": (state_of([2 + place], step=end), [])})
    return run


def refused(checkpoint: Path, paths: list[Path], message: str, output: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        apply_increments(checkpoint, paths, output, print)
    assert not output.exists()


def test_what_does_not_lead_on_is_refused_by_name(chain: Path, tmp_path: Path) -> None:
    base, first, second, new = chain / "step-10", chain / "increments" / "10-20", chain / "increments" / "20-30", tmp_path / "new"
    refused(base, [second], "20-30 leads on from step 20, and .*step-10 is at step 10: those between are missing", new)
    refused(base, [second, first], "those between are missing", new)
    refused(base, [first, first], "10-20 is applied already: .*10-20 is at step 20 with it; leave it out", new)
    other = write_changes(tmp_path / "other", (10, 20), ("m0", "x"), {"t": (state_of([9]), [])}, run="s")
    refused(base, [other], r"other is of another run \(s\) than .*step-10 \(r\)", new)
    otherwise = write_changes(tmp_path / "otherwise", (20, 30), ("x1", "x2"), {"t": (state_of([9]), [])})
    refused(base, [first, otherwise], "otherwise leads on from another state of step 20 than .*10-20: the run went on otherwise", new)
    back = write_changes(tmp_path / "back", (10, 30), ("m0", "x3"), {"t": (state_of([9]), [])})
    refused(base, [first, back], "back leads on from step 10, and .*10-20 is at step 20: it is out of order, or applied already", new)
    wider = write_changes(tmp_path / "wider", (10, 20), ("m0", "x4"), {"t": (state_of([9], dtype=torch.float16), [])})
    refused(base, [wider], r"wider/rank-0.safetensors: t/weight is float16 \[1, 3\], and float32 \[1, 3\] would go with the checkpoint", new)
    moments = {**state_of([8, 9]).moments, "sum": torch.zeros(2, 1)}
    wide = replace(state_of([8, 9]), moments=moments)
    refused(base, [write_changes(tmp_path / "wide", (10, 20), ("m0", "x6"), {"t": (wide, [])})], r"t/sum is float32 \[2, 1\], and float32 \[2\]", new)
    again = replace(state_of([8, 9]), keys=torch.tensor([9, 9]))
    refused(base, [write_changes(tmp_path / "again", (10, 20), ("m0", "x7"), {"t": (again, [])})], "again: t/keys has an id twice", new)
    refused(base, [], "no increment is given", new)
    tables = write_changes(tmp_path / "tables", (10, 20), ("m0", "x5"), {"u": (state_of([9]), [])})
    refused(base, [tables], "tables has the tables u, and .*step-10 t", new)
    refused(base, [chain / "step-10"], "format .* no increment", new)
    refused(base, [chain / "nowhere"], "nowhere: no complete increment", new)
    refused(write_states(tmp_path / "old", 10, {"t": state_of([1])}), [first], "10-20 is of another run", new)
    (first / "rank-0.safetensors").write_bytes(b"x" * 100)
    refused(base, [first, second], "10-20 is damaged: rank-0.safetensors has 100 bytes", new)


def test_a_folder_of_increments_and_the_result_of_some(chain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["increments", "apply", str(chain), str(chain / "increments"), "--output", str(tmp_path / "all")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "table 't': 2 ids at step 10, 4 at step 30",
        "everything but these tables is of step 10",
        f"checkpoint: {tmp_path}/all/step-30",
    ]
    one = apply_increments(chain, [chain / "increments" / "10-20"], tmp_path / "one", print)
    two = apply_increments(one, [chain / "increments"], tmp_path / "two", print)
    found, wanted = read_tensors(two / "tensors"), read_tensors(tmp_path / "all" / "step-30" / "tensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    with pytest.raises(CheckpointError, match="tables that grow are of step 30, everything else of step 10"):
        require_one_step(store.read_checkpoint(two))
    require_one_step(store.read_checkpoint(chain / "step-10"))
    with pytest.raises(CheckpointError, match="no increment here leads on from step 30"):
        apply_increments(two, [chain / "increments"], tmp_path / "three", print)
    with pytest.raises(ConfigError, match="is not empty"):
        apply_increments(one, [chain / "increments"], tmp_path / "two", print)
