"""The parts of a training run, built from its config: features, model, sharded model, optimiser, readers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from emberline.errors import ConfigError
from emberline.schema import TableKind
from emberline.train.batch_norm import join_batch_norms
from emberline.train.checkpoint.keeping import BestBy
from emberline.train.config import PipelineConfig
from emberline.train.config.model_config import MmoeConfig
from emberline.train.config.train_config import ExporterType
from emberline.train.data import DataReader
from emberline.train.data.paths import Paths
from emberline.train.data.sampler import Items, create_sampler, open_items
from emberline.train.dynamic.options import DynamicRuntime, ScoreStrategy
from emberline.train.features import BASE_DATA_GROUP, Feature
from emberline.train.models import RecModel, build_model, features_of
from emberline.train.models.tasks import compute_metrics
from emberline.train.optim import TrainingStep, apply_sparse_optimizer, initial_moment, set_initial_moments
from emberline.train.sharding import create_sharders, shard_model
from emberline.train.sharding.found import find_hardware
from emberline.train.sharding.hardware import Hardware
from emberline.train.sharding.hash_rows import is_dynamic
from emberline.train.sharding.job_plan import plan_for
from emberline.train.sharding.process_group import ALONE, COLLECTIVE_TIMEOUT, Ranks
from emberline.train.sharding.traffic import batches_to_sample, measure_traffic


@dataclass(frozen=True)
class Parts:
    """What a run is made of.

    Args:
        features: in config order.
        model: its tables are sharded.
        sharded: `model` under DistributedModelParallel.
        step: what turns a loss into new parameters.
        hardware: the ranks, as they were found.
        samples: batches of the training data, at most, that ids a row were counted in; 0: none.
        items: what negatives are drawn from, where they were read to count.
    """

    features: tuple[Feature, ...]
    model: RecModel
    sharded: DistributedModelParallel
    step: TrainingStep
    hardware: Hardware
    samples: int = 0
    items: Items | None = None

    @property
    def planned_for(self) -> tuple[str, ...]:
        """What the tables were planned for, in lines."""
        counted = (f"ids a row: counted in the first batches of the training data, {self.samples} at most",) if self.samples else ()
        return (*self.hardware.lines(), *counted)


def build_parts(
    config: PipelineConfig,
    plan: Path | None = None,
    ranks: Ranks = ALONE,
    *,
    measured: bool = False,
    bound: bool = True,
    dynamic: DynamicRuntime | None = None,
) -> Parts:
    """Build the model, shard it, and put the optimisers on. Needs a process group.

    Initial values depend on the config's seed, those of tables also on how they lie on the ranks.

    Args:
        config: a whole pipeline.
        plan: the file of the plan to shard by; None: the planner makes one.
        ranks: of the group.
        measured: whether bandwidths may be measured, and ids a row counted in the training data, before the planner begins.
        bound: whether the planner keeps to what the config asks of tables' places.
        dynamic: what the job knows of tables that grow; its seed is the config's.

    Raises:
        ConfigError: the config does not describe a model that can be trained here.
    """
    settings = config.need_train()
    torch.manual_seed(settings.seed)
    features = features_of(config)
    _check_negatives(config, features)
    model = build_model(config, features, torch.device("meta"))
    sharders = create_sharders(replace(dynamic or DynamicRuntime(), seed=settings.seed))
    sparse, group = settings.sparse_optimizer.optimizer, model.embedding_group
    weights = group.table_weights()
    frozen = {name for name, weight in weights.items() if not weight.requires_grad}
    _check_accumulation(config, [table.name for table in group.tables if table.kind is TableKind.ZCH and table.name not in frozen])
    apply_sparse_optimizer(weights, sparse)
    group.set_initial_moment(initial_moment(sparse))
    measured = measured and plan is None
    planner = settings.planner if measured else replace(settings.planner, measure_bandwidths=False)
    hardware = find_hardware(planner, ranks.device, ranks.world_size, ranks.local_world_size)
    samples = batches_to_sample(config, features, hardware) if measured else 0
    items = open_items(config.data, features) if samples else None
    traffic = measure_traffic(config, features, samples, items) if samples else None
    placed = plan_for(model, sharders, config, hardware, saved=plan, traffic=traffic, bound=bound)
    _check_evictions(config, placed, frozen)
    if ranks.world_size > 1:
        # Groups of their own: collectives of different kinds need not come in the same order on all ranks.
        join_batch_norms(model, dist.new_group(timeout=COLLECTIVE_TIMEOUT))
        # From here on each rank draws numbers of its own: parts of one table must differ, and so must what dropout leaves out.
        torch.manual_seed(_seed_of_rank(settings.seed, ranks.rank))
    sharded = shard_model(model, placed, sharders, ranks.world_size, ranks.device)
    set_initial_moments(sharded, sparse)
    return Parts(tuple(features), model, sharded, TrainingStep(sharded, settings, frozen), hardware, samples, items)


def _seed_of_rank(seed: int, rank: int) -> int:
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _check_negatives(config: PipelineConfig, features: Sequence[Feature]) -> None:
    """Refuse negatives of columns that nothing reads, and features that read what negatives do not have."""
    origin, sampler = config.data.negatives_from, config.data.negative_sampler
    read = {column for feature in features for column in feature.spec.columns}
    fields = sampler.attr_fields if sampler else config.data.neg_fields
    unread = [column for column in fields if column not in read]
    problems = [f"data_config: {origin}: no feature reads {', '.join(unread)}; take it out"] if unread else []
    for feature in features if sampler else ():
        missing = [column for column in feature.spec.columns if column not in config.data.neg_fields]
        if missing and feature.data_group != BASE_DATA_GROUP:
            problems.append(
                f"data_config: negative_sampler: feature {feature.name!r} reads {', '.join(missing)} beside columns of items, but items that are "
                f"drawn only have {', '.join(config.data.neg_fields)}: list it in attr_fields where items have it; the user's side can't be crossed"
            )
    if problems:
        raise ConfigError(problems, config.source)


def _check_accumulation(config: PipelineConfig, zch_tables: Sequence[str]) -> None:
    """Refuse steps of several batches where rows may change owner between them: the new owner would learn what the old one did."""
    if config.need_train().gradient_accumulation_steps > 1 and zch_tables:
        shown = ", ".join(zch_tables)
        raise ConfigError(f"train_config: gradient_accumulation_steps: rows of zch tables ({shown}) may change owner within a step", config.source)


def _check_evictions(config: PipelineConfig, plan: ShardingPlan, frozen: Collection[str]) -> None:
    """Refuse the same of tables that grow, where one that is full gives an id's row to another."""
    if config.need_train().gradient_accumulation_steps <= 1:
        return
    tables: dict[str, Any] = {name: own for module in plan.plan.values() for name, own in cast(dict[str, Any], module).items() if is_dynamic(own)}
    keeps = ScoreStrategy.NO_EVICTION
    names = [name for name, own in tables.items() if name not in frozen and own.dynamicemb_options.score_strategy != keeps]
    if names:
        shown = ", ".join(names)
        raise ConfigError(
            f"train_config: gradient_accumulation_steps: rows of dynamicemb tables ({shown}) may go to other ids within a step; "
            f"leave it out, or set score_strategy: '{keeps}'",
            config.source,
        )


def check_complete(config: PipelineConfig) -> None:
    """Refuse a config without what only a training run needs.

    Raises:
        ConfigError: names every part that is missing.
    """
    problems = missing_parts(config)
    if not config.train_input_path:
        problems.append("train_input_path is missing: name the training files")
    if problems:
        raise ConfigError(problems, config.source)
    if config.export.exporter_type is ExporterType.BEST and not config.eval_input_path:
        problems.append("export_config: exporter_type 'best' needs evaluation data; set eval_input_path")
    if config.export.use_dense_ema and not config.uses_dense_ema:
        problems.append("export_config: use_dense_ema needs averages; add ema {} to train_config")
    labels = config.data.label_fields
    if isinstance(model := config.need_model().model, MmoeConfig):
        wanted = list(dict.fromkeys(task.label_name for task in model.task_towers))
        problems += [f"data_config: label_fields must have {name!r}, the label of a task" for name in wanted if name not in labels]
        problems += [f"data_config: label_fields has {name!r}, which no task learns; take it out" for name in labels if name not in wanted]
    elif len(labels) != 1:
        problems.append(f"data_config: label_fields must name one column, found {', '.join(labels) or 'none'}")
    if problems:
        raise ConfigError(problems, config.source)


def missing_parts(config: PipelineConfig) -> list[str]:
    """A sentence for each part without which there is no model to train: the model, how it learns."""
    problems: list[str] = []
    for need in (config.need_model, config.need_train):
        try:
            need()
        except ConfigError as error:
            problems += error.problems
    return problems


def best_by(config: PipelineConfig, model: RecModel) -> BestBy | None:
    """What makes a checkpoint of a run the best; None where the config does not ask.

    Raises:
        ConfigError: the evaluation has no such metric.
    """
    if config.export.exporter_type is not ExporterType.BEST:
        return None
    known = list(compute_metrics(model.tasks, [task.create_metrics() for task in model.tasks]))
    metric = config.export.best_exporter_metric
    if metric not in known:
        raise ConfigError(f"export_config: best_exporter_metric: the evaluation has no {metric!r}, only {', '.join(known)}", config.source)
    return BestBy(metric=metric, larger=config.export.metric_larger_is_better)


def open_data(
    config: PipelineConfig, features: tuple[Feature, ...], ranks: Ranks = ALONE, items: Items | None = None
) -> tuple[DataReader, DataReader | None]:
    """The training rows of a rank, in an order that the config's seed decides, and its evaluation rows, in file order; None where there are none.

    Args:
        config: says which files, and how to read them.
        features: what to encode.
        ranks: which share the rows.
        items: as for `open_evaluation_data`.

    Raises:
        DataError: a file is missing or damaged, or lacks a column.
    """
    items = open_items(config.data, features) if items is None else items
    training = DataReader(
        config.data,
        features,
        config.train_input_path,
        seed=config.need_train().seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        sampler=create_sampler(config.data, items),
    )
    return training, open_evaluation_data(config, features, ranks, items)


def open_evaluation_data(
    config: PipelineConfig, features: tuple[Feature, ...], ranks: Ranks = ALONE, items: Items | None = None
) -> DataReader | None:
    """The evaluation rows of a rank, in file order; None where the config has none.

    Args:
        config: says which files, and how to read them.
        features: what to encode.
        ranks: which share the rows.
        items: what negatives are drawn from; None: they are read, where the config draws some.

    Raises:
        DataError: a file is missing or damaged, or lacks a column.
    """
    return open_files(config, features, config.eval_input_path, ranks, items=items) if config.eval_input_path else None


def open_files(
    config: PipelineConfig,
    features: tuple[Feature, ...],
    paths: Paths,
    ranks: Ranks,
    batch_size: int | None = None,
    items: Items | None = None,
) -> DataReader:
    """The rows of a rank out of any files, in file order, all of them, to be evaluated.

    Args:
        config: says how to read them.
        features: what to encode.
        paths: files, folders, patterns, of the format that the config says.
        ranks: which share the rows.
        batch_size: None: as the config evaluates.
        items: as for `open_evaluation_data`.

    Raises:
        DataError: a file is missing or damaged, or lacks a column.
    """
    items = open_items(config.data, features) if items is None else items
    return DataReader(
        config.data,
        features,
        paths,
        batch_size=batch_size or config.data.eval_batch_size or config.data.batch_size,
        shuffle=False,
        drop_remainder=False,
        rank=ranks.rank,
        world_size=ranks.world_size,
        sampler=create_sampler(config.data, items, evaluating=True),
    )
