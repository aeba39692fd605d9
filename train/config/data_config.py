"""Where rows come from and how they are cut into batches."""

from dataclasses import dataclass
from enum import StrEnum


class FileFormat(StrEnum):
    """How a data file is written."""

    PARQUET = "parquet"
    CSV = "csv"


class FgMode(StrEnum):
    """Whether the data's values are ids and floats already, or raw values to be encoded."""

    NONE = "FG_NONE"
    NORMAL = "FG_NORMAL"


@dataclass(frozen=True, kw_only=True)
class FieldConfig:
    """A column of a CSV file: its name and type (a `FieldType` name such as INT64 or STRING; empty: inferred)."""

    input_name: str
    input_type: str = ""


@dataclass(frozen=True, kw_only=True)
class NegativeColumnsConfig:
    """Negatives that the rows bring along, for models that compare candidates.

    Args:
        columns: pairs: a column that item features read, and the column that has, in each row, a list of as many values in its place.
        num_negatives: values in each of those lists.
    """

    columns: tuple[tuple[str, str], ...]
    num_negatives: int


@dataclass(frozen=True, kw_only=True)
class NegativeSamplerConfig:
    """Negatives that are drawn from a table of items, for models that compare candidates: some for each batch, which its rows share.

    Args:
        input_path: files, folders, patterns of items, of the data's format.
        num_sample: negatives of a training batch, on each rank.
        attr_fields: the columns of items that features read.
        item_id_field: the column, of items and of rows, that tells items apart.
        num_eval_sample: negatives of an evaluation batch; 0: as `num_sample`.
        weight_field: the column of items with how often each is drawn, relative to the others; empty: all alike.
    """

    input_path: str
    num_sample: int
    attr_fields: tuple[str, ...]
    item_id_field: str
    num_eval_sample: int = 0
    weight_field: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that features of items may read."""
        return tuple(dict.fromkeys([*self.attr_fields, self.item_id_field]))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where rows come from and how they are cut into batches.

    Args:
        batch_size: rows a training batch.
        eval_batch_size: rows an evaluation batch; None means `batch_size`.
        file_format: parquet or CSV.
        label_fields: columns of labels.
        sample_weight_fields: columns of sample weights; at most one here.
        fg_mode: whether values are encoded already.
        fg_encoded_multival_sep: splits a text of several encoded values.
        input_fields: the columns of a CSV file in their order; names are taken from the header where there is one.
        delimiter: between two columns of a CSV file: one character.
        with_header: whether a CSV file's first line names its columns.
        drop_remainder: whether training leaves out a last batch that is not full.
        shuffle: whether training rows are shuffled.
        shuffle_buffer_rows: rows held for shuffling.
        negative_columns: negatives that the rows bring along; features that read one of its columns have rows of their own in a batch. None:
            there are none.
        negative_sampler: negatives that are drawn; features that read one of its fields have rows of their own in a batch. None: there are none.
    """

    batch_size: int = 1024
    eval_batch_size: int | None = None
    file_format: FileFormat = FileFormat.PARQUET
    label_fields: tuple[str, ...] = ()
    sample_weight_fields: tuple[str, ...] = ()
    fg_mode: FgMode = FgMode.NONE
    fg_encoded_multival_sep: str = "\x03"
    input_fields: tuple[FieldConfig, ...] = ()
    delimiter: str = ","
    with_header: bool = False
    drop_remainder: bool = False
    shuffle: bool = False
    shuffle_buffer_rows: int = 65536
    negative_columns: NegativeColumnsConfig | None = None
    negative_sampler: NegativeSamplerConfig | None = None

    @property
    def sample_weight_field(self) -> str | None:
        """The column of sample weights, if there is one."""
        return self.sample_weight_fields[0] if self.sample_weight_fields else None

    @property
    def neg_fields(self) -> tuple[str, ...]:
        """The columns that negatives have values of."""
        if self.negative_sampler:
            return self.negative_sampler.fields
        return tuple(column for column, _ in self.negative_columns.columns) if self.negative_columns else ()

    @property
    def negatives_from(self) -> str:
        """The field that says where negatives come from; empty where there are none."""
        return "negative_sampler" if self.negative_sampler else "negative_columns" if self.negative_columns else ""
