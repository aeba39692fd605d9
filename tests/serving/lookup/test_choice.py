"""Backends by name, and what is said where one does not work."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from emberline import compiled
from emberline.errors import ConfigError, MissingDependencyError
from emberline.serving.lookup import LOOKUPS, choose_lookup, native
from emberline.serving.rows_on_disk import RowsOnDisk
from emberline.serving.tables import write_table
from tests.serving.conftest import random_request
from tests.serving.lookup.test_native import CPU, by_loops, rows_of, schema_of, stored_tables


@pytest.mark.parametrize("name", [None, *(name for name in LOOKUPS if name != "fused")])
def test_every_backend_gives_the_same(name: str | None) -> None:
    if name == "fbgemm":
        pytest.importorskip("fbgemm_gpu")
    schema = schema_of([4, 8], weighted=True)
    tables, types = stored_tables(schema, ["fp32", "int8"], 2)
    arrays = random_request(schema, num_rows=7, seed=1)
    lookup = choose_lookup(schema, tables, types, CPU, name)
    assert lookup.name == (name or ("torch" if native.KERNEL.get() is None else "native"))
    torch.testing.assert_close(lookup.pooled(rows_of(schema, arrays)), by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schema = schema_of([4], weighted=False)
    tables, types = stored_tables(schema, ["fp32"], 2)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiled, "library_folders", lambda source: (tmp_path,))
    native.KERNEL.forget()
    try:
        assert choose_lookup(schema, tables, types, CPU).name == "torch"
        with pytest.raises(MissingDependencyError, match=r"^lookup 'native' does not work here: there is no C compiler \(cc, gcc, clang\)$"):
            choose_lookup(schema, tables, types, CPU, "native")
    finally:
        native.KERNEL.forget()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^there is no lookup 'fastest': native, torch, fbgemm, fused$"):
        choose_lookup(schema_of([4], weighted=False), {}, {}, CPU, "fastest")


def test_the_kernel_is_for_cpus() -> None:
    schema = schema_of([4], weighted=False)
    tables = {"t0": torch.zeros(10, 4, device="meta")}
    assert choose_lookup(schema, tables, {}, torch.device("meta")).name == "torch"
    with pytest.raises(MissingDependencyError, match=r"^lookup 'native' does not work here: it is for CPUs, and the device is 'meta'$"):
        choose_lookup(schema, tables, {}, torch.device("meta"), "native")


def test_without_fbgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of([4], weighted=False)
    tables, types = stored_tables(schema, ["fp32"], 2)
    monkeypatch.setitem(sys.modules, "fbgemm_gpu.split_embedding_configs", None)
    with pytest.raises(MissingDependencyError, match=r"^lookups by fbgemm need the package fbgemm-gpu or fbgemm-gpu-cpu, which does not load: "):
        choose_lookup(schema, tables, types, CPU, "fbgemm")


def test_tables_on_disk(tmp_path: Path) -> None:
    schema = schema_of([4], weighted=False)
    tables, types = stored_tables(schema, ["fp32"], 2)
    write_table(tmp_path / "t0", tables["t0"])
    on_disk = {"t0": RowsOnDisk.find(tmp_path / "t0")}
    arrays = random_request(schema, num_rows=7, seed=1)
    found = choose_lookup(schema, on_disk, types, CPU).pooled(rows_of(schema, arrays))
    torch.testing.assert_close(found, by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)
    with pytest.raises(MissingDependencyError, match=r"^lookup 'fbgemm' needs tables in memory, and these stay on disk$"):
        choose_lookup(schema, on_disk, types, CPU, "fbgemm")
