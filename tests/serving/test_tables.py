"""Tables taken in, and files that are not the table of the schema."""

from pathlib import Path

import pytest
import torch

from emberline.errors import ArtifactError
from emberline.manifest import TableEntry
from emberline.schema import TableSpec
from emberline.serving.files import map_tensors, write_tensors
from emberline.serving.quantized import STORED_DTYPES, encode_rows
from emberline.serving.tables import require_table, write_table

SPEC = TableSpec(name="t", rows=4, dim=3)
ENTRY = TableEntry(table="t", file="tables/t.safetensors", dtype="fp32")


@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES))
def test_rows_come_back(tmp_path: Path, dtype: str) -> None:
    rows = encode_rows(torch.randn(4, 3), dtype)
    write_table(tmp_path / "t.safetensors", rows)
    entry = TableEntry(table="t", file="tables/t.safetensors", dtype=dtype)
    found = map_tensors(tmp_path / "t.safetensors")
    require_table(found, SPEC, entry)
    assert torch.equal(found["rows"], rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(3, 3), r"tables/t.safetensors: table 't' should be \(4, 3\) of fp32, found \(3, 3\) of torch.float32"),
        (torch.zeros(4, 3).half(), r"should be \(4, 3\) of fp32, found \(4, 3\) of torch.float16"),
    ],
)
def test_rows_of_another_shape_or_type_are_refused(tmp_path: Path, rows: torch.Tensor, message: str) -> None:
    write_table(tmp_path / "t.safetensors", rows)
    with pytest.raises(ArtifactError, match=message):
        require_table(map_tensors(tmp_path / "t.safetensors"), SPEC, ENTRY)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", {"weights": torch.zeros(4, 3)})
    with pytest.raises(ArtifactError, match=r"tables/t\.safetensors: there is no tensor 'rows' for table 't'"):
        require_table(map_tensors(tmp_path / "t.safetensors"), SPEC, ENTRY)


def test_an_unknown_type_is_refused() -> None:
    entry = TableEntry(table="t", file="tables/t.safetensors", dtype="int3")
    with pytest.raises(ArtifactError, match="rows of type 'int3' are not supported; this release reads fp32, fp16, bf16, int8, int4"):
        require_table({"rows": torch.zeros(4, 3)}, SPEC, entry)
