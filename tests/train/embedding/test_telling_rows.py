"""From rows of a file to the tensors of groups, of encoded and of raw values, against loops over the rows."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from emberline.errors import ConfigError, DataError
from emberline.schema import Pooling
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.data import DataReader
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.build import create_embedding_group, features_of

DATA = 'data_config {{ batch_size: 3 label_fields: "label" fg_mode: {} }} '


def answers(config: PipelineConfig, columns: dict[str, pa.Array], folder: Path) -> tuple[EmbeddingGroup, dict[str, Tensor]]:
    """A group, and its tensors for all rows of a file, read in batches."""
    torch.manual_seed(0)
    rows = len(next(iter(columns.values())))
    pq.write_table(pa.table(columns | {"label": pa.array([0] * rows)}), folder / "rows.parquet")
    features = features_of(config)
    group = create_embedding_group(config, features).eval()
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for batch in DataReader(config.data, features, folder / "rows.parquet"):
            for key, tensor in group(batch).items():
                found.setdefault(key, []).append(tensor)
    widest = {key: max((part.shape[1] for part in parts), default=0) if parts[0].dim() == 3 else 0 for key, parts in found.items()}

    def padded(key: str, part: Tensor) -> Tensor:
        return torch.nn.functional.pad(part, (0, 0, 0, widest[key] - part.shape[1])) if part.dim() == 3 else part

    return group, {key: torch.cat([padded(key, part) for part in parts]) for key, parts in found.items()}


def pooled(table: Tensor, bag: list[int], mean: bool) -> Tensor:
    total = sum((table[one].double() for one in bag), torch.zeros(table.shape[1], dtype=torch.float64))
    return total / max(len(bag), 1) if mean else total


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_sequence_in_a_deep_group_is_pooled_over_the_steps_that_are_kept(tmp_path: Path, pooling: Pooling) -> None:
    sequence = (
        'feature_configs { sequence_id_feature { feature_name: "s" embedding_dim: 4 num_buckets: 50 sequence_length: 3 '
        f'pooling: "{pooling}" }} }} '
        'feature_configs { sequence_id_feature { feature_name: "m" embedding_dim: 4 num_buckets: 50 value_dim: 0 '
        f'pooling: "{pooling}" }} }} '
    )
    groups = (
        'feature_groups { group_name: "deep" feature_names: ["s", "m"] } feature_groups { group_name: "wide" group_type: WIDE feature_names: "s" } '
    )
    steps = [[1, 2], [], [9, 8, 7, 6, 5], [3, 3], [4]]
    multi: list[list[list[int]]] = [[[1], [2, 3]], [[]], [], [[4, 4, 5], [], [6]], [[7]]]
    columns = {"s": pa.array(steps, pa.list_(pa.int64())), "m": pa.array(multi, pa.list_(pa.list_(pa.int64())))}
    group, found = answers(parse_config(DATA.format("FG_NONE") + sequence + groups), columns, tmp_path)
    tables = group.table_weights()
    mean = pooling is Pooling.MEAN
    for row in range(5):
        kept, flat = steps[row][-3:], [one for step in multi[row] for one in step]
        expected = torch.cat([pooled(tables["s_emb"], kept, mean), pooled(tables["m_emb"], flat, mean)])
        torch.testing.assert_close(found["deep"][row].double(), expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found["wide"][row].double(), pooled(tables["s_emb_wide"], kept, mean), rtol=1e-6, atol=1e-6)


def test_steps_of_none_one_and_three_ids(tmp_path: Path) -> None:
    text = """
    feature_configs { sequence_feature { sequence_name: "click" sequence_length: 4 sequence_delim: "|" features {
      id_feature { feature_name: "tags" expression: "item:tags" embedding_dim: 4 num_buckets: 20 value_dim: 0 separator: "," pooling: "mean" } } } }
    feature_groups { group_name: "g" group_type: SEQUENCE feature_names: "click__tags" }
    """
    raw = ["1,2,3||4", "", "5", "6|7,8,9|10|11|12", None]
    kept = [[[1, 2, 3], [0], [4]], [], [[5]], [[7, 8, 9], [10], [11], [12]], []]
    columns = {"click__tags": pa.array(raw, pa.string())}
    group, found = answers(parse_config(DATA.format("FG_NORMAL") + text), columns, tmp_path)
    table = group.table_weights()["click__tags_emb"]
    assert found["g.sequence_length"].tolist() == [len(row) for row in kept]
    expected = torch.zeros(5, 4, 4, dtype=torch.float64)
    for row, steps in enumerate(kept):
        for place, step in enumerate(steps):
            expected[row, place] = pooled(table, step, mean=True)
    torch.testing.assert_close(found["g.sequence"].double(), expected, rtol=1e-6, atol=1e-6)


def test_the_time_since_each_step(tmp_path: Path) -> None:
    """An expression of a row's time and each step's."""
    text = """
    feature_configs { sequence_feature { sequence_name: "click" sequence_length: 3 sequence_delim: ";" features {
      expr_feature { feature_name: "age" expression: "request_time - event_time" variables: ["user:request_time", "item:event_time"] } } } }
    feature_groups { group_name: "g" group_type: SEQUENCE feature_names: "click__age" }
    """
    times, events = [100.0, 50.0, 7.0], [[90.0, 95.5], [], [1.0, 2.0, 3.0, 4.0]]
    columns = {
        "request_time": pa.array(times),
        "click__event_time": pa.array([";".join(map(str, row)) for row in events]),
    }
    _, found = answers(parse_config(DATA.format("FG_NORMAL") + text), columns, tmp_path)
    ages = [[time - event for event in row][-3:] for time, row in zip(times, events, strict=True)]
    assert found["g.sequence_length"].tolist() == [len(row) for row in ages]
    for row, expected in enumerate(ages):
        assert found["g.sequence"][row, : len(expected), 0].tolist() == expected
        assert not found["g.sequence"][row, len(expected) :].any()


@pytest.mark.parametrize(
    ("expression", "variables", "message"),
    [
        ("request_time - event", '["user:request_time", "item:event_time"]', "feature 'click__age': "),
        ("request_time - ", '["user:request_time", "item:event_time"]', "feature 'click__age': "),
        ("request_time - event_time", '["user:request_time", "user:event_time"]', "feature 'click__age': has no raw column with steps"),
    ],
)
def test_an_expression_of_steps_that_cannot_be_is_refused_by_name(expression: str, variables: str, message: str) -> None:
    text = f"""
    feature_configs {{ sequence_feature {{ sequence_name: "click" features {{
      expr_feature {{ feature_name: "age" expression: {json.dumps(expression)} variables: {variables} }} }} }} }}
    """
    with pytest.raises(ConfigError) as caught:
        parse_config(DATA.format("FG_NORMAL") + text)
    assert all(problem.startswith(message) for problem in caught.value.problems)


def test_a_row_with_unequal_sequences_is_named(tmp_path: Path) -> None:
    text = """
    feature_configs { sequence_id_feature { feature_name: "s" embedding_dim: 4 num_buckets: 50 } }
    feature_configs { sequence_id_feature { feature_name: "t" embedding_dim: 4 num_buckets: 50 } }
    feature_groups { group_name: "g" group_type: SEQUENCE feature_names: ["s", "t"] }
    """
    columns = {name: pa.array(rows, pa.list_(pa.int64())) for name, rows in {"s": [[1], [2, 3]], "t": [[1], [2]]}.items()}
    with pytest.raises(DataError, match="group 'g' puts features 's' and 't' side by side, but they have 2 and 1 steps in row 1"):
        answers(parse_config(DATA.format("FG_NONE") + text), columns, tmp_path)
