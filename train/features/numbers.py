"""What holds for every family that gives numbers: their embedding, or the boundaries that make them ids."""

import itertools
import math
from collections.abc import Sequence

from emberline.schema import TableKind
from emberline.train.features.common import check_table
from emberline.train.features.configs import AutoDisConfig, DenseEmbeddingConfig
from emberline.train.features.family_configs import CombineFeatureConfig
from emberline.train.features.sentences import Absence
from emberline.train.features.sequence_configs import NumberConfig, ValueConfig

DenseConfig = NumberConfig | ValueConfig | CombineFeatureConfig


def check_bucketised(config: DenseConfig, source: str, problems: list[str]) -> None:
    """Numbers that become ids need a table, and nothing else."""
    check_table(config, TableKind.STATIC, problems)
    check_no_embedding(config.dense_emb, source, problems)


def check_no_embedding(embedding: DenseEmbeddingConfig | None, source: str, problems: list[str]) -> None:
    """Ids have a table already."""
    if embedding is not None:
        kind = "autodis" if isinstance(embedding, AutoDisConfig) else "mlp"
        problems.append(f"{source} and {kind} exclude each other: {'buckets of numbers' if source == 'boundaries' else 'ids'} have a table already")


def boundary_problems(boundaries: Sequence[float]) -> list[str]:
    """Boundaries must be finite and ascend."""
    if not all(map(math.isfinite, boundaries)):
        return ["boundaries must be finite numbers"]
    for before, after in itertools.pairwise(boundaries):
        if not before < after:
            return [f"boundaries must ascend, found {after:.9g} after {before:.9g}"]
    return []


def notes_of_numbers(config: DenseConfig, name: str, sources: str) -> list[str]:
    """What the config of numbers that pass through says that has no effect: settings of a table that it does not have.

    Args:
        config: of a feature without a table.
        name: the feature's.
        sources: what would give it a table.
    """
    if config.dense_emb is not None:
        return []
    given = {
        "embedding_dim": config.embedding_dim > 0,
        "embedding_name": bool(config.embedding_name),
        "init_fn": config.init_fn is not None,
        "embedding_constraints": config.embedding_constraints is not None,
    }
    inert = [name for name, is_given in given.items() if is_given]
    return [f"feature {name!r}: {', '.join(inert)} has no effect without {sources}, autodis or mlp"] if inert else []


def check_dense(config: DenseConfig, value_dim: int, source: str, problems: list[str]) -> None:
    """A dense embedding has no table: what would set one up is refused, not ignored."""
    embedding = config.dense_emb
    if not config.trainable:
        problems.append(f"trainable: false needs {source}: only tables can be frozen")
    if embedding is None:
        return
    if config.embedding_dim < 1:
        problems.append(Absence("embedding_dim must be set, to 1 or more: the width of its embedding"))
    for name in ("embedding_name", "init_fn", "embedding_constraints"):
        if getattr(config, name):
            problems.append(f"{name} is for tables; autodis and mlp have none")
    if config.data_type != "FP32":
        problems.append("data_type is for tables; autodis and mlp are FP32")
    if isinstance(embedding, AutoDisConfig):
        problems += _autodis_problems(value_dim, embedding)


def _autodis_problems(value_dim: int, autodis: AutoDisConfig) -> list[str]:
    found = []
    if value_dim > 1:
        found.append(f"autodis: value_dim must be 1, found {value_dim}; use mlp for vectors")
    if autodis.num_channels < 1:
        found.append(f"autodis: num_channels must be at least 1, found {autodis.num_channels}")
    if not (math.isfinite(autodis.temperature) and autodis.temperature > 0.0):
        found.append(f"autodis: temperature must be above 0, found {autodis.temperature}")
    if not math.isfinite(autodis.keep_prob):
        found.append(f"autodis: keep_prob must be a finite number, found {autodis.keep_prob}")
    return found
