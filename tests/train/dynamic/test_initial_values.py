import numpy as np
import pytest
import torch

from emberline.train.dynamic.initial_values import first_vectors, stream
from emberline.train.dynamic.options import Initializer, InitializerMode
from emberline.train.dynamic.slots import KERNEL

KEYS = np.concatenate([np.arange(-5000, 5000), np.array([2**63 - 1, -(2**63)])])
SPREADS = [
    Initializer(mode=InitializerMode.UNIFORM, lower=-0.25, upper=1.0),
    Initializer(mode=InitializerMode.NORMAL, mean=3.0, std_dev=0.5),
    Initializer(mode=InitializerMode.TRUNCATED_NORMAL, mean=1.0, std_dev=2.0, lower=-1.0, upper=2.0),
    Initializer(mode=InitializerMode.TRUNCATED_NORMAL, mean=0.0, std_dev=1.0, lower=5.0, upper=6.0),
    Initializer(mode=InitializerMode.CONSTANT, value=0.125),
]


def _cdf(initializer: Initializer, x: torch.Tensor) -> torch.Tensor:
    """The distribution's function, float64."""
    if initializer.mode == InitializerMode.UNIFORM:
        share: torch.Tensor = (x - initializer.lower) / (initializer.upper - initializer.lower)
        return share
    above: torch.Tensor = torch.special.ndtr((initializer.mean - x) / initializer.std_dev)  # the upper tail, which keeps its precision
    if initializer.mode == InitializerMode.NORMAL:
        return above.neg().add(1.0)
    ends = torch.tensor([initializer.lower, initializer.upper], dtype=torch.float64)
    low, high = map(float, torch.special.ndtr((initializer.mean - ends) / initializer.std_dev))
    return above.sub(low) / (high - low)


@pytest.mark.parametrize("initializer", SPREADS[:-1], ids=str)
def test_numbers_are_spread_as_asked(initializer: Initializer) -> None:
    drawn = torch.from_numpy(first_vectors(initializer, stream(1, "t", "rows"), KEYS, 8))
    shares = _cdf(initializer, drawn.double()).flatten().sort().values
    even = (torch.arange(len(shares), dtype=torch.float64) + 0.5) / len(shares)
    assert float((shares - even).abs().max()) < 1.63 / len(shares) ** 0.5  # Kolmogorov's bound, which chance alone passes once in a hundred
    columns = torch.corrcoef(torch.cat([drawn[:-3], drawn[1:-2]], dim=1).T.double())
    assert float((columns - torch.eye(16)).abs().max()) < 0.05
    assert initializer.mode == InitializerMode.NORMAL or (float(drawn.min()) >= initializer.lower and float(drawn.max()) <= initializer.upper)


@pytest.mark.parametrize("initializer", SPREADS, ids=str)
def test_compiled_or_not_they_are_the_same_bits(initializer: Initializer, monkeypatch: pytest.MonkeyPatch) -> None:
    if KERNEL.get() is None:
        pytest.skip(f"no compiled index: {KERNEL.reason()}")
    compiled = first_vectors(initializer, stream(3, "t", "rows"), KEYS, 5)
    monkeypatch.setattr(KERNEL, "get", lambda: None)
    assert compiled.tobytes() == first_vectors(initializer, stream(3, "t", "rows"), KEYS, 5).tobytes()


def test_a_vector_depends_on_seed_table_purpose_and_key_alone() -> None:
    normal = SPREADS[1]
    whole = first_vectors(normal, stream(1, "t", "rows"), KEYS, 4)
    assert first_vectors(normal, stream(1, "t", "rows"), KEYS[7:9], 4).tolist() == whole[7:9].tolist()
    assert first_vectors(normal, stream(1, "t", "rows"), KEYS, 3).tolist() == whole[:, :3].tolist()
    others = [stream(2, "t", "rows"), stream(1, "u", "rows"), stream(1, "t", "default")]
    assert len({first_vectors(normal, other, KEYS[:1], 4).tobytes() for other in [*others, stream(1, "t", "rows")]}) == 4


def test_no_keys_have_no_vectors() -> None:
    assert first_vectors(SPREADS[1], 5, KEYS[:0], 3).shape == (0, 3)
