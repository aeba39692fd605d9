from pathlib import Path

import pytest
import torch

from emberline.encoding import columns_from_rows, encode
from emberline.errors import DataError
from emberline.schema import FeatureKind, FeatureSpec, HashEncoder, NumericEncoder, RawIdEncoder
from emberline.train.config.data_config import DataConfig, FieldConfig, FileFormat
from emberline.train.data import DataPosition, DataReader
from emberline.train.features import BASE_DATA_GROUP, Feature


def _sparse(name: str, column: str = "") -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(column or name,), encoder=RawIdEncoder(), separator="|")
    return Feature(name=name, spec=spec)


USER, TAGS = _sparse("user"), _sparse("tags")
X = Feature(name="x", spec=FeatureSpec(name="x", kind=FeatureKind.DENSE, columns=("x",), encoder=NumericEncoder(), value_dim=1, default="9"))
CONFIG = DataConfig(batch_size=2, file_format=FileFormat.CSV, with_header=True, label_fields=("y",))
TEXT = 'user,x,tags,y,more\n007,1.5,1|2,1,a\n9223372036854775807,,,0,b\n-7,nan,"x,y|",0.5,c\n18446744073709551616,-2e1,007,true,d\n5,7,3,1,NA\n'


def _read(path: Path, config: DataConfig = CONFIG) -> list[tuple[list[int], list[int], list[float], list[float]]]:
    reader = DataReader(config, [USER, TAGS, X], path)
    out = []
    for batch in reader:
        kjt = batch.sparse_features[BASE_DATA_GROUP]
        x = batch.dense_features[BASE_DATA_GROUP]["x"][:, 0]
        out.append((kjt["user"].values().tolist(), kjt["tags"].lengths().tolist(), x.tolist(), batch.labels["y"].tolist()))
    return out


def _raw(text: str) -> int:
    """The id that a request gets for the same text."""
    return int(encode([USER.spec], *columns_from_rows([USER.spec], [{"user": text}])).sparse["user"].values[0])


def test_columns_are_text_so_that_ids_mean_what_they_mean_in_a_request(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    assert _read(tmp_path) == [
        ([_raw("007"), 2**63 - 1], [2, 0], [1.5, 9.0], [1.0, 0.0]),
        ([-7, _raw("18446744073709551616")], [1, 1], [9.0, -20.0], [0.5, 1.0]),
        ([5], [1], [7.0], [1.0]),
    ]
    assert _raw("007") != 7


def test_other_delimiters_names_and_types(tmp_path: Path) -> None:
    lines = [line.replace("true", "1").replace(",", "\t").replace('"x\ty|"', "z") for line in TEXT.splitlines()[1:]]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
    names = ("user", "x", "tags", "y", "more")
    config = DataConfig(
        batch_size=10,
        file_format=FileFormat.CSV,
        delimiter="\t",
        label_fields=("y",),
        input_fields=tuple(FieldConfig(input_name=name, input_type={"x": "DOUBLE", "y": "FLOAT"}.get(name, "STRING")) for name in names),
    )
    users, lengths, x, y = _read(tmp_path, config)[0]
    assert users == [_raw("007"), 2**63 - 1, -7, _raw("18446744073709551616"), 5]
    assert (lengths, x, y) == ([2, 0, 1, 1, 1], [1.5, 9.0, 9.0, -20.0, 7.0], [1.0, 0.0, 0.5, 1.0, 1.0])


def test_declared_integers_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,x,tags,y\n007,1,1,1\n")
    fields = (FieldConfig(input_name="user", input_type="INT64"), FieldConfig(input_name="y", input_type="INT32"))
    config = DataConfig(batch_size=2, file_format=FileFormat.CSV, with_header=True, label_fields=("y",), input_fields=fields)
    batch = next(iter(DataReader(config, [USER], tmp_path)))
    assert batch.sparse_features[BASE_DATA_GROUP]["user"].values().tolist() == [7]
    assert batch.labels["y"].dtype == torch.int64


def test_words_that_other_readers_take_for_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('country\nNA\nnull\nNaN\n""\n\\N\n')
    feature = Feature(name="c", spec=FeatureSpec(name="c", kind=FeatureKind.SPARSE, columns=("country",), encoder=HashEncoder(rows=10**9)))
    config = DataConfig(batch_size=9, file_format=FileFormat.CSV, with_header=True)
    batch = next(iter(DataReader(config, [feature], tmp_path)))
    bag = batch.sparse_features[BASE_DATA_GROUP]["c"]
    assert bag.lengths().tolist() == [1, 1, 1, 0, 1]
    assert len(set(bag.values().tolist())) == 4


def test_many_blocks_and_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberline.train.data.csv_source._BLOCK_BYTES", 300)
    for name, rows in (("a.csv", range(100)), ("b.csv", range(0)), ("c.csv", range(100, 157))):
        (tmp_path / name).write_text("user,y\n" + "".join(f"{row},{row % 2}\n" for row in rows))
    for shuffle in (False, True):
        config = DataConfig(batch_size=10, file_format=FileFormat.CSV, with_header=True, label_fields=("y",), shuffle=shuffle, shuffle_buffer_rows=40)

        def rest(position: DataPosition, config: DataConfig = config) -> list[list[int]]:
            reader = DataReader(config, [USER], tmp_path, position=position, seed=4)
            return [batch.sparse_features[BASE_DATA_GROUP]["user"].values().tolist() for batch in reader]

        everything = rest(DataPosition())
        users = [user for batch in everything for user in batch]
        assert (sorted(users), users == sorted(users)) == (list(range(157)), not shuffle)
        assert [len(batch) for batch in everything] == [10] * 15 + [7]
        for done in range(17):
            assert rest(DataPosition(0, min(done * 10, 157))) == everything[done:]
    assert DataReader(config, [USER], tmp_path).num_rows is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    with pytest.raises(DataError, match=r"a\.csv is empty: it has no header"):
        DataReader(CONFIG, [USER], path)
    path.write_text("usr,y\n1,1\n")
    with pytest.raises(DataError, match=r"a\.csv has no column 'user' \(is 'usr' meant\?\); there are: usr, y"):
        DataReader(CONFIG, [USER], path)
    path.write_text("user,y\n1,1\n2\n")
    with pytest.raises(DataError, match=r"a\.csv cannot be read as CSV: .*Expected 2 columns, got 1"):
        list(DataReader(CONFIG, [USER], path))
    path.write_bytes(b"user,y\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"a\.csv cannot be read as CSV: .*UTF"):
        list(DataReader(CONFIG, [USER], path))
    path.write_text("user,y\n1,1\n2,\n")
    with pytest.raises(DataError, match=r"a\.csv, row 1: column 'y': the label is missing"):
        list(DataReader(CONFIG, [USER], path))
    path.write_text("user,x,tags,y\n1,1,1,1\n1,a,1,1\n")
    with pytest.raises(DataError, match=r"a\.csv, row 1: feature 'x': 'a' is not a number"):
        _read(path)
    with pytest.raises(DataError, match="CSV columns have no names: set with_header: true, or list input_fields"):
        DataReader(DataConfig(file_format=FileFormat.CSV), [USER], path)


def test_an_empty_file_without_header_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    config = DataConfig(file_format=FileFormat.CSV, input_fields=(FieldConfig(input_name="user"),))
    assert list(DataReader(config, [USER], tmp_path)) == []
