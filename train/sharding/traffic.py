"""Ids a row of each feature, counted in the first batches of the training data."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from emberline.train.config import PipelineConfig
from emberline.train.data import Batch, DataReader
from emberline.train.data.sampler import Items, create_sampler, open_items
from emberline.train.features import Feature
from emberline.train.sharding.constraints import Traffic
from emberline.train.sharding.hardware import Hardware

USUAL_BATCHES, USUAL_ROWS = 8, 1 << 16
"""Where nobody says, a job counts in so many batches, or fewer that have so many rows."""


def batches_to_sample(config: PipelineConfig, features: Iterable[Feature], hardware: Hardware) -> int:
    """Batches that a job counts ids a row in before it plans: those that its config says, else a few where they could decide something.

    They decide nothing on one CPU, and where the config says how many ids there are.

    Args:
        config: a whole pipeline.
        features: the model's.
        hardware: the ranks.
    """
    settings = config.need_train()
    if settings.planner.sample_batches is not None:
        return settings.planner.sample_batches
    everywhere = settings.global_embedding_constraints
    said = everywhere is not None and everywhere.pooling_factor is not None
    if said or (hardware.device == "cpu" and hardware.world_size == 1):
        return 0
    if all(feature.pooling_factor is not None for feature in features if feature.is_sparse):
        return 0
    return max(1, min(USUAL_BATCHES, USUAL_ROWS // config.data.batch_size))


def measure_traffic(config: PipelineConfig, features: Iterable[Feature], num_batches: int, items: Items | None = None) -> dict[str, Traffic]:
    """What the features read in the first batches of the training data, by name; of sequences, the ids of all steps.

    Args:
        config: says where the data is.
        features: the model's.
        num_batches: how many are read; fewer where there are fewer.
        items: what negatives are drawn from; None: they are read, where the config draws some.

    Raises:
        DataError: a file is missing or damaged, or lacks a column.
    """
    features = tuple(features)
    sampler = create_sampler(config.data, open_items(config.data, features) if items is None else items)
    reader = DataReader(config.data, features, config.train_input_path, shuffle=False, drop_remainder=False, sampler=sampler)
    batches = iter(reader)
    try:
        return count_traffic(islice(batches, num_batches))
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def count_traffic(batches: Iterable[Batch]) -> dict[str, Traffic]:
    """What features read in these batches, by name."""
    ids: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for batch in batches:
        for kjt in batch.sparse_features.values():
            for key, count in zip(kjt.keys(), kjt.length_per_key(), strict=True):
                ids[key] += count
                rows[key] += kjt.stride()
                seen[key] += 1
    return {key: Traffic(ids[key] / max(1, rows[key]), rows[key] / seen[key]) for key in seen}
