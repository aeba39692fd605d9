import pytest

from emberline.errors import ConfigError
from emberline.train.config import DlrmConfig, MlpConfig, ModelConfig, SoftmaxCrossEntropyConfig, parse_config
from emberline.train.config.functions import ActivationSpec

GROUPS = "feature_configs { raw_feature { feature_name: 'a' } } model_config { feature_groups { group_name: 'g' feature_names: 'a' } "


def model(text: str) -> ModelConfig:
    return parse_config(GROUPS + text + "}").need_model()


def test_dlrm() -> None:
    found = model(
        "dlrm { dense_mlp { hidden_units: [8, 4] activation: '' bias: false } final { hidden_units: 2 use_ln: true } arch_with_sparse: false }"
    )
    assert found.model == DlrmConfig(
        dense_mlp=MlpConfig(hidden_units=(8, 4), activation=ActivationSpec(name="nn.Identity"), bias=False),
        final=MlpConfig(hidden_units=(2,), use_ln=True),
        arch_with_sparse=False,
    )
    assert (found.name, found.class_path, found.kwargs) == ("dlrm", "", {})


def test_a_users_own_module_with_typed_arguments() -> None:
    found = model(
        """custom_model { class_path: "my.pkg.Net"
          kwargs { name: "hidden" int_values: [64, 32] } kwargs { name: "dropout" float_value: 0.5 } kwargs { name: "bias" bool_value: false }
          kwargs { name: "mode" string_value: "" } kwargs { name: "names" string_values: "x" } kwargs { name: "n" int_value: 0 } }
        """
    )
    assert (found.name, found.class_path) == ("custom", "my.pkg.Net")
    assert found.kwargs == {"hidden": (64, 32), "dropout": 0.5, "bias": False, "mode": "", "names": ("x",), "n": 0}
    assert list(found.kwargs) == ["hidden", "dropout", "bias", "mode", "names", "n"]


def test_classes() -> None:
    found = model("custom_model { class_path: 'a.B' } num_class: 3 losses { softmax_cross_entropy { label_smoothing: 0.1 } }")
    assert (found.num_class, found.losses) == (3, (SoftmaxCrossEntropyConfig(label_smoothing=0.1),))


@pytest.mark.parametrize(("given", "ratios"), [("", (0.0, 0.0)), ("dropout_ratio: 0.5", (0.5, 0.5)), ("dropout_ratio: [0.1, 0.2]", (0.1, 0.2))])
def test_a_dropout_ratio_for_each_layer(given: str, ratios: tuple[float, ...]) -> None:
    found = model(f"deepfm {{ deep {{ hidden_units: [4, 4] {given} }} }}").model
    assert found.deep.dropouts == ratios  # type: ignore[union-attr]


@pytest.mark.parametrize(("given", "name"), [("", "fp32"), ("'FP32'", "fp32"), ("'FP16'", "fp16"), ("'BF16'", "bf16"), ("'bf16'", "bf16")])
def test_what_group_tensors_are_rounded_to(given: str, name: str) -> None:
    assert model(f"custom_model {{ class_path: 'a.B' }} {f'embedding_output_dtype: {given}' if given else ''}").embedding_output_dtype == name


CUSTOM = "custom_model { class_path: 'a.B' %s }"
MLP = "deepfm { deep { %s } }"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MLP % "", "deepfm: deep: hidden_units is missing"),
        (f"{CUSTOM % ''} embedding_output_dtype: 'FP64'", "embedding_output_dtype: must be FP32, FP16 or BF16, found 'FP64'"),
        (MLP % "hidden_units: [4, 0]", "deepfm: deep: hidden_units must be at least 1 each"),
        (MLP % "hidden_units: [4, 4, 4] dropout_ratio: [0.1, 0.2]", "dropout_ratio has 2 values for 3 layers; give none, one, or one a layer"),
        (MLP % "hidden_units: 4 dropout_ratio: 1", "dropout_ratio must be in [0, 1)"),
        (MLP % "hidden_units: 4 dropout_ratio: nan", "dropout_ratio must be in [0, 1)"),
        (MLP % "hidden_units: 4 use_bn: true use_ln: true", "use_bn and use_ln exclude each other"),
        (MLP % "hidden_units: 4 activation: 'nn.Relu'", "activation: unknown activation 'nn.Relu'; did you mean 'nn.ReLU'?"),
        ("deepfm { }", "deepfm: deep is missing"),
        ("deepfm { deep { hidden_units: 4 } wide_embedding_dim: 0 }", "deepfm: wide_embedding_dim must be at least 1"),
        ("deepfm { deep { hidden_units: 4 } wide_init_fn: 'x' }", "deepfm: wide_init_fn: unknown init function"),
        ("deepfm { deep { hidden_units: 4 } final { hidden_units: 0 } }", "deepfm: final: hidden_units must be at least 1"),
        ("dlrm { dense_mlp { hidden_units: 4 } }", "dlrm: final is missing"),
        ("custom_model { }", "custom_model: class_path is missing"),
        ("custom_model { class_path: 'Net' }", "class_path must be package.module.Class, found 'Net'"),
        ("custom_model { class_path: 'a..B' }", "class_path must be package.module.Class"),
        ("custom_model { class_path: 'a.B; import os' }", "class_path must be package.module.Class"),
        (CUSTOM % "kwargs { int_value: 3 }", "kwargs: name must be an argument of the class"),
        (CUSTOM % "kwargs { name: 'embedding_group' int_value: 3 }", "other than embedding_group"),
        (CUSTOM % "kwargs { name: 'a' }", "kwargs 'a' must have one value, found 0; set one of int_value"),
        (CUSTOM % "kwargs { name: 'a' int_value: 3 bool_value: true }", "kwargs 'a' must have one value, found 2"),
        (CUSTOM % "kwargs { name: 'a' int_value: 3 } kwargs { name: 'a' int_value: 3 }", "kwargs has 'a' twice"),
        (CUSTOM % "kwargs { name: 'a' float_values: [1, nan] }", "kwargs 'a' must be finite"),
        (CUSTOM % "" + "num_class: 0", "num_class must be at least 1"),
        (CUSTOM % "" + "num_class: 2", "binary_cross_entropy needs num_class: 1, found 2"),
        (CUSTOM % "" + "num_class: 2 losses { l2_loss {} }", "l2_loss needs num_class: 1, found 2"),
        (CUSTOM % "" + "losses { softmax_cross_entropy {} }", "softmax_cross_entropy needs num_class of 2 or more, found 1"),
        (CUSTOM % "" + "num_class: 2 losses { softmax_cross_entropy { label_smoothing: 1 } }", "label_smoothing must be in [0, 1)"),
        (CUSTOM % "" + "losses { l2_loss {} } losses { l2_loss {} }", "losses has one kind twice"),
        (CUSTOM % "" + "losses { }", "losses: it is empty; set one of binary_cross_entropy, softmax_cross_entropy, l2_loss"),
        ("num_class: 2", "num_class without a model; set one of dlrm, deepfm, wide_and_deep, multi_tower_din, dssm, mmoe, custom_model"),
    ],
)
def test_what_can_not_be_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model(text)
    assert any(problem.startswith("model_config: ") and message in problem for problem in caught.value.problems), caught.value.problems
