"""The work that `embedding.py` measures: config, skewed ids, and batches in the form that each side reads.

Letters: B rows, N steps of all rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from emberline.train.config.load import parse_config
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.data import Batch

NUM_ROWS = 2048
TABLE_ROWS, DIM = 200_000, 16
NUM_CHANNELS, TEMPERATURE, KEEP_PROB = 20, 0.1, 0.8
LONGEST = 50
IDS = [f"id_{number}" for number in range(26)]
RAW = [f"raw_{number}" for number in range(13)]
STEPS = [f"seq__{name}" for name in ("item", "category", "shop")]
QUERY = IDS[:3]
BASE = "__BASE__"


def config() -> PipelineConfig:
    """26 ids and 13 numbers in a DEEP group; three ids as query and three of each step in a SEQUENCE group. Each id feature has its own table."""
    table = f"num_buckets: {TABLE_ROWS} embedding_dim: {DIM}"
    autodis = f"autodis {{ num_channels: {NUM_CHANNELS} temperature: {TEMPERATURE} keep_prob: {KEEP_PROB} }}"
    ids = [f'feature_configs {{ id_feature {{ feature_name: "{name}" {table} pooling: "sum" }} }}' for name in IDS]
    raw = [f'feature_configs {{ raw_feature {{ feature_name: "{name}" embedding_dim: {DIM} {autodis} }} }}' for name in RAW]
    parts = [name.removeprefix("seq__") for name in STEPS]
    steps = [f'features {{ id_feature {{ feature_name: "{part}" embedding_name: "seq_{part}" {table} }} }}' for part in parts]
    sequence = f'feature_configs {{ sequence_feature {{ sequence_name: "seq" sequence_length: {LONGEST} {" ".join(steps)} }} }}'
    groups = [_group("deep", "DEEP", [*IDS, *RAW]), _group("clicks", "SEQUENCE", [*QUERY, *STEPS])]
    return parse_config("\n".join([*ids, *raw, sequence, *groups]))


def _group(name: str, kind: str, features: list[str]) -> str:
    members = " ".join(f'feature_names: "{feature}"' for feature in features)
    return f'feature_groups {{ group_name: "{name}" group_type: {kind} {members} }}'


@dataclass(frozen=True)
class Rows:
    """Random rows, as plain tensors.

    Args:
        ids: int64, feature after feature, row after row.
        lengths: int32 [26 * B], 1 to 3.
        numbers: float32 [B, 13].
        steps: int64 [3 * N], the ids of the steps, feature after feature.
        step_lengths: int32 [B], 0 to 50.
        gradients: what the outputs `deep`, `query`, `sequence` get in backward.
    """

    ids: Tensor
    lengths: Tensor
    numbers: Tensor
    steps: Tensor
    step_lengths: Tensor
    gradients: tuple[Tensor, Tensor, Tensor]

    def batch(self) -> Batch:
        """As Emberline's reader gives it: all ids of a data group in one jagged tensor. New each time, without anything that TorchRec caches."""
        ids = KeyedJaggedTensor(
            keys=[*IDS, *STEPS],
            values=torch.cat([self.ids, self.steps]),
            lengths=torch.cat([self.lengths, *[self.step_lengths] * len(STEPS)]),
            stride=NUM_ROWS,
        )
        numbers = KeyedTensor(keys=RAW, length_per_key=[1] * len(RAW), values=self.numbers)
        return Batch(sparse_features={BASE: ids}, dense_features={BASE: numbers})

    def plain(self) -> tuple[KeyedJaggedTensor, Tensor, KeyedJaggedTensor]:
        """As one who writes for TorchRec has it: one jagged tensor for each collection, numbers as a matrix."""
        ids = KeyedJaggedTensor(keys=IDS, values=self.ids, lengths=self.lengths, stride=NUM_ROWS)
        steps = KeyedJaggedTensor(keys=STEPS, values=self.steps, lengths=self.step_lengths.repeat(len(STEPS)), stride=NUM_ROWS)
        return ids, self.numbers, steps


def make_rows(seed: int) -> Rows:
    """2,048 random rows; a feature's ids are Zipf-distributed (the r-th most frequent comes 1 / r times as often), and scattered over its table."""
    source = np.random.default_rng(seed)
    lengths = source.integers(1, 4, len(IDS) * NUM_ROWS, dtype=np.int32)
    step_lengths = source.integers(0, LONGEST + 1, NUM_ROWS, dtype=np.int32)
    longest, width = int(step_lengths.max()), DIM * len(STEPS)
    shapes = ((NUM_ROWS, DIM * (len(IDS) + len(RAW))), (NUM_ROWS, DIM * len(QUERY)), (NUM_ROWS, longest, width))
    first, second, third = (torch.from_numpy(source.normal(scale=1e-3, size=shape).astype(np.float32)) for shape in shapes)
    return Rows(
        ids=_skewed(source, int(lengths.sum())),
        lengths=torch.from_numpy(lengths),
        numbers=torch.from_numpy(source.normal(size=(NUM_ROWS, len(RAW))).astype(np.float32)),
        steps=_skewed(source, int(step_lengths.sum()) * len(STEPS)),
        step_lengths=torch.from_numpy(step_lengths),
        gradients=(first, second, third),
    )


def _skewed(source: np.random.Generator, count: int) -> Tensor:
    ranks = (TABLE_ROWS ** source.random(count)).astype(np.int64) - 1
    return torch.from_numpy(ranks * 104_729 % TABLE_ROWS)
