import re

import pytest

from emberline.errors import ConfigError
from emberline.train.optim.parts import assign_parts

NAMES = ["head.dense_mlp.layers.0.weight", "head.dense_mlp.layers.0.bias", "head.output.weight", "head.output.bias"]


def test_the_first_pattern_that_fits_the_whole_name_has_it() -> None:
    assert assign_parts(NAMES, [r".*\.bias", r"head\.output\..*"]) == [
        ["head.dense_mlp.layers.0.bias", "head.output.bias"],
        ["head.output.weight"],
        ["head.dense_mlp.layers.0.weight"],
    ]
    assert assign_parts(NAMES, []) == [NAMES]
    assert assign_parts(NAMES, [".*"]) == [NAMES, []]
    assert assign_parts([], []) == [[]]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "output",
            "regex_pattern 'output' must fit a parameter's whole name; it fits a part of head.output.weight, head.output.bias; try '.*output.*'",
        ),
        (r"head\.ouput\.weight", r"regex_pattern 'head\\.ouput\\.weight' fits no dense parameter; near: head.output.weight, "),
        (
            "0123456789",
            "fits no dense parameter; there are head.dense_mlp.layers.0.weight, head.dense_mlp.layers.0.bias, head.output.weight and 1 more",
        ),
    ],
)
def test_a_pattern_that_fits_nothing_is_named_with_what_is_near(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        assign_parts(NAMES, [pattern])


def test_all_patterns_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        assign_parts(NAMES, ["nothing", ".*bias", r".*output\.bias"])
    first, second = caught.value.problems
    assert first.startswith("train_config: dense_optimizer: part_optimizers: regex_pattern 'nothing' fits no dense parameter")
    assert second.endswith(r"'.*output\\.bias' fits only what earlier patterns have: head.output.bias; put it before them")
    with pytest.raises(ConfigError, match="the model has none"):
        assign_parts([], ["a"])
