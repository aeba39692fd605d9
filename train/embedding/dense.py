"""Vectors for numbers: AutoDis and MLP embeddings of dense features.

Features of equal settings share one batched computation, but each keeps parameters of its own, so that a checkpoint
fits a model with another selection of features.

Letters: B rows, n features of one embedding module, c channels, d dim, v floats of one feature.
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from emberline.train.features import AutoDisConfig, Feature, MlpEmbeddingConfig


class AutoDisEmbedding(nn.Module):
    """Soft buckets with an embedding each (Guo et al., "An Embedding Learning Framework for Numerical Features", KDD 2021).

    For feature x: h = LeakyReLU_0.01(x w), z = M h + keep_prob h, out = softmax(z / temperature) meta.

    Args:
        names: n features.
        dim: d, width of each feature's vector.
        num_channels: c, the soft buckets of each feature.
        temperature: above 0; the smaller, the harder the choice of a bucket.
        keep_prob: factor of the skip connection.
        device: where the parameters live.
    """

    def __init__(
        self, names: Sequence[str], *, dim: int, num_channels: int, temperature: float, keep_prob: float, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.names = tuple(names)
        self.dim = dim
        self.num_channels = num_channels
        self.temperature = temperature
        self.keep_prob = keep_prob
        for name in self.names:
            self.register_parameter(f"meta_emb_{name}", nn.Parameter(torch.empty(num_channels, dim, device=device)))
            self.register_parameter(f"proj_w_{name}", nn.Parameter(torch.empty(num_channels, device=device)))
            self.register_parameter(f"proj_m_{name}", nn.Parameter(torch.empty(num_channels, num_channels, device=device)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters: meta ~ N(0, 1), w ~ N(0, sqrt(2 / (1 + c))), M ~ N(0, sqrt(1 / c))."""
        deviations = {"meta_emb": 1.0, "proj_w": math.sqrt(2 / (1 + self.num_channels)), "proj_m": math.sqrt(1 / self.num_channels)}
        for name in self.names:
            for part, deviation in deviations.items():
                nn.init.normal_(self.get_parameter(f"{part}_{name}"), std=deviation)

    def forward(self, values: Sequence[Tensor], names: Sequence[str] | None = None) -> list[Tensor]:
        """Each feature's value [B, 1] -> each feature's vector [B, d], in the order of `names`: some of its own, or all."""
        names = self.names if names is None else names
        x = torch.stack(list(values)).transpose(1, 2)  # [n, 1, B]
        # LeakyReLU(x w) is x times one vector for x >= 0, and x times another below, so that M is applied to two vectors and not to each row.
        w = self._stacked("proj_w", names).unsqueeze(1)
        slopes = torch.cat([functional.leaky_relu(w, 0.01), -functional.leaky_relu(-w, 0.01)], dim=1)  # [n, 2, c]
        scores = (torch.bmm(slopes, self._stacked("proj_m", names).transpose(1, 2)) + self.keep_prob * slopes) / self.temperature
        # Shifted so that each row's greatest score is 0: what a softmax does row by row.
        shift = torch.cat([scores[:, :1].amax(2, keepdim=True), scores[:, 1:].amin(2, keepdim=True)], dim=1)
        sides = torch.cat([x.clamp(min=0), x.clamp(max=0)], dim=1)  # [n, 2, B]
        shares = torch.bmm((scores - shift.detach()).transpose(1, 2), sides).exp_()  # [n, c, B]
        mixed = torch.bmm(shares.transpose(1, 2), self._stacked("meta_emb", names))
        vectors = (mixed / shares.sum(1).unsqueeze(2)).unbind(0)
        return [vectors[place] for place in range(len(names))]  # by place: a symbolic trace cannot iterate

    def _stacked(self, part: str, names: Sequence[str]) -> Tensor:
        return torch.stack([_parameter(self, f"{part}_{name}") for name in names])


class MLPDenseEmbedding(nn.Module):
    """One linear map without bias for each feature: out = x W, W [v, d].

    Args:
        value_dims: v of each feature, by name.
        dim: d.
        device: where the parameters live.
    """

    def __init__(self, value_dims: Mapping[str, int], *, dim: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.names = tuple(value_dims)
        self.dim = dim
        for name, value_dim in value_dims.items():
            shape = (value_dim, dim)
            self.register_parameter(f"proj_w_{name}", nn.Parameter(torch.empty(shape, device=device)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters: W ~ N(0, sqrt(2 / (v + d)))."""
        for name in self.names:
            weight = self.get_parameter(f"proj_w_{name}")
            nn.init.normal_(weight, std=math.sqrt(2 / (weight.shape[0] + self.dim)))

    def forward(self, values: Sequence[Tensor], names: Sequence[str] | None = None) -> list[Tensor]:
        """Each feature's values [B, v] -> each feature's vector [B, d], in the order of `names`: some of its own, or all."""
        names = self.names if names is None else names
        return [value @ _parameter(self, f"proj_w_{name}") for name, value in zip(names, values, strict=True)]


class DenseEmbeddingCollection(nn.Module):
    """The dense embeddings of one set of features; features without one pass through unchanged.

    Args:
        features: dense features; each with `dense_embedding` set gets one.
        device: where the parameters live.
    """

    def __init__(self, features: Sequence[Feature], device: torch.device | None = None) -> None:
        super().__init__()
        groups: dict[str, list[Feature]] = {}
        for feature in sorted(features, key=lambda feature: feature.name):
            if feature.dense_embedding is not None:
                groups.setdefault(_settings_key(feature), []).append(feature)
        self.embeddings = nn.ModuleDict({key: _build(members, device) for key, members in sorted(groups.items())})

    def forward(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each feature's values [B, v] by name, of all features or some -> the same with embedded features' vectors [B, d]."""
        result = dict(values)
        for module in self.embeddings.values():
            assert isinstance(module, AutoDisEmbedding | MLPDenseEmbedding)
            if names := [name for name in module.names if name in values]:
                result.update(zip(names, module([values[name] for name in names], names), strict=True))
        return result


def _parameter(module: nn.Module, name: str) -> Tensor:
    """As `get_parameter`, without its look at the type, which a symbolic trace has another answer to."""
    return cast(Tensor, getattr(module, name))


def _settings_key(feature: Feature) -> str:
    """A name for the module that embeds all features of these settings; without dots, which torch refuses."""
    config = feature.dense_embedding
    if isinstance(config, AutoDisConfig):
        numbers = f"{config.num_channels}_{config.keep_prob!r}_{config.temperature!r}".replace(".", "p")
        return f"autodis_{feature.embedding_dim}_{numbers}"
    return f"mlp_{feature.embedding_dim}"


def _build(features: Sequence[Feature], device: torch.device | None) -> nn.Module:
    config, dim = features[0].dense_embedding, features[0].embedding_dim
    if isinstance(config, AutoDisConfig):
        return AutoDisEmbedding(
            [feature.name for feature in features],
            dim=dim,
            num_channels=config.num_channels,
            temperature=config.temperature,
            keep_prob=config.keep_prob,
            device=device,
        )
    assert isinstance(config, MlpEmbeddingConfig)
    return MLPDenseEmbedding({feature.name: feature.spec.value_dim for feature in features}, dim=dim, device=device)
