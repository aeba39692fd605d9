"""What the reference recorded: the same weights, queries and sequences in, outputs and gradients out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emberline.train.encoders import (
    DinEncoderConfig,
    EncoderConfig,
    MultiWindowDinEncoderConfig,
    PoolingEncoderConfig,
    SelfAttentionEncoderConfig,
    SimpleAttentionConfig,
    build_encoder,
    torcheasyrec_names,
)
from tests.train.encoders.conftest import mlp

PREFIX = "_group_name_to_seq_encoders.deep."
# As in each folder's config.pbtxt.
CASES: dict[str, list[EncoderConfig]] = {
    "enc_din": [DinEncoderConfig(input="deep", attn_mlp=mlp(8, 4))],
    "enc_pool_simple_attention": [
        SimpleAttentionConfig(input="click_g"),
        PoolingEncoderConfig(input="buy_g", pooling_type="sum"),
        PoolingEncoderConfig(input="click_g"),
        SimpleAttentionConfig(input="buy_g", max_seq_length=1),
        PoolingEncoderConfig(input="click_g", max_seq_length=2),
    ],
    "enc_self_attention": [
        SelfAttentionEncoderConfig(input="click_g", multihead_attn_dim=8, num_heads=2),
        SelfAttentionEncoderConfig(input="buy_g", multihead_attn_dim=6, num_heads=1, max_seq_length=2),
    ],
}


@dataclass
class Recorded:
    """One encoder in one recorded batch."""

    encoder: nn.Module
    names: dict[str, str]
    query: Tensor | None
    sequence: Tensor
    lengths: Tensor
    output: Tensor
    cotangent: Tensor
    gradients: dict[str, Tensor]


def recorded(folder: Path) -> Iterator[Recorded]:
    meta = json.loads((folder / "meta.json").read_text())
    arrays = {}
    for part in ("weights", "outputs", "grads"):
        with np.load(folder / f"{part}.npz") as file:
            arrays[part] = {key: torch.from_numpy(value) for key, value in file.items()}
    for batch in (entry["name"] for entry in meta["batches"]):
        column = sum(dim for name, dim in meta["group_feature_dims"]["deep"].items() if not name.startswith("deep_seq_encoder"))
        for number, config in enumerate(CASES[folder.name]):
            query, sequence = (arrays["outputs"].get(f"{batch}/{config.input}.{key}") for key in ("query", "sequence"))
            assert sequence is not None
            encoder = build_encoder(config, 0 if query is None else query.shape[1], sequence.shape[2]).eval()
            names = torcheasyrec_names(encoder)
            theirs = {
                key.removeprefix(f"{PREFIX}{number}."): value for key, value in arrays["weights"].items() if key.startswith(f"{PREFIX}{number}.")
            }
            assert set(names) == set(theirs)
            encoder.load_state_dict({names[key]: value for key, value in theirs.items()})
            width = meta["group_feature_dims"]["deep"][f"deep_seq_encoder_{number}"]
            assert encoder.output_dim == width
            columns = slice(column, column + width)
            column += width
            yield Recorded(
                encoder=encoder,
                names=names,
                query=query,
                sequence=sequence,
                lengths=arrays["outputs"][f"{batch}/{config.input}.sequence_length"],
                output=arrays["outputs"][f"{batch}/deep"][:, columns],
                cotangent=arrays["grads"][f"{batch}/cotangent/deep"][:, columns],
                gradients={names[key]: arrays["grads"][f"{batch}/grad/{PREFIX}{number}.{key}"] for key in theirs},
            )


def expected_scale(config: Any, lengths: Tensor) -> Tensor:
    """With a limit, the reference's self-attention divides by the length before the cut; ours by the steps that were kept."""
    if isinstance(config, SelfAttentionEncoderConfig) and config.max_seq_length:
        return (lengths.clamp(min=1) / lengths.clamp(1, config.max_seq_length)).unsqueeze(1)
    return torch.ones(len(lengths), 1)


@pytest.mark.parametrize("case", CASES)
def test_outputs(golden_root: Path, case: str) -> None:
    seen = 0
    for one in recorded(golden_root / case):
        found = one.encoder(one.query, one.sequence, one.lengths)
        expected = one.output * expected_scale(one.encoder.config, one.lengths)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        seen += 1
    assert seen == len(CASES[case]) * (2 if case == "enc_self_attention" else 1)


@pytest.mark.parametrize("case", ["enc_din", "enc_self_attention"])
def test_gradients(golden_root: Path, case: str) -> None:
    """Where the reference's are finite: padding makes those of its self-attention NaN. Ours always are."""
    compared = 0
    for one in recorded(golden_root / case):
        scale = expected_scale(one.encoder.config, one.lengths)
        out = one.encoder(one.query, one.sequence, one.lengths)
        out.backward(one.cotangent / scale)
        for name, parameter in one.encoder.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            if one.gradients[name].isfinite().all():
                torch.testing.assert_close(parameter.grad, one.gradients[name], rtol=1e-5, atol=1e-5)
                compared += 1
    assert compared == {"enc_din": 6, "enc_self_attention": 20 + 2}[case]


def test_names_of_all_layers() -> None:
    """As the reference nests them: its batch normalisation in three dimensions stands between two transpositions."""
    din = build_encoder(DinEncoderConfig(attn_mlp=mlp(8, 4, use_bn=True, activation="Dice", dropout_ratio=(0.1,))), 4, 4)
    names = torcheasyrec_names(din)
    assert set(names.values()) == set(din.state_dict())
    assert names["mlp.mlp.0.perceptron.0.weight"] == "attention.mlp.layers.0.weight"
    assert names["mlp.mlp.0.perceptron.2.running_mean"] == "attention.mlp.layers.1.running_mean"
    assert names["mlp.mlp.0.perceptron.4.alpha"] == "attention.mlp.layers.2.alpha"
    assert names["mlp.mlp.1.perceptron.4.bn.weight"] == "attention.mlp.layers.6.bn.weight"
    assert names["linear.bias"] == "attention.linear.bias"
    windows = build_encoder(MultiWindowDinEncoderConfig(attn_mlp=mlp(8, 4, use_ln=True), windows_len=(1, 2)), 4, 4)
    names = torcheasyrec_names(windows)
    assert set(names.values()) == set(windows.state_dict())
    assert names["active.weight"] == "activation.weight"
    assert names["mlp.mlp.1.perceptron.1.bias"] == "attention.mlp.layers.4.bias"
    assert torcheasyrec_names(build_encoder(PoolingEncoderConfig(), 0, 4)) == {}
