import pytest

from emberline.errors import ConfigError
from emberline.train.config import DataConfig, FgMode, FieldConfig, FileFormat, parse_config
from emberline.train.config.data_config import NegativeSamplerConfig


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


def sampler(old: str = "", new: str = "", more: str = "") -> str:
    """A right one, with one place changed and something added."""
    text = "input_path: 'items.parquet' num_sample: 5 attr_fields: ['item', 'price'] item_id_field: 'id'"
    return f"negative_sampler {{ {text.replace(old, new) if old else text} {more} }}"


def test_a_sampler_of_items() -> None:
    config = data(sampler(more="num_eval_sample: 9 weight_field: 'seen'"))
    assert config.negative_sampler == NegativeSamplerConfig(
        input_path="items.parquet", num_sample=5, attr_fields=("item", "price"), item_id_field="id", num_eval_sample=9, weight_field="seen"
    )
    assert (config.negatives_from, config.neg_fields) == ("negative_sampler", ("item", "price", "id"))
    plain = data(sampler("'id'", "'item'"))
    assert plain.neg_fields == ("item", "price")
    assert plain.negative_sampler is not None
    assert (plain.negative_sampler.num_eval_sample, plain.negative_sampler.weight_field) == (0, "")
    assert (data("").negatives_from, data("").neg_fields) == ("", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("negative_sampler {}", "negative_sampler: input_path is missing"),
        ("negative_sampler {}", "negative_sampler: num_sample is missing"),
        ("negative_sampler {}", "negative_sampler: attr_fields is missing"),
        ("negative_sampler {}", "negative_sampler: item_id_field is missing"),
        (sampler("5", "0"), "negative_sampler: num_sample must be at least 1, found 0"),
        (sampler("items.parquet", ""), "negative_sampler: input_path must not be empty"),
        (sampler("'id'", "''"), "negative_sampler: item_id_field must not be empty"),
        (sampler("price", ""), "attr_fields must name the columns of items that features read"),
        (sampler("price", "item"), "attr_fields has 'item' more than once"),
        (
            sampler() + " negative_columns { num_negatives: 2 columns { key: 'item' value: 'others' } }",
            "negative_columns and negative_sampler exclude each other; keep one",
        ),
        (
            sampler() + " dataset_type: CsvDataset input_fields { input_name: 'a' }",
            "negative_sampler: items have other columns than the data's input_fields: give all CSV files headers, and set with_header: true",
        ),
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
