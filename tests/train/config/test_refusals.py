"""Nothing in a config is accepted and ignored: every field of every message is read, refused, or told to have no effect."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberline.errors import ConfigError
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.config.data_config import DataConfig
from emberline.train.config.model_config import ModelConfig
from emberline.train.config.protos import pipeline_pb2
from emberline.train.config.read import BY_HAND, BY_PLACE, CLASSES, WRAPPERS
from emberline.train.config.refusals import NO_EFFECT, REFUSED, REFUSED_VALUES, lookup, no_effect
from emberline.train.features import SequenceFeatureConfig

# Messages that are read by hand: where each of their fields goes.
HANDS = {
    "Pipeline": {
        "train_input_path": "train_input_path",
        "eval_input_path": "eval_input_path",
        "model_dir": "model_dir",
        "train_config": "train",
        "eval_config": "eval",
        "export_config": "export",
        "data_config": "data",
        "feature_configs": "feature_configs",
        "feature_groups": "feature_groups",
        "model_config": "model",
    },
    "Data": {
        **{field.name: field.name for field in dataclasses.fields(DataConfig)},
        "dataset_type": "file_format",
        "fg_encoded": "fg_mode",
        "shuffle_buffer_size": "shuffle_buffer_rows",
        "input_fields_str": "input_fields",
    },
    "Model": {**{field.name: field.name for field in dataclasses.fields(ModelConfig)}, "feature_groups": "feature_groups"},
    "SequenceFeature": {field.name: field.name for field in dataclasses.fields(SequenceFeatureConfig)},
    "CustomModel": {"class_path": "class_path", "kwargs": "kwargs"},
    "Argument": {
        "name": "kwargs",
        **{f"{kind}_value{plural}": "kwargs" for kind in ("int", "float", "bool", "string") for plural in ("", "s")},
    },
}


def accepted_fields() -> Iterator[tuple[Any, Any]]:
    """Every field that a config can say and that is not refused, from the root down."""
    todo, seen = [pipeline_pb2.Pipeline.DESCRIPTOR], set()
    while todo:
        message = todo.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        for field in message.fields:
            refusal = lookup(message.name, field.name)
            if refusal is None and not no_effect(message.name, field.name):
                yield message, field
                if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                    todo.append(field.message_type)


def target(field: Any) -> str:
    name: str = field.containing_oneof.name if field.containing_oneof else field.name
    return name


def test_every_field_is_read_or_refused(said: list[str]) -> None:
    fields = list(accepted_fields())
    for message, field in fields:
        where = f"{message.name}.{field.name}"
        if message.name in HANDS:
            assert field.name in HANDS[message.name] or target(field) in HANDS[message.name], where
        elif message.name in WRAPPERS:
            assert field.message_type is not None, where
        else:
            classes = [cls for key, cls in CLASSES.items() if key == message.name]
            assert classes, f"{where}: no dataclass"
            assert target(field) in {one.name for one in dataclasses.fields(classes[0])}, where
    said.append(f"config: {len(fields)} accepted fields are all read, {len(REFUSED)} refusals")
    assert len(fields) > 120


def test_messages_read_by_hand_are_those_listed() -> None:
    assert set(HANDS) == BY_HAND


def test_the_tables_name_what_exists() -> None:
    fields: dict[str, set[str]] = {}
    todo = [pipeline_pb2.Pipeline.DESCRIPTOR]
    while todo:
        message = todo.pop()
        if message.name not in fields:
            fields[message.name] = {field.name for field in message.fields}
            todo += [field.message_type for field in message.fields if field.message_type is not None]
    everything = set().union(*fields.values())
    for key in [*REFUSED, *REFUSED_VALUES, *NO_EFFECT]:
        message_name, _, name = key.partition(".")
        assert name in (everything if message_name == "*" else fields.get(message_name, set())), key


def test_a_dataclass_has_no_field_that_no_config_can_set() -> None:
    settable: dict[str, set[str]] = {}
    for message, field in accepted_fields():
        settable.setdefault(message.name, set()).add(target(field))
        if field.message_type is not None:
            settable.setdefault(field.message_type.name, set()).update(BY_PLACE.get(f"{message.name}.{field.name}", {}))
    for key, cls in CLASSES.items():
        if "." not in key:
            extra = {field.name for field in dataclasses.fields(cls)} - settable.get(key, set())
            assert not extra, f"{key}: {extra}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data_config { fg_mode: FG_NORMAL } feature_configs { combine_feature { feature_name: 'x' } }",
            "feature 'x': combine_feature is not supported yet for raw values (fg_mode FG_NORMAL); compute it before, and use fg_mode FG_NONE",
        ),
        (
            "feature_configs { sequence_feature { sequence_name: 's' features { id_feature { feature_name: 'x' use_mask: true } } } }",
            "feature 's__x': use_mask is not supported yet",
        ),
        ("feature_configs { id_feature { feature_name: 'x' use_mask: true } }", "feature 'x': use_mask is not supported yet"),
        ("feature_configs { id_feature { feature_name: 'x' stub_type: true } }", "feature 'x': stub_type is not supported yet"),
        ("data_config { dataset_type: KafkaDataset }", "data_config: dataset_type KafkaDataset is not supported yet; use ParquetDataset"),
        ("data_config { fg_mode: FG_BUCKETIZE }", "data_config: fg_mode FG_BUCKETIZE is not supported yet"),
        (
            "data_config { negative_sampler_v2 {} }",
            "data_config: negative_sampler_v2 is not supported yet; negative_sampler draws items by weight, negative_columns reads",
        ),
        ("data_config { tdm_sampler {} }", "data_config: tdm_sampler is not supported yet; negative_sampler draws"),
        (
            "data_config { negative_sampler { attr_delimiter: ':' } }",
            "data_config: negative_sampler: attr_delimiter is not supported yet; items are files of the data's format: give each",
        ),
        (
            "data_config { negative_sampler { field_delimiter: ',' } }",
            "data_config: negative_sampler: field_delimiter is not supported yet; items are files of the data's format, and data_config's delimiter",
        ),
        (
            "data_config { negative_sampler { item_id_delim: ';' } }",
            "data_config: negative_sampler: item_id_delim is not supported yet; each row has one item",
        ),
        ("data_config { sample_mask_prob: 0.5 }", "data_config: sample_mask_prob 0.5 is not supported yet"),
        ("export_config { mixed_precision: 'FP16' }", "export_config: mixed_precision 'FP16' is not supported yet"),
        ("train_config { fine_tune_checkpoint: 'c' }", "train_config: fine_tune_checkpoint is not supported yet; give it as --warm-start"),
        ("export_config { exporter_type: 'final' }", "export_config: exporter_type: must be latest or best, found 'final'"),
        ("eval_config { evaluator_type: 'best' }", "eval_config: evaluator_type 'best' is not supported yet"),
        ("model_config { kernel: TRITON }", "model_config: kernel 'TRITON' is not supported yet"),
        ("model_config { losses { jrc_loss {} } }", "model_config: losses: jrc_loss is not supported yet"),
        ("model_config { metrics { grouped_auc {} } }", "model_config: metrics: grouped_auc is not supported yet"),
        ("item_input_path: 'x'", "the config: item_input_path is not supported yet"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert any(problem.startswith(message) or message in problem for problem in caught.value.problems), caught.value.problems


def test_what_only_raw_values_would_need_is_told() -> None:
    text = "feature_configs { %s { feature_name: 'x' %s } }"
    combine = parse_config(text % ("combine_feature", "value_map { key: 'a' value: 1 } combiner: 'sum'"))
    assert combine.notes == (
        "feature 'x': value_map has no effect: the data must hold what it computes",
        "feature 'x': combiner has no effect: the data must hold what it computes",
    )
    custom = parse_config(text % ("custom_feature", "operator_params { fields { key: 'a' value { number_value: 1 } } }"))
    assert custom.notes == ("feature 'x': operator_params has no effect: the data must hold what it computes",)


def test_a_refused_field_may_say_that_it_is_off() -> None:
    text = """
    data_config { min_batch_size: 0 force_base_data_group: false sample_mask_prob: 0 }
    train_config {
      sparse_optimizer { rowwise_adagrad_optimizer { weight_decay: 0 weight_decay_mode: NONE } }
      dense_optimizer { adam_optimizer { fused: false } }
      is_profiling: false cudnn_allow_tf32: true
    }
    model_config { kernel: PYTORCH use_pareto_loss_weight: false }
    export_config { exporter_type: "latest" }
    feature_configs { id_feature { feature_name: "x" embedding_dim: 4 num_buckets: 3 use_mask: false stub_type: false } }
    """
    config = parse_config(text)
    assert config.notes == ("train_config: dense_optimizer: adam_optimizer: fused has no effect: it changes no answer",)


def test_what_has_no_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_config("data_config { num_workers: 8 pin_memory: true }", source="c.pbtxt")
    assert config.notes == (
        "data_config: num_workers has no effect: reading has a thread of its own",
        "data_config: pin_memory has no effect: it changes no answer",
    )
    assert [record.getMessage() for record in caplog.records] == [f"c.pbtxt: {note}" for note in config.notes]


# Settings that nobody needs to read, and why.
NOT_READ: dict[str, str] = {}


def test_every_setting_is_used_somewhere(repository: Path) -> None:
    """A setting that is read into a dataclass, and that nobody reads from there, would be ignored."""
    files = [path for folder in ("train", "export") for path in (repository / folder).rglob("*.py") if not path.name.endswith("_pb2.py")]
    read: dict[str, set[str]] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                read.setdefault(node.attr, set()).add(path.relative_to(repository).as_posix())
    unread = []
    for cls in {*CLASSES.values(), DataConfig, ModelConfig, PipelineConfig}:
        names = [] if hasattr(cls, "arguments") else [field.name for field in dataclasses.fields(cls)]
        checks = ("read_", "load.py", "checks.py")
        unread += [
            f"{cls.__name__}.{name}" for name in names if not [path for path in read.get(name, ()) if not any(check in path for check in checks)]
        ]
    assert sorted(set(unread) - set(NOT_READ)) == []
