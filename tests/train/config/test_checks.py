import pytest

from emberline.errors import ConfigError
from emberline.train.config import AdamConfig, AdamWConfig, SgdConfig, parse_config, parse_train_config

SPARSE = "sparse_optimizer { sgd_optimizer {} } "
DENSE = "dense_optimizer { sgd_optimizer {} } "


def test_dense_optimizers_keep_the_names_of_torch() -> None:
    adam = parse_train_config(SPARSE + "dense_optimizer { adam_optimizer { beta2: 0.99 amsgrad: true } }").dense_optimizer.optimizer
    assert type(adam) is AdamConfig
    assert adam.arguments() == {"lr": 0.002, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": True}
    adamw = parse_train_config(SPARSE + "dense_optimizer { adamw_optimizer {} }").dense_optimizer.optimizer
    assert type(adamw) is AdamWConfig
    sgd = parse_train_config(SPARSE + DENSE).dense_optimizer.optimizer
    assert sgd == SgdConfig()
    assert sgd.arguments() == {"lr": 0.002, "momentum": 0.9, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train_config: sparse_optimizer is missing"),
        (SPARSE, "train_config: dense_optimizer is missing"),
        (
            "sparse_optimizer {} " + DENSE,
            "sparse_optimizer: optimizer is missing; set one of sgd_optimizer, adagrad_optimizer, adam_optimizer, lars_sgd_optimizer, ",
        ),
        (
            "sparse_optimizer { rowwise_adagrad_optimizer { weight_decay: 0.1 } } " + DENSE,
            "rowwise_adagrad_optimizer: weight_decay 0.1 does nothing with weight_decay_mode NONE; set both, or none",
        ),
        (
            "sparse_optimizer { rowwise_adagrad_optimizer { weight_decay_mode: L2 } } " + DENSE,
            "0.0 does nothing with weight_decay_mode L2",
        ),
        ("sparse_optimizer { lamb_optimizer { beta1: 1 } } " + DENSE, "lamb_optimizer: beta1 and beta2 must be below 1"),
        ("sparse_optimizer { lars_sgd_optimizer { momentum: 1.5 } } " + DENSE, "lars_sgd_optimizer: momentum must be at most 1, found 1.5"),
        ("sparse_optimizer { adadelta_optimizer { eps: 0 } } " + DENSE, "adadelta_optimizer: eps must be above 0"),
        ("sparse_optimizer { rmsprop_optimizer { weight_decay: inf } } " + DENSE, "weight_decay must be a number of 0 or more, found inf"),
        ("sparse_optimizer { sgd_optimizer { lr: -1 } } " + DENSE, "sparse_optimizer: sgd_optimizer: lr must be a number of 0 or more, found -1.0"),
        ("sparse_optimizer { sgd_optimizer { lr: nan } } " + DENSE, "sparse_optimizer: sgd_optimizer: lr must be a number of 0 or more, found nan"),
        (SPARSE + "dense_optimizer { adam_optimizer { beta1: 1.5 } }", "dense_optimizer: adam_optimizer: beta1 must be at most 1, found 1.5"),
        (SPARSE + "dense_optimizer { adam_optimizer { beta2: 1 } }", "beta1 and beta2 must be below 1"),
        (SPARSE + "dense_optimizer { sgd_optimizer { nesterov: true momentum: 0 } }", "nesterov needs a momentum above 0 and no dampening"),
        (SPARSE + DENSE + "num_steps: 0", "num_steps must be at least 1, found 0"),
        (SPARSE + DENSE + "num_epochs: 0", "num_epochs must be at least 1, found 0"),
        (SPARSE + DENSE + "log_step_count_steps: 0", "log_step_count_steps must be at least 1, found 0"),
        (SPARSE + DENSE + "tensorboard_summaries: 'gradient'", "tensorboard_summaries: 'gradient' is not supported yet; known: loss, learning_rate"),
        (SPARSE + DENSE + "seed: 9223372036854775808", "seed must be below 2^63"),
    ],
)
def test_what_can_not_be_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_train_config(text)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_eval_steps_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match="eval_config: num_steps must be at least 1, found 0"):
        parse_config("eval_config { num_steps: 0 }")
