"""What each row keeps: the side of truncation, lengths that do not fit, nothing at all."""

import pytest
import torch

from emberline.train.encoders.configs import Keep
from emberline.train.encoders.steps import kept_steps

NAN = float("nan")


@pytest.mark.parametrize(
    ("max_seq_length", "keep", "expected"),
    [
        (0, "oldest", [[1, 2, 3, 4], [0, 0, 0, 0], [5, 0, 0, 0]]),
        (2, "oldest", [[1, 2], [0, 0], [5, 0]]),
        (2, "newest", [[3, 4], [0, 0], [5, 0]]),
        (3, "oldest", [[1, 2, 3], [0, 0, 0], [5, 0, 0]]),
        (3, "newest", [[2, 3, 4], [0, 0, 0], [5, 0, 0]]),
        (9, "newest", [[1, 2, 3, 4], [0, 0, 0, 0], [5, 0, 0, 0]]),
    ],
)
@pytest.mark.parametrize("junk", [-1.0, NAN, float("inf")])
def test_kept(max_seq_length: int, keep: Keep, expected: list[list[float]], junk: float) -> None:
    sequence = torch.tensor([[1, 2, 3, 4], [junk] * 4, [5, junk, junk, junk]]).unsqueeze(2)
    steps = kept_steps(sequence, torch.tensor([4, 0, 1], dtype=torch.int32), max_seq_length, keep)
    assert steps.values.squeeze(2).tolist() == expected
    assert steps.lengths.tolist() == [min(length, max_seq_length or length) for length in (4, 0, 1)]
    assert steps.present.tolist() == [[number < length for number in range(len(expected[0]))] for length in steps.lengths]


@pytest.mark.parametrize("lengths", [[0, 0], [0], []])
@pytest.mark.parametrize("max_seq_length", [0, 2])
@pytest.mark.parametrize("padded", [0, 3])
def test_nothing_to_keep(lengths: list[int], max_seq_length: int, padded: int) -> None:
    for keep in ("oldest", "newest"):
        sequence = torch.full((len(lengths), padded, 2), NAN)
        steps = kept_steps(sequence, torch.tensor(lengths, dtype=torch.int64), max_seq_length, keep)
        assert steps.values.shape == (len(lengths), min(padded, max_seq_length or padded), 2)
        assert not steps.values.any()
        assert not steps.present.any()
        assert steps.lengths.tolist() == [0] * len(lengths)


def test_lengths_outside_of_the_padding_are_clamped() -> None:
    steps = kept_steps(torch.ones(3, 2, 1), torch.tensor([-4, 7, 2]))
    assert steps.lengths.tolist() == [0, 2, 2]
    assert steps.values.squeeze(2).tolist() == [[0, 0], [1, 1], [1, 1]]
