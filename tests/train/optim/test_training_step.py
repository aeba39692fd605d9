"""Whole steps on a sharded model, against the same model in float64 that is updated by hand."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection

from emberline.errors import ConfigError, TrainingError
from emberline.train.config.optimizer_configs import FusedAdagradConfig, FusedRowWiseAdagradConfig, FusedSgdConfig, SparseOptimizer
from emberline.train.optim import initial_moment
from emberline.train.optim.border import kernels_of
from emberline.train.optim.schedules import learning_rate
from tests.train.optim.small_model import Plain, Small, make_small

SPARSE = {
    "sgd": "sgd_optimizer { lr: 0.1 %s }",
    "adagrad": "adagrad_optimizer { lr: 0.1 initial_accumulator_value: 0.2 %s }",
    "rowwise": "rowwise_adagrad_optimizer { lr: 0.1 %s }",
}
DENSE = "sgd_optimizer { lr: 0.05 momentum: 0 }"
FP16 = "mixed_precision: 'FP16' grad_scaler { init_scale: 1024 }"


def config(sparse: str = "adagrad", more: str = "", *, clip: str = "", sparse_rate: str = "", dense: str = DENSE) -> str:
    return f"sparse_optimizer {{ {SPARSE[sparse] % clip} {sparse_rate} }} dense_optimizer {{ {dense} }} {more}"


class TableOracle:
    """The fused optimisers' formulas in float64."""

    def __init__(self, plain: Plain, optimizer: SparseOptimizer) -> None:
        self.plain, self.optimizer = plain, optimizer
        start = initial_moment(optimizer)
        self.moments = {name: torch.full_like(table, start) for name, table in plain.tables.items()}

    def update(self, gradients: dict[str, Tensor], rate: float) -> None:
        """One step, with dense gradients [rows, dim] of the tables."""
        for name, table in self.plain.tables.items():
            if name not in gradients:
                continue
            step = gradients[name]
            if not isinstance(self.optimizer, FusedSgdConfig):
                by_row = isinstance(self.optimizer, FusedRowWiseAdagradConfig)
                self.moments[name] += step.square().mean(1, keepdim=True) if by_row else step.square()
                step = step / (self.moments[name].sqrt() + 1e-8)
            table.data -= rate * step


def both(text: str) -> tuple[Small, Plain, TableOracle]:
    small = make_small(text)
    plain = Plain(small)
    return small, plain, TableOracle(plain, small.config.sparse_optimizer.optimizer)


@pytest.mark.parametrize("sparse", list(SPARSE))
@pytest.mark.parametrize("more", ["", "grad_scaler { init_scale: 1024 growth_interval: 2 }"])
def test_a_step_is_autograd_and_the_optimisers(sparse: str, more: str) -> None:
    small, plain, oracle = both(config(sparse, more))
    for seed in range(6):
        gradients = plain.gradients(seed)
        loss = small.run(seed)
        assert loss.item() == pytest.approx(plain.loss(seed).item(), rel=1e-5)
        assert not loss.requires_grad
        oracle.update(gradients, 0.1)
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * gradients[name]
        plain.assert_equals(small)


def test_schedules_reach_the_kernels_and_the_dense_part() -> None:
    rate = "exponential_decay_learning_rate { decay_size: 2 decay_factor: 0.5 warmup_size: 2 }"
    small, plain, oracle = both(config("adagrad", sparse_rate=rate, dense=DENSE + " cosine_annealing_learning_rate { T_max: 4 }"))
    settings = small.config
    for seed in range(7):
        sparse, dense = learning_rate(settings.sparse_optimizer.learning_rate, 0.1, seed, 0), 0.05 * (1 + math.cos(math.pi * min(seed, 4) / 4)) / 2
        gradients = plain.gradients(seed)
        small.run(seed)
        assert small.step.rates == {"sparse": sparse, "dense": pytest.approx(dense)}
        oracle.update(gradients, sparse)
        for name, parameter in plain.dense.items():
            parameter.data -= dense * gradients[name]
        plain.assert_equals(small)


def test_frozen_tables_stay_frozen_under_a_schedule() -> None:
    rate = "manual_step_learning_rate { schedule_sizes: 1 learning_rates: 0.5 }"
    small = make_small(config("sgd", sparse_rate=rate))
    before = small.tables()["frozen"].clone()
    for step in range(4):
        small.run(step)
    assert torch.equal(small.tables()["frozen"], before)
    by_hand = make_small(config("sgd", sparse_rate=rate).replace("sgd_optimizer { lr: 0.1", "sgd_optimizer { lr: 0"))
    first = {name: table.clone() for name, table in by_hand.tables().items()}
    for step in range(4):
        by_hand.run(step)
    assert all(torch.equal(first[name], table) for name, table in by_hand.tables().items())


@pytest.mark.parametrize("sparse", list(SPARSE))
def test_scaling_in_half_precision_gives_tables_what_single_precision_gives(sparse: str) -> None:
    """A scale of 1024 that reached the tables would be seen at once in SGD, and in Adagrad's moments."""
    single, half = make_small(config(sparse)), make_small(config(sparse, FP16))
    for seed in range(5):
        single.run(seed)
        half.run(seed)
    assert half.step.scaler is not None
    assert half.step.scaler.scale.item() == 1024.0  # no step was left out
    for name, table in single.tables().items():
        torch.testing.assert_close(half.tables()[name], table, atol=0.02, rtol=0.02)
    for name, moment in single.moments().items():
        torch.testing.assert_close(half.moments()[name], moment, atol=0.02, rtol=0.05)


@pytest.mark.parametrize("precision", ["BF16", "FP16"])
def test_the_dense_part_computes_in_half_precision(precision: str) -> None:
    small = make_small(config("sgd", f"mixed_precision: '{precision}'"))
    seen: list[torch.dtype] = []
    for part in small.model.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda _part, _arguments, out: seen.append(out.dtype))
    loss = small.run(0)
    assert seen == [{"BF16": torch.bfloat16, "FP16": torch.float16}[precision]] * 2
    assert loss.dtype == torch.float32
    assert all(table.dtype == torch.float32 for table in small.tables().values())
    single = make_small(config("sgd"))
    single.run(0)
    for name, parameter in single.step.optimizer.parameters.items():
        torch.testing.assert_close(small.step.optimizer.parameters[name], parameter, atol=0.02, rtol=0.02)
        assert not torch.equal(small.step.optimizer.parameters[name], parameter)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("sparse", list(SPARSE))
def test_a_step_that_is_not_finite_changes_nothing_but_the_scale(sparse: str, bad: float) -> None:
    settings = "grad_scaler { init_scale: 8 backoff_factor: 0.25 growth_interval: 100 } ema {} grad_clipping { clipping_type: 'norm' }"
    small = make_small(config(sparse, settings, dense="adam_optimizer {}"))
    small.run(0)
    before = small.everything()
    small.run(1, factor=bad)
    after = small.everything()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["scaler/scale", "scaler/steps_since_growth"]
    assert (after["scaler/scale"].item(), after["scaler/steps_since_growth"].item()) == (2.0, 0)
    twin = make_small(config(sparse, settings, dense="adam_optimizer {}"))
    twin.run(0)
    for one in (small, twin):
        one.run(2)  # the step after is as if the bad one had not been
    for name, value in small.tables().items():
        torch.testing.assert_close(value, twin.tables()[name], atol=1e-6, rtol=1e-5)


def test_gradients_that_only_a_table_sees_stop_the_dense_part_too() -> None:
    small = make_small(config("adagrad", "grad_scaler {}"))
    before = small.everything()
    (hooked,) = [part for part in small.model.modules() if isinstance(part, ShardedEmbeddingBagCollection)]

    def spoil(_module: object, _arguments: object, out: object) -> None:
        values = out.wait().values() if hasattr(out, "wait") else None
        assert values is not None
        values.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), math.inf))

    handle = hooked.register_forward_hook(spoil)
    small.run(0)
    handle.remove()
    after = small.everything()
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["scaler/scale"]
    assert after["scaler/scale"].item() == 32768.0


def test_gradients_that_are_finite_at_no_scale_end_the_run() -> None:
    small = make_small(config("sgd", "grad_scaler { init_scale: 1e-6 }"))
    with pytest.raises(TrainingError, match=r"not finite at a loss scale of 5e-07 either; use mixed_precision: 'BF16'"):
        small.run(0, factor=math.inf)


def test_the_scale_grows_after_so_many_good_steps() -> None:
    small = make_small(config("sgd", "grad_scaler { init_scale: 4 growth_factor: 3 growth_interval: 2 }"))
    found = []
    for seed in range(5):
        small.run(seed)
        found.append(small.step.tensors()["scaler/scale"].item())
    assert found == [4.0, 12.0, 12.0, 36.0, 36.0]


def test_averages_follow_real_steps_and_lend_themselves() -> None:
    small = make_small(config("sgd", "ema { decay: 0.75 } grad_scaler { init_scale: 2 }"))
    parameters = small.step.optimizer.parameters
    expected = {name: parameter.detach().double() for name, parameter in parameters.items()}
    for seed in range(4):
        small.run(seed, factor=math.inf if seed == 2 else 1.0)
        if seed != 2:
            expected = {name: 0.75 * value + 0.25 * parameters[name].detach().double() for name, value in expected.items()}
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    tensors = small.step.tensors()
    with small.step.averaged():
        for name, value in expected.items():
            torch.testing.assert_close(parameters[name].double(), value, atol=1e-6, rtol=1e-6)
            assert torch.equal(parameters[name], tensors[f"ema/{name}"])
            assert not torch.equal(parameters[name], before[name])
    assert all(torch.equal(parameters[name], value) for name, value in before.items())
    with small.step.averaged(wanted=False):
        assert all(torch.equal(parameters[name], value) for name, value in before.items())


@pytest.mark.parametrize("sparse", ["sgd", "adagrad"])
@pytest.mark.parametrize(("norm_type", "bound"), [(1.0, 0.01), (2.0, 0.02), (3.5, 0.01), (math.inf, 0.01), (2.0, 1e6)])
@pytest.mark.parametrize("scaler", ["", "grad_scaler { init_scale: 8 }"])
def test_the_norm_may_be_that_of_the_whole_model(sparse: str, norm_type: float, bound: float, scaler: str) -> None:
    more = f"grad_clipping {{ clipping_type: 'norm' max_gradient: {bound} norm_type: {norm_type} enable_global_grad_clip: true }} {scaler}"
    small, plain, oracle = both(config(sparse, more))
    for seed in range(3):
        gradients = plain.gradients(seed)
        numbers = torch.cat([gradient.flatten() for gradient in gradients.values()])
        norm = numbers.abs().max() if math.isinf(norm_type) else numbers.abs().pow(norm_type).sum() ** (1 / norm_type)
        clipped = {name: gradient * min(1.0, bound / (norm.item() + 1e-6)) for name, gradient in gradients.items()}
        small.run(seed)
        oracle.update(clipped, 0.1)
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * clipped[name]
        plain.assert_equals(small)


@pytest.mark.parametrize("batches", [2, 3])
def test_the_norm_of_several_batches_is_that_of_one_large_one(batches: int) -> None:
    clipping = "grad_clipping { clipping_type: 'norm' max_gradient: 0.02 enable_global_grad_clip: true }"
    whole, parts = make_small(config("adagrad", clipping)), make_small(config("adagrad", f"{clipping} gradient_accumulation_steps: {batches}"))
    short = make_small(config("adagrad", f"{clipping} gradient_accumulation_steps: {2 * batches}"))
    for seed in range(3):
        whole.run(seed)
        for part in range(batches):
            parts.run_part(seed, part, batches)
            short.run_part(seed, part, batches)
        short.step.finish()  # a step that has half its batches
    expected = whole.everything()
    for name, value in expected.items():
        torch.testing.assert_close(parts.everything()[name], value, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(short.everything()[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, math.inf])
def test_the_norm_is_that_of_the_whole_dense_part(norm_type: float) -> None:
    parts = "part_optimizers { regex_pattern: '.*bias' sgd_optimizer { lr: 0.05 momentum: 0 } }"
    more = f"grad_clipping {{ clipping_type: 'norm' max_gradient: 0.01 norm_type: {norm_type} }}"
    small, plain, oracle = both(config("sgd", more, dense=DENSE + parts))
    for seed in range(3):
        gradients = plain.gradients(seed)
        numbers = torch.cat([gradients[name].flatten() for name in plain.dense])
        norm = numbers.abs().max() if math.isinf(norm_type) else numbers.abs().pow(norm_type).sum() ** (1 / norm_type)
        assert norm > 0.01
        small.run(seed)
        oracle.update(gradients, 0.1)  # tables are not clipped by this
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * gradients[name] * (0.01 / norm)
        plain.assert_equals(small)


@pytest.mark.parametrize("scaler", ["", "grad_scaler {}"])
def test_values_are_clipped_one_by_one_and_after_unscaling(scaler: str) -> None:
    small, plain, oracle = both(config("sgd", "grad_clipping { clipping_type: 'value' max_gradient: 0.02 } " + scaler))
    for seed in range(3):
        gradients = plain.gradients(seed)
        small.run(seed)
        oracle.update(gradients, 0.1)
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * gradients[name].clamp(-0.02, 0.02)
        plain.assert_equals(small)


@pytest.mark.parametrize(
    "clipping", ["", "grad_clipping { clipping_type: 'none' max_gradient: 1e-9 }", "grad_clipping { clipping_type: 'norm' max_gradient: 1e9 }"]
)
def test_a_bound_that_is_not_met_changes_nothing(clipping: str) -> None:
    free, bound = make_small(config("sgd")), make_small(config("sgd", clipping))
    for seed in range(2):
        free.run(seed)
        bound.run(seed)
    for name, value in free.everything().items():
        torch.testing.assert_close(bound.everything()[name], value, atol=0, rtol=1e-6)


@pytest.mark.parametrize("scaler", ["", "grad_scaler {}"])
@pytest.mark.parametrize("sparse", list(SPARSE))
def test_clipped_tables_learn_from_clipped_vectors(sparse: str, scaler: str) -> None:
    small, plain, oracle = both(config(sparse, scaler, clip="gradient_clipping: true max_gradient: 0.01"))
    for seed in range(3):
        with plain.clipped_vectors(0.01):
            tables = plain.gradients(seed)
        dense = plain.gradients(seed)
        small.run(seed)
        oracle.update(tables, 0.1)
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * dense[name]
        plain.assert_equals(small)


def test_a_clip_is_that_of_the_config() -> None:
    optimizer = make_small(config("adagrad", clip="gradient_clipping: true max_gradient: 0.5")).config.sparse_optimizer.optimizer
    assert optimizer == FusedAdagradConfig(lr=0.1, initial_accumulator_value=0.2, gradient_clipping=True, max_gradient=0.5)


def _note_backward(ran: list[set[str]], tables: set[str], _kernel: object, _arguments: object, vectors: Tensor) -> None:
    if vectors.requires_grad:
        vectors.register_hook(lambda _: ran.append(tables))  # type: ignore[no-untyped-call]


def test_frozen_tables_have_no_backward() -> None:
    small = make_small(config("sgd"))
    ran: list[set[str]] = []
    for kernel, tables in kernels_of(small.model):
        inner = kernel.emb_module
        assert isinstance(inner, torch.nn.Module)
        inner.register_forward_hook(partial(_note_backward, ran, tables))
    small.run(0)
    assert ran == [{"a", "b"}]


def test_a_model_in_which_nothing_learns_is_told() -> None:
    small = make_small(config("sgd"))
    with pytest.raises(TrainingError, match="nothing in this model learns"):
        small.step.run(lambda: torch.ones(()))


EXTRAS = {
    "plain": "",
    "clipped, averaged": "grad_clipping { clipping_type: 'norm' max_gradient: 0.1 } ema { decay: 0.5 }",
    "scaled": "grad_scaler { init_scale: 256 growth_interval: 2 }",
}


@pytest.mark.parametrize("extra", list(EXTRAS))
@pytest.mark.parametrize("sparse", list(SPARSE))
@pytest.mark.parametrize("batches", [2, 3])
def test_several_batches_make_the_step_of_one_large_one(sparse: str, extra: str, batches: int) -> None:
    text = partial(config, sparse, clip="gradient_clipping: true max_gradient: 0.05", sparse_rate="exponential_decay_learning_rate { decay_size: 1 }")
    dense = "adam_optimizer {} cosine_annealing_learning_rate { T_max: 3 }"
    whole = make_small(text(EXTRAS[extra], dense=dense))
    parts = make_small(text(f"{EXTRAS[extra]} gradient_accumulation_steps: {batches}", dense=dense))
    for seed in range(4):
        whole.run(seed)
        before = parts.tables()["a"].clone()
        for part in range(batches):
            assert torch.equal(parts.tables()["a"], before)
            parts.run_part(seed, part, batches)
        assert not torch.equal(parts.tables()["a"], before)
        assert (parts.step.steps, parts.step.pending, parts.step.rates) == (seed + 1, 0, whole.step.rates)
        found = parts.everything()
        for name, value in whole.everything().items():
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("scaler", ["", "grad_scaler { init_scale: 256 }"])
@pytest.mark.parametrize("sparse", list(SPARSE))
def test_a_step_of_fewer_batches_is_the_mean_over_those(sparse: str, scaler: str) -> None:
    parts = make_small(config(sparse, f"gradient_accumulation_steps: 4 {scaler}"))
    whole = make_small(config(sparse, scaler))
    for part in range(3):
        parts.run_part(0, part, 3)
    assert parts.step.pending == 3
    parts.step.finish()
    parts.step.finish()
    whole.run(0)
    assert (parts.step.steps, parts.step.pending) == (1, 0)
    found = parts.everything()
    for name, value in whole.everything().items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("sparse", list(SPARSE))
def test_one_batch_that_is_not_finite_takes_the_whole_step_away(sparse: str, bad: int) -> None:
    small = make_small(config(sparse, "gradient_accumulation_steps: 2 grad_scaler { init_scale: 8 } ema {}", dense="adam_optimizer {}"))
    for part in range(2):
        small.run_part(0, part, 2)
    before = small.everything()
    for part in range(2):
        small.run_part(1, part, 2, factor=math.inf if part == bad else 1.0)
    after = small.everything()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["scaler/scale", "scaler/steps_since_growth"]
    small.run_part(2, 0, 2)
    small.run_part(2, 1, 2)
    assert not torch.equal(small.tables()["a"], before["a"])


def test_kernels_that_cannot_wait_are_refused_with_their_tables() -> None:
    text = config("adagrad", "gradient_accumulation_steps: 2")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps: tables a, b are in kernels that learn from each batch at once"):
        make_small(text, sharders=[EmbeddingBagCollectionSharder()])


@pytest.mark.parametrize("off", [0, 1])
def test_one_batch_a_step_is_no_accumulation(off: int) -> None:
    plain, small = make_small(config()), make_small(config(more=f"gradient_accumulation_steps: {off}"))
    for seed in range(2):
        plain.run(seed)
        small.run(seed)
    found = small.everything()
    assert [name for name, value in plain.everything().items() if not torch.equal(found[name], value)] == []
