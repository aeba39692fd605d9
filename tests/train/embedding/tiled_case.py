"""A model with features of both sides in every kind of group, and random batches of it, tiled and as lists of rows that repeat the users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedTensor

from emberline.schema import GroupKind, Pooling
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.config.model_config import MlpConfig
from emberline.train.data import Batch, Tile
from emberline.train.encoders import DinEncoderConfig, PoolingEncoderConfig, RecurrentEncoderConfig, SelfAttentionEncoderConfig
from emberline.train.features import AutoDisConfig, Feature, LfuPolicy, MlpEmbeddingConfig, ZchConfig

SEQUENCE, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE


def sided(feature: Feature, side: str) -> Feature:
    """The feature with a side."""
    return replace(feature, spec=replace(feature.spec, side=side))


def features(make: Any, *, zch: bool = False) -> list[Feature]:
    """One table for ids of both sides, numbers of both sides with the same settings, weights, steps of several ids, maybe ZCH."""
    zch_config = ZchConfig(zch_size=8, eviction_interval=1, eviction_policy=LfuPolicy())
    autodis = {"dense_embedding": AutoDisConfig(num_channels=2), "embedding_dim": 3}
    mlp = {"dense_embedding": MlpEmbeddingConfig(), "embedding_dim": 2}
    hashed = {"zch": zch_config, "embedding_name": "z"} if zch else {"embedding_name": "z"}
    user = [
        make.sparse("uid"),
        make.sparse("utags", weighted=True, pooling=Pooling.MEAN),
        make.sparse("uz", **hashed),
        make.dense("uage", **autodis),
        make.dense("upair", 2, **mlp),
        make.dense("uplain", 2),
        make.sequence("clk", embedding_name="t"),
        make.sequence("tags", value_dim=0, dim=8, weighted=True, pooling=Pooling.MEAN),
        make.numbers("dt", 2, **mlp),
    ]
    item = [
        make.sparse("iid", embedding_name="t"),
        make.sparse("iz", **hashed),
        make.dense("iprice", **autodis),
        make.dense("iplain"),
        make.sequence("near"),
    ]
    cross = sided(make.sparse("cross"), "item")
    return [*(sided(feature, "user") for feature in user), *(sided(feature, "item") for feature in item), cross]


def groups(make: Any, *, norm: bool = False) -> list[FeatureGroupConfig]:
    """Every kind of group: of users only, of items only, and mixed; encoders of users only and mixed."""
    nested = (
        SequenceGroupConfig(group_name="clicks", feature_names=("iid", "clk", "tags")),
        SequenceGroupConfig(group_name="own", feature_names=("uid", "clk")),
        SequenceGroupConfig(group_name="steps", feature_names=("dt",)),
        SequenceGroupConfig(group_name="both", feature_names=("uid", "near", "clk")),
    )
    mlp = MlpConfig(hidden_units=(3,), use_bn=norm)
    encoders = (
        DinEncoderConfig(input="clicks", attn_mlp=mlp),
        DinEncoderConfig(input="own", attn_mlp=mlp),
        RecurrentEncoderConfig(input="steps", cell="gru", hidden_size=2),
        PoolingEncoderConfig(input="clicks"),
        PoolingEncoderConfig(input="both"),
        SelfAttentionEncoderConfig(input="own", multihead_attn_dim=4, num_heads=2),
    )
    mixed = ("uid", "iid", "uage", "iprice", "utags", "cross", "upair", "iplain", "uplain", "uz", "iz", "near")
    of_user = tuple(replace(one, group_name=f"{one.group_name}_2") for one in nested[1:3])
    of_user_encoders = tuple(replace(encoder, input=f"{encoder.input}_2") for encoder in encoders[1:3])
    alone = replace(nested[1], group_name="own_3")
    return [
        make.group("deep", *mixed, sequence_groups=nested, sequence_encoders=encoders),
        make.group("user", "uid", "uage", "utags", "clk", sequence_groups=of_user, sequence_encoders=of_user_encoders),
        make.group("none", sequence_groups=(alone,), sequence_encoders=(replace(encoders[5], input="own_3"),)),
        make.group("item", "iid", "iprice"),
        make.group("wide", "uid", "iid", group_type=GroupKind.WIDE),
        make.group("seq", "iid", "uplain", "clk", "tags", "dt", group_type=SEQUENCE),
        make.group("seq_user", "uid", "clk", "dt", group_type=SEQUENCE),
        make.group("seq_both", "iid", "clk", "near", "tags", group_type=SEQUENCE),
        make.group("jag", "uage", "tags", "clk", group_type=JAGGED),
        make.group("jag_both", "iid", "near", "clk", group_type=JAGGED),
        make.group("jag_item", "near", group_type=JAGGED),
    ]


@dataclass
class Case:
    """A tiled batch, and the same rows with each user's values written out."""

    tiled: Batch
    untiled: Batch


def draw(make: Any, seed: int, rows: Sequence[int], num_users: int, most: int = 3) -> Case:
    """Random values for users and rows."""
    rng = np.random.default_rng(seed)

    def bag(longest: int) -> list[int]:
        return [int(one) for one in rng.integers(0, 10, int(rng.integers(0, longest + 1)))]

    def reals(count: int) -> list[float]:
        return [float(np.float32(one)) for one in rng.normal(size=count)]

    lengths = [int(rng.integers(0, most + 1)) for _ in range(num_users)]
    tags = [[bag(2) for _ in range(length)] for length in lengths]
    user: dict[str, list[Any]] = {
        "uid": [bag(2) for _ in lengths],
        "utags": [bag(3) for _ in lengths],
        "uz": [bag(2) for _ in lengths],
        "clk": [[int(one) for one in rng.integers(0, 10, length)] for length in lengths],
        "tags": tags,
        "dt": [[reals(2) for _ in range(length)] for length in lengths],
        "uage": [reals(1) for _ in lengths],
        "upair": [reals(2) for _ in lengths],
        "uplain": [reals(2) for _ in lengths],
    }
    user["w_utags"] = [[abs(one) for one in reals(len(row))] for row in user["utags"]]
    user["w_tags"] = [[abs(one) for one in reals(sum(map(len, row)))] for row in tags]
    item: dict[str, list[Any]] = {
        "iid": [bag(2) for _ in rows],
        "iz": [bag(2) for _ in rows],
        "cross": [bag(2) for _ in rows],
        "near": [[int(one) for one in rng.integers(0, 10, lengths[user_row])] for user_row in rows],
        "iprice": [reals(1) for _ in rows],
        "iplain": [reals(1) for _ in rows],
    }
    repeated = {name: [values[row] for row in rows] for name, values in user.items()}
    tile = Tile(_batch(make, user), torch.tensor(rows, dtype=torch.int64))
    return Case(replace(_batch(make, item), tile=tile), _batch(make, repeated | item))


def _batch(make: Any, values: Mapping[str, list[Any]]) -> Batch:
    ids = {name: values[name] for name in ("uid", "utags", "uz", "clk", "iid", "iz", "cross", "near") if name in values}
    dense = {name: values[name] for name in ("uage", "upair", "uplain", "iprice", "iplain") if name in values}
    weights = {name: values[f"w_{name}"] for name in ("utags", "tags") if name in values} or None
    multi = {"tags": values["tags"]} if "tags" in values else None
    batch: Batch = make.steps(ids, multi=multi, weights=weights)
    widths = {"upair": 2, "uplain": 2}
    columns = {name: torch.tensor(rows, dtype=torch.float32).view(len(rows), widths.get(name, 1)) for name, rows in dense.items()}
    keyed = KeyedTensor(
        keys=list(columns), length_per_key=[column.shape[1] for column in columns.values()], values=torch.cat([*columns.values()], dim=1)
    )
    steps = {"dt": make.jagged(values["dt"], 2)} if "dt" in values else {}
    return replace(batch, dense_features={"__BASE__": keyed}, sequence_dense_features=steps)
