import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from emberline.train.config.functions import ActivationSpec, InitSpec, ThresholdFilterSpec

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)


def test_an_init_function_is_read_with_its_arguments() -> None:
    spec = InitSpec.parse("nn.init.uniform_,a=-0.01,b=0.01")
    assert spec == InitSpec(name="nn.init.uniform_", arguments=(("a", -0.01), ("b", 0.01)))
    torch.manual_seed(1)
    expected = torch.empty(100, 4).uniform_(-0.01, 0.01)
    torch.manual_seed(1)
    built = spec.build()(torch.empty(100, 4))
    assert torch.equal(built, expected)


@pytest.mark.parametrize(
    "text",
    [
        "nn.init.uniform_,b=0.01,a=-0.01",
        " torch.nn.init.uniform_ , a = -1e-2 , b = .01 ",
        "uniform_,a=-0.01,b=0.01",
    ],
)
def test_spellings_of_one_init_function_are_equal(text: str) -> None:
    assert InitSpec.parse(text) == InitSpec.parse("nn.init.uniform_,a=-0.01,b=0.01")
    assert hash(InitSpec.parse(text)) == hash(InitSpec.parse("nn.init.uniform_,a=-0.01,b=0.01"))


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("nn.init.normal_,mean=3,std=0", lambda t: torch.equal(t, torch.full_like(t, 3.0))),
        ("nn.init.constant_,val=0.5", lambda t: torch.equal(t, torch.full_like(t, 0.5))),
        ("nn.init.zeros_", lambda t: torch.equal(t, torch.zeros_like(t))),
        ("nn.init.ones_", lambda t: torch.equal(t, torch.ones_like(t))),
        ("nn.init.trunc_normal_,std=5,a=-0.1,b=0.1", lambda t: float(t.abs().max()) <= 0.1),
        ("nn.init.xavier_uniform_,gain=2", lambda t: float(t.abs().max()) <= 2 * math.sqrt(6 / 12)),
        ("nn.init.xavier_normal_", lambda t: bool(t.isfinite().all())),
        ("nn.init.kaiming_uniform_,a=0,mode='fan_out',nonlinearity=relu", lambda t: float(t.abs().max()) <= math.sqrt(6 / 8)),
        ('nn.init.kaiming_normal_,mode="fan_in"', lambda t: bool(t.isfinite().all())),
    ],
)
def test_every_init_function_fills_a_tensor(text: str, check: partial[bool]) -> None:
    tensor = InitSpec.parse(text).build()(torch.full((8, 4), math.nan))
    assert check(tensor)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nn.init.unifrm_,a=1", r"unknown init function 'nn.init.unifrm_'; did you mean 'nn.init.uniform_'\?"),
        ("os.system", r"unknown init function 'os.system'"),
        ("", "unknown init function ''"),
        ("nn.init.uniform_,c=1", r"unknown argument of init function nn.init.uniform_ 'c'; known: a, b"),
        ("nn.init.zeros_,a=1", r"unknown argument of init function nn.init.zeros_ 'a'; there is none"),
        ("nn.init.uniform_,a=1,a=1", "a is given twice"),
        ("nn.init.uniform_,a", "'a' is not of the form name=value"),
        ("nn.init.uniform_,a=", "'a=' is not of the form name=value"),
        ("nn.init.uniform_,,a=1", "'' is not of the form name=value"),
        ("nn.init.uniform_,a=x", "a must be a number, found 'x'"),
        ("nn.init.uniform_,a=nan", "a must be finite, found 'nan'"),
        ("nn.init.uniform_,b=inf", "b must be finite, found 'inf'"),
        ("nn.init.uniform_,a=2", "a must be at most b, found a=2.0 and b=1.0"),
        ("nn.init.normal_,std=-1", "std must not be negative, found -1.0"),
        ("nn.init.constant_", "nn.init.constant_ needs val=<number>"),
        ("nn.init.kaiming_normal_,mode=fan", "mode must be one of fan_in, fan_out, found 'fan'"),
        ("nn.init.uniform_,a=__import__('os').getpid()", "a must be a number"),
    ],
)
def test_a_wrong_init_function_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InitSpec.parse(text)


@given(low=NUMBERS, width=st.floats(0, 1e6))
def test_text_of_an_init_function_reads_back_as_itself(low: float, width: float) -> None:
    high = low + width
    spec = InitSpec(name="nn.init.uniform_", arguments=(("a", low), ("b", high)))
    assert InitSpec.parse(str(spec)) == spec


@given(text=st.text())
def test_any_text_is_an_init_function_or_refused(text: str) -> None:
    try:
        spec = InitSpec.parse(text)
    except ValueError:
        return
    assert InitSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nn.ReLU", nn.ReLU),
        ("torch.nn.SiLU", nn.SiLU),
        ("GELU,approximate=tanh", nn.GELU),
        ("nn.Sigmoid", nn.Sigmoid),
        ("nn.Tanh", nn.Tanh),
        ("nn.LeakyReLU,negative_slope=0.1", nn.LeakyReLU),
        ("nn.PReLU,num_parameters=1,init=0.3", nn.PReLU),
        ("nn.ELU,alpha=2", nn.ELU),
        ("nn.Softplus", nn.Softplus),
        ("nn.Hardswish", nn.Hardswish),
        ("nn.ReLU6", nn.ReLU6),
        ("nn.Identity", nn.Identity),
        ("", nn.Identity),
    ],
)
def test_every_activation_builds_its_module(text: str, kind: type[nn.Module]) -> None:
    module = ActivationSpec.parse(text).build(4)
    assert type(module) is kind
    assert module(torch.randn(3, 4)).shape == (3, 4)


def test_an_activations_arguments_arrive() -> None:
    module = ActivationSpec.parse("nn.LeakyReLU,negative_slope=0.25").build(1)
    assert module(torch.tensor([[-4.0]])).item() == -1.0


def test_dice_is_a_prelu_that_moves_with_the_data() -> None:
    module = ActivationSpec.parse("Dice").build(2).eval()
    x = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    assert torch.allclose(module(x), x * torch.sigmoid(x), atol=1e-6)
    torch.nn.init.ones_(module.get_parameter("alpha"))
    assert torch.allclose(module(x), x, atol=1e-6)
    assert torch.allclose(module(x.reshape(2, 1, 2)), x.reshape(2, 1, 2), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nn.Relu", r"unknown activation 'nn.Relu'; did you mean 'nn.ReLU'\?"),
        ("nn.Linear", "unknown activation 'nn.Linear'"),
        ("nn.PReLU,num_parameters=0", "num_parameters must be at least 1"),
        ("nn.PReLU,num_parameters=1.5", "num_parameters must be a whole number"),
        ("nn.GELU,approximate=sin", "approximate must be one of none, tanh"),
    ],
)
def test_a_wrong_activation_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActivationSpec.parse(text)


DYNAMIC = ThresholdFilterSpec(name="dynamic_threshold_filter", arguments=(("threshold_skew_multiplier", 10.0),))


@pytest.mark.parametrize(
    "text",
    [
        "dynamic_threshold_filter,threshold_skew_multiplier=10",
        "partial(dynamic_threshold_filter, threshold_skew_multiplier=10)",
        "functools.partial(dynamic_threshold_filter, threshold_skew_multiplier=10.0)",
        "lambda x: dynamic_threshold_filter(x, threshold_skew_multiplier=10)",
        "lambda counts: dynamic_threshold_filter(counts, 10)",
    ],
)
def test_a_threshold_filter_is_read_in_each_form(text: str) -> None:
    assert ThresholdFilterSpec.parse(text) == DYNAMIC


@pytest.mark.parametrize("text", ["average_threshold_filter", "lambda x: average_threshold_filter(x)", "partial(average_threshold_filter)"])
def test_a_threshold_filter_needs_no_arguments(text: str) -> None:
    assert ThresholdFilterSpec.parse(text) == ThresholdFilterSpec(name="average_threshold_filter")


@pytest.mark.parametrize(
    "text",
    [
        "lambda x: __import__('os').system('true')",
        "lambda x: x > 3",
        "lambda x: average_threshold_filter(3)",
        "lambda x, y: average_threshold_filter(x)",
        "lambda x: average_threshold_filter(x, *y)",
        "lambda x: dynamic_threshold_filter(x, **y)",
        "lambda x: dynamic_threshold_filter(x, 3, threshold_skew_multiplier=4)",
        "partial(os.system, 'true')",
        "partial()",
        "partial(dynamic_threshold_filter, 1, 2)",
        "lambda x:",
        "partial(" * 400,
        "partial\x00",
    ],
)
def test_other_expressions_are_no_threshold_filter(text: str) -> None:
    with pytest.raises(ValueError, match="write name,argument=value, or partial"):
        ThresholdFilterSpec.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dynamic_treshold_filter", r"did you mean 'dynamic_threshold_filter'\?"),
        ("partial(dynamic_threshold_filter, skew=1)", "unknown argument of threshold filter dynamic_threshold_filter 'skew'"),
        ("partial(dynamic_threshold_filter, threshold_skew_multiplier=open('x'))", "threshold_skew_multiplier must be a number"),
        ("dynamic_threshold_filter,threshold_skew_multiplier=-1", "must not be negative"),
        ("probabilistic_threshold_filter,per_id_probability=1.5", "must be between 0 and 1"),
        ("count_threshold_filter", "count_threshold_filter needs threshold=<count>"),
        ("count_threshold_filter,threshold=-1", "needs threshold=<count>, not negative"),
        ("count_threshold_filter,threshold=inf", "threshold"),
    ],
)
def test_a_wrong_threshold_filter_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThresholdFilterSpec.parse(text)


def test_threshold_filters_admit_by_their_formulas() -> None:
    counts = torch.tensor([1, 2, 9, 4])
    mask, threshold = ThresholdFilterSpec.parse("average_threshold_filter").build()(counts)
    assert (mask.tolist(), threshold) == ([False, False, True, False], 4.0)
    mask, threshold = ThresholdFilterSpec.parse("dynamic_threshold_filter,threshold_skew_multiplier=0.5").build()(counts)
    assert (mask.tolist(), threshold) == ([False, False, True, True], 2.0)
    for text in ("count_threshold_filter,threshold=3", "partial(count_threshold_filter, 3)", "lambda x: count_threshold_filter(x, threshold=3)"):
        mask, threshold = ThresholdFilterSpec.parse(text).build()(counts)
        assert (mask.tolist(), threshold) == ((counts > 3).tolist(), 3.0)
    mask, _ = ThresholdFilterSpec.parse("dynamic_threshold_filter").build()(counts)
    assert not mask.any()
    torch.manual_seed(5)
    draws = torch.rand(4)
    torch.manual_seed(5)
    mask, threshold = ThresholdFilterSpec.parse("probabilistic_threshold_filter,per_id_probability=0.3").build()(counts)
    assert mask.tolist() == [1 - 0.7**count > draw for count, draw in zip(counts.tolist(), draws.tolist(), strict=True)]
    assert torch.equal(torch.as_tensor(threshold), draws)


@pytest.mark.parametrize("name", ["average_threshold_filter", "dynamic_threshold_filter", "probabilistic_threshold_filter"])
def test_threshold_filters_take_no_ids(name: str) -> None:
    mask, _ = ThresholdFilterSpec.parse(name).build()(torch.zeros(0, dtype=torch.int64))
    assert mask.shape == (0,)
