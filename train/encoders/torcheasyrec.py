"""The names of an encoder's parameters in TorchEasyRec's state dicts, below `_group_name_to_seq_encoders.<group>.<number>.`."""

from torch import nn

from emberline.train.encoders.attention_mlp import AttentionMlp
from emberline.train.encoders.multi_window_din import MultiWindowDinEncoder
from emberline.train.encoders.self_attention import SelfAttentionEncoder

_SELF_ATTENTION = {
    "query": "_query",
    "key": "_key",
    "value": "_value",
    "in_proj.weight": "_multihead_attn.in_proj_weight",
    "in_proj.bias": "_multihead_attn.in_proj_bias",
    "out_proj": "_multihead_attn.out_proj",
}
REDUNDANT = ("windows_len", "cumsum_windows_len")
"""Buffers of the reference's MultiWindowDIN that repeat its config."""


def torcheasyrec_names(encoder: nn.Module) -> dict[str, str]:
    """The reference's name -> ours, for each parameter and buffer of an encoder; none for encoders that the reference does not have.

    Shapes are equal on both sides.
    """
    prefixes: dict[str, str] = {}
    if isinstance(encoder, SelfAttentionEncoder):
        prefixes |= _SELF_ATTENTION
    if isinstance(encoder, MultiWindowDinEncoder):
        prefixes["activation"] = "active"
    attention = getattr(encoder, "attention", None)
    if isinstance(attention, AttentionMlp):
        prefixes["attention.linear"] = "linear"
        prefixes |= _mlp_prefixes(attention)
    names = {}
    for ours in encoder.state_dict():
        found = next((prefix for prefix in prefixes if ours == prefix or ours.startswith(f"{prefix}.")), None)
        if found is not None:
            names[prefixes[found] + ours.removeprefix(found)] = ours
    return names


def _mlp_prefixes(attention: AttentionMlp) -> dict[str, str]:
    """Our flat list of layers, in the reference's nested ones: a batch normalisation there stands between two transpositions."""
    prefixes: dict[str, str] = {}
    block = place = -1
    for number, layer in enumerate(attention.mlp.layers):
        if isinstance(layer, nn.Linear):
            block, place = block + 1, -1
        place += 2 if isinstance(layer, nn.BatchNorm1d) else 1
        prefixes[f"attention.mlp.layers.{number}"] = f"mlp.mlp.{block}.perceptron.{place}"
        place += 1 if isinstance(layer, nn.BatchNorm1d) else 0
    return prefixes
