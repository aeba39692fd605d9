"""Checkpoints with tables that grow, written by hand from dictionaries of vectors: what an artifact must answer is read from these."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emberline.routing import MIXED, owner_of
from emberline.train.checkpoint.chunks import Chunk, Chunks
from emberline.train.checkpoint.tensors import Stored
from emberline.train.config import parse_config
from emberline.train.models import RecModel, build_model
from emberline.train.models.build import features_of
from tests.export.conftest import save_checkpoint

Vector = npt.NDArray[np.float64]
GROWS = "dynamicemb { max_capacity: 300 }"
CONFIG = f"""
data_config {{ fg_mode: FG_NORMAL label_fields: "label" batch_size: 32 }}
train_config {{
  sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} constant_learning_rate {{}} }}
}}
feature_configs {{ id_feature {{ feature_name: "uid" expression: "user:uid" embedding_dim: 4 {GROWS} }} }}
feature_configs {{ id_feature {{ feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 {GROWS} }} }}
feature_configs {{
  id_feature {{ feature_name: "buys" expression: "user:buys" embedding_dim: 8 weighted: true pooling: "mean" data_type: "FP16" {GROWS} }}
}}
feature_configs {{ id_feature {{ feature_name: "fresh" expression: "item:fresh" embedding_dim: 2 {GROWS} }} }}
feature_configs {{
  id_feature {{ feature_name: "shop" expression: "item:shop" embedding_dim: 4 zch {{ zch_size: 12 eviction_interval: 1 lfu {{}} }} }}
}}
feature_configs {{ id_feature {{ feature_name: "tags" expression: "item:tags" embedding_dim: 4 num_buckets: 10 }} }}
feature_configs {{
  sequence_feature {{
    sequence_name: "click" sequence_length: 6 sequence_delim: ";"
    features {{ id_feature {{ feature_name: "item" expression: "item:item" embedding_name: "item_table" embedding_dim: 4 {GROWS} }} }}
  }}
}}
model_config {{
  feature_groups {{ group_name: "deep" group_type: DEEP feature_names: ["uid", "item", "buys", "fresh", "shop", "tags"] }}
  feature_groups {{ group_name: "clicks" group_type: SEQUENCE feature_names: ["item", "click__item"] }}
  multi_tower_din {{
    towers {{ input: "deep" mlp {{ hidden_units: [8] }} }}
    din_towers {{ input: "clicks" attn_mlp {{ hidden_units: [4] }} }}
    final {{ hidden_units: [4] }}
  }}
}}
"""
WIDTHS = {"uid": 4, "item": 4, "buys": 8, "fresh": 2, "shop": 4, "tags": 4}
TABLES = {"uid": "uid_emb", "item": "item_table", "buys": "buys_emb", "fresh": "fresh_emb"}
"""Of the features of the group `deep` that read a table that grows."""
ODD_KEYS = (-(2**63), -(2**63) + 1, -5, -1, 0, 5, 2**62, 2**63 - 2, 2**63 - 1)


@dataclass
class Grown:
    """One table that grows.

    Args:
        vectors: of each id that has a row.
        default: what all others read.
        dtype: of the vectors.
    """

    vectors: dict[int, Vector]
    default: Vector
    dtype: torch.dtype = torch.float32

    def vector(self, one: int) -> Vector:
        """What an id reads."""
        return self.vectors.get(one, self.default)

    def tensors(self, table: str, ranks: int) -> dict[str, Stored]:
        """What so many ranks write of it: ids by rank, ascending, those of each rank a piece of their own."""
        owners = {one: int(owner_of(torch.tensor([one]), ranks, MIXED)) for one in self.vectors}
        by_rank = [sorted(one for one in self.vectors if owners[one] == rank) for rank in range(ranks)]
        keys = [torch.tensor(own, dtype=torch.int64) for own in by_rank]
        weights = [torch.from_numpy(np.array([self.vectors[one] for one in own]).reshape(-1, len(self.default))).to(self.dtype) for own in by_rank]
        nothing, default = torch.empty(0, dtype=torch.int64), torch.from_numpy(self.default).float()
        parts: dict[str, Stored] = {
            "keys": _in_pieces(keys),
            "weight": _in_pieces(weights),
            "sum": _in_pieces([torch.ones_like(part) for part in weights]),
            "last_steps": _in_pieces([part % 7 for part in keys]),
            "scores": _in_pieces([part % 5 for part in keys]),
            "counted_keys": torch.tensor([77]),
            "counts": torch.tensor([3]),
            "default": default,
            "unadmitted": torch.zeros_like(default),
            "numbers": torch.full((ranks, 2), 9),
        }
        parts |= {name: nothing for name in ("keys", "last_steps", "scores") if not self.vectors}
        return {f"dynamic/{table}/{name}": part for name, part in parts.items()}


def _in_pieces(parts: list[Tensor]) -> Stored:
    """Rows one after the other, each part of them a piece; one tensor where there are none."""
    whole = torch.cat(parts)
    if not len(whole):
        return whole
    chunks, first = [], 0
    for part in parts:
        chunks += [Chunk((first, *[0] * (part.dim() - 1)), part)] if len(part) else []
        first += len(part)
    return Chunks(whole.shape, whole.dtype, chunks)


def grown(ids: list[int], dim: int, seed: int, dtype: torch.dtype = torch.float32) -> Grown:
    """Vectors drawn for these ids, each of which has the same one for the same seed whatever the others are; exact in `dtype`."""

    def draw(one: int) -> Vector:
        drawn = torch.from_numpy(np.random.default_rng([seed, one % 2**64]).normal(size=dim))
        return drawn.to(dtype).double().numpy()

    return Grown({one: draw(one) for one in ids}, draw(-7777), dtype)


def tables_of(ids: list[int], seed: int) -> dict[str, Grown]:
    """The tables of `CONFIG`, one of them never trained on."""
    half = torch.float16
    return {
        "uid_emb": grown(ids, 4, seed),
        "item_table": grown([one for one in ids if one % 3], 4, seed),
        "buys_emb": grown(ids[::2], 8, seed, half),
        "fresh_emb": grown([], 2, seed),
    }


@dataclass
class DynamicRun:
    """A run's folder and what its checkpoints hold.

    Args:
        path: the folder.
        model: its static tables and layers.
        tables: by name, of the last checkpoint.
    """

    path: Path
    model: RecModel
    tables: Mapping[str, Grown] = field(default_factory=dict)

    @property
    def others(self) -> dict[str, Vector]:
        """Rows of the tables that do not grow."""
        weights = self.model.embedding_group.table_weights().items()
        return {name: weight.detach().double().numpy() for name, weight in weights if name not in self.tables}

    def save(self, step: int, tables: Mapping[str, Grown], ranks: int = 1, text: str = CONFIG) -> Path:
        """One more checkpoint."""
        self.tables = tables
        notes = {table: {"max_capacity": 300, "score_strategy": "STEP", "numbers": ["step", "updates"]} for table in tables}
        more = {name: part for table, found in tables.items() for name, part in found.tensors(table, ranks).items()}
        layout = {"world_size": ranks, "columns": {}, "zch_routing": {}, "dynamic": notes}
        return save_checkpoint(self.path, self.model, text, step, more, {"layout": layout})

    def deep(self, row: Mapping[str, object]) -> Vector:
        """The group `deep` of a raw row, in float64."""
        found = []
        for feature, width in WIDTHS.items():
            value = row[feature]
            if feature == "buys":
                bag = value if isinstance(value, dict) else {}
                total = sum((weight * self.tables["buys_emb"].vector(one) for one, weight in bag.items()), np.zeros(width))
                found.append(total / sum(bag.values()) if bag else total)
            elif feature in TABLES:
                found.append(self.tables[TABLES[feature]].vector(int(str(value))))
            else:
                found.append(self.others[f"{feature}_emb"][11 if feature == "shop" else int(str(value))])
        return np.concatenate(found)

    def clicks(self, row: Mapping[str, object]) -> Vector:
        """The sequence of the group `clicks`, in float64."""
        steps = [int(one) for one in str(row["click__item"]).split(";") if one]
        return np.array([self.tables["item_table"].vector(one) for one in steps]).reshape(-1, 4)


def new_run(path: Path, text: str = CONFIG) -> DynamicRun:
    """A run without checkpoints, of a model that was not trained."""
    torch.manual_seed(3)
    config = parse_config(text)
    return DynamicRun(path, build_model(config, features_of(config)))


def rows_of(ids: list[int], count: int = 40, seed: int = 0) -> list[dict[str, object]]:
    """Raw rows that ask for these ids and for others."""
    draw = np.random.default_rng(seed)
    asked = [*ids, *ODD_KEYS, 123456, -99]

    def some(most: int) -> list[int]:
        return [asked[place] for place in draw.integers(0, len(asked), draw.integers(0, most))]

    return [
        {
            "uid": asked[place % len(asked)],
            "item": asked[(place * 7) % len(asked)],
            "buys": {one: float(math.exp(draw.normal())) for one in some(5)},
            "fresh": asked[(place * 3) % len(asked)],
            "shop": int(draw.integers(0, 100)),
            "tags": int(draw.integers(0, 10)),
            "click__item": ";".join(map(str, some(6))),
        }
        for place in range(count)
    ]
