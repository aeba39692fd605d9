import pytest

from emberline.errors import ConfigError
from emberline.train.config import DataConfig, FgMode, FieldConfig, FileFormat, parse_config


def data(text: str) -> DataConfig:
    return parse_config(f"data_config {{ {text} }}").data


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", FgMode.NONE),
        ("fg_mode: FG_NONE", FgMode.NONE),
        ("fg_mode: FG_NORMAL", FgMode.NORMAL),
        ("fg_mode: FG_DAG", FgMode.NORMAL),
        ("fg_encoded: true", FgMode.NONE),
        ("fg_encoded: false", FgMode.NORMAL),
        ("fg_encoded: false fg_mode: FG_DAG", FgMode.NORMAL),
    ],
)
def test_each_spelling_of_the_mode(text: str, mode: FgMode) -> None:
    assert data(text).fg_mode is mode


@pytest.mark.parametrize(
    ("text", "rows"),
    [("", 65536), ("shuffle_buffer_rows: 5", 5), ("shuffle_buffer_size: 3", 3 * 1024), ("batch_size: 10 shuffle_buffer_size: 3", 30)],
)
def test_the_shuffle_buffer_is_counted_in_rows_or_batches(text: str, rows: int) -> None:
    assert data(text).shuffle_buffer_rows == rows


def test_columns_of_a_csv_file() -> None:
    fields = (FieldConfig(input_name="a", input_type="INT64"), FieldConfig(input_name="b"), FieldConfig(input_name="c", input_type="STRING"))
    written = (
        'input_fields { input_name: "a" input_type: INT64 } input_fields { input_name: "b" } input_fields { input_name: "c" input_type: STRING }'
    )
    assert data(written).input_fields == fields
    assert data("dataset_type: CsvDataset input_fields_str: 'a:BIGINT; b ;c:string;'") == DataConfig(file_format=FileFormat.CSV, input_fields=fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size: 0", "batch_size must be at least 1, found 0"),
        ("eval_batch_size: 0", "eval_batch_size must be at least 1, found 0"),
        ("shuffle_buffer_rows: 0", "shuffle_buffer_rows must be at least 1, found 0"),
        ("shuffle_buffer_rows: 4 shuffle_buffer_size: 4", "exclude each other"),
        ("fg_encoded: true fg_mode: FG_NORMAL", "fg_encoded: true says FG_NONE, fg_mode says otherwise; keep fg_mode"),
        ("sample_weight_fields: ['a', 'b']", "sample_weight_fields: more than one is not supported yet"),
        ("label_fields: ['a', 'a']", "label_fields has 'a' more than once"),
        ("fg_encoded_multival_sep: ''", "fg_encoded_multival_sep must not be empty"),
        ("dataset_type: CsvDataset", "a CSV file needs names for its columns"),
        ("dataset_type: CsvDataset with_header: true delimiter: ''", "delimiter must be one character, found ''"),
        ("dataset_type: CsvDataset with_header: true delimiter: ';;'", "delimiter must be one character, found ';;'"),
        ("dataset_type: CsvDataset with_header: true delimiter: '\\n'", "delimiter must be one character"),
        ("input_fields {}", "input_name is missing"),
        ("input_fields { input_name: 'a' } input_fields { input_name: 'a' }", "input_fields has 'a' more than once"),
        ("input_fields { input_name: 'a' } input_fields_str: 'b'", "input_fields and input_fields_str exclude each other"),
        ("input_fields_str: 'a:BIGINTS'", "input_fields_str: unknown type 'BIGINTS'"),
        ("input_fields_str: ':INT64'", "input_fields: a column has no name"),
    ],
)
def test_what_can_not_be_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        data(text)
    assert any(problem.startswith("data_config: ") and message in problem for problem in caught.value.problems), caught.value.problems
