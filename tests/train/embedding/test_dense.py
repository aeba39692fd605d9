import copy
import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from emberline.train.embedding import AutoDisEmbedding, DenseEmbeddingCollection, MLPDenseEmbedding
from emberline.train.features import AutoDisConfig, Feature, MlpEmbeddingConfig


def autodis_by_hand(module: AutoDisEmbedding, name: str, x: float) -> list[float]:
    """The formula for one number, in float64 loops."""
    meta, w, m = (module.get_parameter(f"{part}_{name}").double() for part in ("meta_emb", "proj_w", "proj_m"))
    channels = range(module.num_channels)
    h = [x * w[c].item() if x * w[c].item() > 0 else 0.01 * x * w[c].item() for c in channels]
    z = [sum(m[c, k].item() * h[k] for k in channels) + module.keep_prob * h[c] for c in channels]
    top = max(z)
    exps = [math.exp((value - top) / module.temperature) for value in z]
    return [sum(exps[c] / sum(exps) * meta[c, d].item() for c in channels) for d in range(module.dim)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), max_size=4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**31))
def test_autodis_is_its_formula(numbers: list[float], dim: int, channels: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = AutoDisEmbedding(["b", "a"], dim=dim, num_channels=channels, temperature=0.5, keep_prob=0.7)
    x = torch.tensor(numbers).view(-1, 1)
    for name, sign, vectors in zip(module.names, (1, -1), module([x, -x]), strict=True):
        assert vectors.shape == (len(numbers), dim)
        for number, vector in zip(numbers, vectors.tolist(), strict=True):
            assert vector == pytest.approx(autodis_by_hand(module, name, sign * number), abs=2e-5)


def test_autodis_learns_by_the_gradients_of_its_formula() -> None:
    torch.manual_seed(0)
    module = AutoDisEmbedding(["a"], dim=3, num_channels=4, temperature=0.3, keep_prob=0.7)
    x, gradient = torch.tensor([-2.0, -0.1, 0.0, 0.3, 1.5]).view(-1, 1), torch.randn(5, 3)
    torch.autograd.backward(module([x])[0], gradient)
    meta, w, m = (module.get_parameter(f"{part}_a").detach().double().requires_grad_() for part in ("meta_emb", "proj_w", "proj_m"))
    h = torch.nn.functional.leaky_relu(x.double() * w, 0.01)
    by_formula = torch.softmax((h @ m.T + 0.7 * h) / 0.3, dim=1) @ meta
    expected = torch.autograd.grad(by_formula, (meta, w, m), gradient.double())
    for part, want in zip(("meta_emb", "proj_w", "proj_m"), expected, strict=True):
        torch.testing.assert_close(module.get_parameter(f"{part}_a").grad, want.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [1e30, -1e30, 3e38, -3e38])
def test_huge_numbers_choose_one_vector(number: float) -> None:
    torch.manual_seed(0)
    module = AutoDisEmbedding(["a"], dim=3, num_channels=4, temperature=0.1, keep_prob=0.8)
    (vectors,) = module([torch.tensor([[number]])])
    assert any(torch.equal(vectors[0], vector) for vector in module.get_parameter("meta_emb_a"))


def test_autodis_starts_with_the_published_deviations() -> None:
    torch.manual_seed(0)
    module = AutoDisEmbedding([f"f{i}" for i in range(40)], dim=20, num_channels=30, temperature=1, keep_prob=1)
    expected = {"meta_emb": 1.0, "proj_w": math.sqrt(2 / 31), "proj_m": math.sqrt(1 / 30)}
    for part, deviation in expected.items():
        drawn = torch.cat([module.get_parameter(f"{part}_{name}").flatten() for name in module.names])
        assert drawn.std().item() == pytest.approx(deviation, rel=0.06)


def test_mlp_is_one_matrix_a_feature() -> None:
    torch.manual_seed(0)
    module = MLPDenseEmbedding({"one": 1, "three": 3}, dim=5)
    one, three = torch.randn(4, 1), torch.randn(4, 3)
    by_hand = [values.double() @ module.get_parameter(f"proj_w_{name}").double() for name, values in (("one", one), ("three", three))]
    for vectors, expected in zip(module([one, three]), by_hand, strict=True):
        assert torch.allclose(vectors.double(), expected, atol=1e-6)


def test_mlp_starts_with_the_published_deviation() -> None:
    torch.manual_seed(0)
    weight = MLPDenseEmbedding({"v": 60}, dim=90).get_parameter("proj_w_v")
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 150), rel=0.03)


def test_a_collection_embeds_some_features_and_passes_the_others_through(make: Any) -> None:
    autodis = AutoDisConfig(num_channels=2)
    features = [
        make.dense("z", dense_embedding=autodis, embedding_dim=3),
        make.dense("plain", 2),
        make.dense("m", dense_embedding=MlpEmbeddingConfig(), embedding_dim=3),
        make.dense("a", dense_embedding=autodis, embedding_dim=3),
        make.dense("other", dense_embedding=AutoDisConfig(num_channels=2, temperature=0.2), embedding_dim=3),
    ]
    collection = DenseEmbeddingCollection(features)
    assert {key: module.names for key, module in collection.embeddings.items()} == {
        "autodis_3_2_0p8_0p1": ("a", "z"),
        "autodis_3_2_0p8_0p2": ("other",),
        "mlp_3": ("m",),
    }
    values = {feature.name: torch.randn(2, feature.value_dim) for feature in features}
    result = collection(values)
    assert {name: tensor.shape[1] for name, tensor in result.items()} == {"z": 3, "plain": 2, "m": 3, "a": 3, "other": 3}
    assert result["plain"] is values["plain"]
    module = collection.embeddings["autodis_3_2_0p8_0p1"]
    assert isinstance(module, AutoDisEmbedding)
    assert result["z"][0].tolist() == pytest.approx(autodis_by_hand(module, "z", values["z"][0].item()), abs=2e-5)


def test_a_state_fits_a_collection_of_fewer_features(make: Any) -> None:
    features = [make.dense(name, dense_embedding=AutoDisConfig(num_channels=2), embedding_dim=3) for name in ("a", "b", "c")]
    whole, part = DenseEmbeddingCollection(features), DenseEmbeddingCollection(features[1:2])
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    assert missing == []
    values = {"b": torch.tensor([[0.3]])}
    everything = whole({name: torch.tensor([[0.3]]) for name in ("a", "b", "c")})
    assert torch.equal(part(values)["b"], everything["b"])


class Collection(nn.Module):
    """A collection as the only part of a program: all values side by side in, all vectors side by side out, in the order of the features."""

    def __init__(self, features: list[Feature]) -> None:
        super().__init__()
        self.features = features
        self.collection = DenseEmbeddingCollection(features)

    def forward(self, values: Tensor) -> Tensor:
        parts = torch.split(values, [feature.value_dim for feature in self.features], dim=1)
        found = self.collection({feature.name: parts[place] for place, feature in enumerate(self.features)})
        return torch.cat([found[feature.name] for feature in self.features], dim=1)


def by_hand(collection: DenseEmbeddingCollection, feature: Feature, numbers: list[float]) -> list[float]:
    """One feature's vector for the numbers of one row."""
    (module,) = (module for module in collection.embeddings.values() if feature.name in cast(Any, module).names)
    if isinstance(module, AutoDisEmbedding):
        return autodis_by_hand(module, feature.name, numbers[0])
    weight = module.get_parameter(f"proj_w_{feature.name}").tolist()
    return [math.fsum(number * row[d] for number, row in zip(numbers, weight, strict=True)) for d in range(feature.embedding_dim)]


THREE_SETTINGS: list[tuple[str, int, int, Any]] = [
    ("autodis_a", 1, 16, AutoDisConfig(num_channels=3)),
    ("autodis_b", 1, 16, AutoDisConfig(num_channels=3)),
    ("autodis_c", 1, 8, AutoDisConfig(num_channels=3)),
    ("autodis_d", 1, 8, AutoDisConfig(num_channels=4, temperature=0.5, keep_prob=0.3)),
]
MLP = MlpEmbeddingConfig()
COLLECTIONS: dict[str, tuple[list[tuple[str, int, int, Any]], int]] = {
    "mlp": ([("a", 1, 16, MLP), ("b", 1, 16, MLP), ("c", 1, 8, MLP), ("d", 32, 8, MLP)], 48),
    "autodis": (THREE_SETTINGS, 48),
    "both": ([*THREE_SETTINGS[:2], ("mlp_a", 1, 16, MLP), *THREE_SETTINGS[2:]], 64),
}


@pytest.mark.parametrize("form", ["eager", "traced", "scripted"])
@pytest.mark.parametrize("what", COLLECTIONS)
@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
def test_every_form_of_a_collection_is_its_formulas(make: Any, what: str, form: str) -> None:
    torch.manual_seed(0)
    settings_of, width = COLLECTIONS[what]
    features = [make.dense(name, value_dim, embedding_dim=dim, dense_embedding=config) for name, value_dim, dim, config in settings_of]
    whole = Collection(features)
    program: Any = whole if form == "eager" else fx.symbolic_trace(whole)
    program = torch.jit.script(program) if form == "scripted" else program
    for rows in (4, 1, 0):
        values = torch.randn(rows, sum(feature.value_dim for feature in features))
        found = program(values)
        assert found.shape == (rows, width)
        for row in range(rows):
            numbers = iter(values[row].tolist())
            expected = [one for feature in features for one in by_hand(whole.collection, feature, [next(numbers) for _ in range(feature.value_dim)])]
            assert found[row].tolist() == pytest.approx(expected, abs=5e-5)


def test_a_state_of_other_shapes_or_with_gaps_is_refused(make: Any) -> None:
    """Nothing is broadcast, nothing is left out without a word, and a state can be copied."""
    feature = make.dense("a", 2, embedding_dim=3, dense_embedding=MLP)
    collection = DenseEmbeddingCollection([feature])
    state = copy.deepcopy(collection.state_dict())
    (key,) = state
    before = collection.state_dict()[key].clone()
    with pytest.raises(RuntimeError, match=r"size mismatch for embeddings\.mlp_3\.proj_w_a"):
        collection.load_state_dict({key: torch.ones(1, 3)})
    with pytest.raises(RuntimeError, match="Missing key"):
        collection.load_state_dict({})
    assert collection.load_state_dict({}, strict=False).missing_keys == [key]
    assert torch.equal(collection.state_dict()[key], before)
    collection.load_state_dict({key: before + 1})
    assert torch.equal(collection.state_dict()[key], state[key] + 1)


@pytest.mark.parametrize("config", [MLP, AutoDisConfig(num_channels=2)])
def test_parameters_are_where_they_are_asked_for(make: Any, config: Any) -> None:
    feature = make.dense("a", embedding_dim=3, dense_embedding=config)
    collection = DenseEmbeddingCollection([feature], torch.device("meta"))
    assert {parameter.device.type for parameter in collection.parameters()} == {"meta"}
