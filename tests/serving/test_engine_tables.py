"""An engine whose tables are in memory of its own, mapped, or on disk: the same answers, before and after deltas, and what the memory costs."""

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError, ConfigError
from emberline.manifest import hash_tree
from emberline.memory import HUGE_PAGES
from emberline.schema import BucketEncoder, LookupSpec, Pooling
from emberline.serving import Engine, PackedRequest
from emberline.serving.table_memory import TableMemory
from emberline.serving.tables import TABLE_MEMORIES
from tests.serving.conftest import ToyModel, make_lookup_model, reseal, sparse
from tests.serving.deltas.toy_delta import asked, changed, require_answers, write_delta
from tests.serving.shared_memory import FIELDS, open_and_answer, own_bytes

MIB = 1 << 20


@pytest.mark.parametrize("memory", TABLE_MEMORIES)
def test_answers_are_the_same_before_and_after_a_delta(toy: ToyModel, toy_artifact: Path, memory: str) -> None:
    engine = Engine.open(toy_artifact, tables=memory)
    require_answers(engine, toy)
    files = hash_tree(toy_artifact)
    engine.apply_delta(write_delta(toy_artifact, changed(toy)))
    require_answers(engine, changed(toy))
    require_answers(Engine.open(toy_artifact, tables=memory), changed(toy))
    assert {path: entry for path, entry in hash_tree(toy_artifact).items() if not path.startswith("deltas/")} == files


def test_rows_of_deltas_go_into_private_tables_and_lie_beside_mapped_ones(toy: ToyModel, toy_artifact: Path) -> None:
    private, mapped = (Engine.open(toy_artifact, tables=memory) for memory in ("private", "mapped"))
    path = write_delta(toy_artifact, changed(toy))
    for engine in (private, mapped):
        engine.apply_delta(path)
    assert private.artifact.overlaid == {}
    for name, rows in changed(toy).tables.items():
        assert torch.equal(private.artifact.tables[name], rows)
        assert torch.equal(mapped.artifact.tables[name], toy.tables[name])
    assert {name: rows.places.tolist() for name, rows in mapped.artifact.overlaid.items()} == {"user_emb": [1, 6], "item_emb": [0, 9]}
    assert mapped.table_memory().overlaid_bytes == sum(rows.num_bytes for rows in mapped.artifact.overlaid.values()) > 0
    assert private.table_memory().overlaid_bytes == 0
    mapped_files = Path("/proc/self/maps").read_text()
    del mapped, engine
    assert f"{path}/" in mapped_files
    assert f"{path}/" not in Path("/proc/self/maps").read_text()


def test_a_delta_with_a_wrong_sample_leaves_private_tables_as_they_were(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact)
    path = write_delta(toy_artifact, changed(toy))
    sample = path / "golden.safetensors"
    data = bytearray(sample.read_bytes())
    data[-1] ^= 0x40
    sample.write_bytes(data)
    reseal(path)
    with pytest.raises(ArtifactError, match="is not what it was at export"):
        engine.apply_delta(path)
    require_answers(engine, toy)
    assert all(torch.equal(engine.artifact.tables[name], rows) for name, rows in toy.tables.items())


def test_requests_see_all_of_a_delta_or_nothing_while_it_is_written(toy: ToyModel, toy_artifact: Path) -> None:
    engine = Engine.open(toy_artifact, num_threads=1)
    path = write_delta(toy_artifact, changed(toy))
    request = PackedRequest(**asked(toy))
    stop, found = threading.Event(), list[torch.Tensor]()

    def ask() -> None:
        found.append(engine.lookup(request)["deep"])
        while not stop.is_set():
            found.append(engine.lookup(request)["deep"])

    old = engine.lookup(request)["deep"]
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    engine.apply_delta(path)
    new = engine.lookup(request)["deep"]
    stop.set()
    for thread in threads:
        thread.join()
    assert not torch.equal(old, new)
    assert all(torch.equal(answer, old) or torch.equal(answer, new) for answer in found)


@pytest.mark.parametrize(("tables", "message"), [("shared", "tables cannot be in 'shared': choose private, mapped or disk"), ("", "cannot be in ''")])
def test_other_memory_is_refused(toy_artifact: Path, tables: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine.open(toy_artifact, tables=tables)


@pytest.mark.parametrize("memory", TABLE_MEMORIES)
@pytest.mark.parametrize("place", [3, 200, -1], ids=["header", "rows", "end"])
def test_a_changed_table_is_refused_in_any_memory(toy_artifact: Path, memory: str, place: int) -> None:
    path = toy_artifact / "tables/item_emb.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"the artifact is damaged: tables/item_emb\.safetensors was changed: its sha256 differs"):
        Engine.open(toy_artifact, tables=memory)


def test_a_file_that_is_no_table_is_told_of_as_such(toy_artifact: Path) -> None:
    path = toy_artifact / "tables/item_emb.safetensors"
    path.write_bytes(b"\xff" * 100)
    reseal(toy_artifact)
    with pytest.raises(ArtifactError, match=r"item_emb\.safetensors is not a readable safetensors file"):
        Engine.open(toy_artifact)


def test_memory_is_described(toy: ToyModel, toy_artifact: Path) -> None:
    size = sum(4 * rows.numel() for rows in toy.tables.values())
    found = {memory: Engine.open(toy_artifact, tables=memory).table_memory() for memory in TABLE_MEMORIES}
    assert {memory: (told.memory, told.num_bytes) for memory, told in found.items()} == {
        "private": ("private", size),
        "mapped": ("mapped", size),
        "disk": ("disk", 0),
    }
    assert (found["mapped"].huge_bytes, found["disk"].huge_bytes) == (None, None)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (TableMemory(memory="private", num_bytes=8 * MIB, huge_bytes=8 * MIB), "8 MiB of tables in memory of its own, 100% of it on huge pages"),
        (TableMemory(memory="private", num_bytes=8 * MIB, huge_bytes=2 * MIB), "25% of it on huge pages: "),
        (TableMemory(memory="private", num_bytes=8 * MIB), "8 MiB of tables in memory of its own"),
        (TableMemory(memory="mapped", num_bytes=1024 * MIB), "1,024 MiB of tables are mapped: all processes share them"),
        (TableMemory(memory="disk", num_bytes=0), "tables stay in their files"),
    ],
)
def test_memory_in_words(told: TableMemory, words: str) -> None:
    assert words in str(told)


def big_model(rows: int) -> ToyModel:
    lookup = LookupSpec(key="f", feature="f", table="t", pooling=Pooling.SUM, dim=16)
    table = torch.arange(rows * 16, dtype=torch.float32).view(rows, 16)
    return make_lookup_model((lookup,), (sparse("f", BucketEncoder(rows=rows)),), {"t": table})


def test_a_second_process_shares_mapped_tables(tmp_path: Path) -> None:
    size = 32 * MIB
    small, large = big_model(100).write(tmp_path / "small"), big_model(size // 64).write(tmp_path / "large")
    kept = open_and_answer(str(large))
    command = [sys.executable, str(Path(__file__).with_name("shared_memory.py")), str(small), str(large), str(large / "tables/t.safetensors")]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
    cost = dict(zip(FIELDS, map(int, told.split()), strict=True))
    assert kept.table_memory().num_bytes == size
    assert cost["rss"] > 0.95 * size  # it has all of them
    assert cost["pss"] < 0.55 * size  # of which this process has the other half
    assert cost["anonymous"] < 0.5 * size  # and it has no copy


def test_memory_of_engines_that_are_gone_is_given_back_at_once(tmp_path: Path) -> None:
    size = 16 * MIB
    path = big_model(size // 64).write(tmp_path)
    Engine.open(path)
    before = own_bytes()
    gc.disable()
    try:
        for _ in range(10):
            Engine.open(path)
        assert own_bytes() - before < size
    finally:
        gc.enable()


def test_private_tables_ask_for_huge_pages(tmp_path: Path) -> None:
    engine = Engine.open(big_model(8 * MIB // 64).write(tmp_path))
    told = engine.table_memory()
    assert told.num_bytes == 8 * MIB
    assert told.huge_bytes is None or 0 <= told.huge_bytes <= told.num_bytes
    if HUGE_PAGES.is_file():
        assert "hg" in flags_of(engine.artifact.tables["t"].data_ptr())


def flags_of(address: int) -> list[str]:
    """What the system holds of the mapping that an address lies in: `hg` where it asked for huge pages."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            is_it = int(found[1], 16) <= address < int(found[2], 16)
        elif is_it and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping has {address:#x}")
