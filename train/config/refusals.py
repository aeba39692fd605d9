"""What a config can say but this version can't do, and what it says that has no effect here: the only place that lists either.

A field is read into a dataclass, or it is in one of these tables; a test holds every field of every message against that. To support a
refused field, take it out of the table and add it to its dataclass.

Keys are `Message.field` of the `.proto` files; `*.field` holds for every message.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLERS = ("negative_sampler_v2", "hard_negative_sampler", "hard_negative_sampler_v2", "tdm_sampler")
_SAMPLED = "; negative_sampler draws items by weight, negative_columns reads negatives that the rows bring along"
_COMPUTED = "the data must hold what it computes"
_COMPUTED_BEFORE: Mapping[str, tuple[str, ...]] = {
    "Overlap": ("method", "normalizer"),
    "KvDotProduct": ("kv_delimiter", "normalizer", "default_value"),
    "Combine": ("value_map", "combiner", "normalizer", "default_value"),
    "Tokenize": ("text_normalizer", "default_value"),
    "Custom": ("operator_name", "operator_lib_file", "operator_params", "is_op_thread_safe", "normalizer"),
}
"""Settings of families whose features are only taken from data that is encoded already: `create_features` refuses them elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A field that is refused.

    Args:
        unless: values that are accepted, as they ask for nothing.
        instead: what to do, as the end of a sentence that begins with its punctuation.
    """

    unless: tuple[object, ...] = ()
    instead: str = ""


_OFF = Refusal(unless=(False,))

REFUSED: Mapping[str, Refusal] = {
    # features
    "*.use_mask": _OFF,
    "*.stub_type": _OFF,
    # data
    **{f"Data.{name}": Refusal(instead=_SAMPLED) for name in _SAMPLERS},
    "NegativeSampler.attr_delimiter": Refusal(instead="; items are files of the data's format: give each of attr_fields a column of its own"),
    "NegativeSampler.field_delimiter": Refusal(instead="; items are files of the data's format, and data_config's delimiter holds for them too"),
    "NegativeSampler.item_id_delim": Refusal(instead="; each row has one item: write rows of several items as several rows"),
    "Data.is_orderby_partition": _OFF,
    "Data.sample_mask_prob": Refusal(unless=(0.0,)),
    "Data.negative_sample_mask_prob": Refusal(unless=(0.0,)),
    "Data.force_base_data_group": _OFF,
    "Data.sample_cost_field": Refusal(),
    "Data.batch_cost_size": Refusal(),
    "Data.min_batch_size": Refusal(unless=(0,), instead="; drop_remainder leaves out a last batch that is not full"),
    # training
    "Train.fine_tune_checkpoint": Refusal(instead="; give it as --warm-start"),
    "Train.fine_tune_ckpt_param_map": Refusal(instead="; give it as --map, our name first"),
    "Train.is_profiling": _OFF,
    "Train.cudnn_allow_tf32": Refusal(unless=(True,)),
    "Train.cuda_matmul_allow_tf32": _OFF,
    "Train.save_checkpoints_timestamp_interval": Refusal(unless=(0,)),
    "Train.save_checkpoints_timestamps": Refusal(),
    "Train.delta_embedding_dump_config": Refusal(),
    "Eval.evaluator_type": Refusal(unless=("latest",)),
    "Export.mixed_precision": Refusal(unless=("",)),
    "Export.cudnn_allow_tf32": Refusal(unless=(True,)),
    "Export.cuda_matmul_allow_tf32": _OFF,
    # model
    "Model.train_metrics": Refusal(),
    "Model.variational_dropout": Refusal(),
    "Model.kernel": Refusal(unless=("PYTORCH",)),
    "Model.use_pareto_loss_weight": _OFF,
    **{f"Loss.{name}": Refusal() for name in ("jrc_loss", "binary_focal_loss")},
    **{f"Metric.{name}": Refusal() for name in ("multiclass_auc", "mean_absolute_error", "mean_squared_error", "accuracy", "grouped_auc")},
    "Pipeline.item_input_path": Refusal(),
}

REFUSED_VALUES: Mapping[str, Mapping[str, str]] = {
    "Data.dataset_type": dict.fromkeys(("OdpsDataset", "OdpsDatasetV1", "KafkaDataset"), "; use ParquetDataset or CsvDataset"),
    "Data.fg_mode": {"FG_BUCKETIZE": "; use FG_NONE for ids, FG_NORMAL for raw values"},
}
"""Enum values that are refused, and what to do, by the same keys."""

NO_EFFECT: Mapping[str, str] = {
    "*.fg_value_type": "types are found from the data",
    "SequenceFeature.sequence_pk": "steps come with each row, and are looked up nowhere",
    **{f"{message}Feature.{name}": _COMPUTED for message, names in _COMPUTED_BEFORE.items() for name in names},
    "Data.num_workers": "reading has a thread of its own",
    "Data.pin_memory": "it changes no answer",
    "Data.fg_threads": "features are encoded by vectorised code",
    "Data.in_order": "batches always come in order",
    "Data.odps_data_quota_name": "it is for MaxCompute tables",
    "Data.odps_data_compression": "it is for MaxCompute tables",
    "*.fused": "it changes no answer",
    "Train.save_checkpoints_timestamp_quorum": "it is for checkpoints by timestamp",
    "Auc.thresholds": "the AUC is exact",
}
"""Fields that are accepted though they do nothing, and why that is right; `PipelineConfig.notes` tells the user."""


def lookup(message: str, field: str) -> Refusal | None:
    """The refusal of a field, if it is refused."""
    return REFUSED.get(f"{message}.{field}", REFUSED.get(f"*.{field}"))


def no_effect(message: str, field: str) -> str:
    """Why a field has no effect, or empty where it has one."""
    return NO_EFFECT.get(f"{message}.{field}", NO_EFFECT.get(f"*.{field}", ""))
