"""What `--quantize` says, for each table."""

import pytest

from emberline.errors import ExportError
from emberline.export.number_types import NUMBER_TYPES, read_number_types
from emberline.schema import TableSpec

TABLES = (
    TableSpec(name="city", rows=4, dim=4),
    TableSpec(name="uid", rows=4, dim=4, dtype="fp16"),
    TableSpec(name="tags", rows=4, dim=4, dtype="bf16"),
)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([], ["fp32", "fp16", "bf16"]),
        (["fp32"], ["fp32", "fp16", "bf16"]),
        (["fp16"], ["fp16", "fp16", "fp16"]),
        (["bf16"], ["bf16", "bf16", "bf16"]),
        (["int8"], ["int8", "int8", "int8"]),
        (["tags=int4"], ["fp32", "fp16", "int4"]),
        (["uid=fp32", "int8", "city=int4"], ["int4", "fp16", "int8"]),
    ],
)
def test_each_table_gets_what_is_said_of_it_or_of_all_or_stays(texts: list[str], wanted: list[str]) -> None:
    assert read_number_types(TABLES, texts) == dict(zip(("city", "uid", "tags"), wanted, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int3", "--quantize int3: unknown number type 'int3'; did you mean 'int8'"),
        ("FP16", "unknown number type 'FP16'.*write TYPE or TABLE=TYPE"),
        ("town=int8", "--quantize town=int8: unknown table 'town'; known: city, uid, tags"),
    ],
)
def test_other_types_and_tables_are_refused(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read_number_types(TABLES, [text])
    assert NUMBER_TYPES == ("fp32", "fp16", "bf16", "int8", "int4")
