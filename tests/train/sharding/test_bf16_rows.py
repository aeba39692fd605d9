"""BF16 tables in fused kernels on a CPU, against loops in float64 over the rounded tables."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from emberline.errors import ConfigError
from emberline.train.sharding import create_sharders, create_single_process_plan, process_group
from emberline.train.sharding.bf16_rows import Bf16Lookup, round_by_chance
from tests.train.sharding.test_plan import TEXT, group_of

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
RATE, EPS = 0.3, 1e-8
SGD, ADAGRAD, ROWWISE = EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD
OPTIMIZERS = [SGD, ADAGRAD, ROWWISE]
READS = [0, 1, 0]
"""The table of each feature: two of them share one."""


@dataclass
class Case:
    """Ids and weights of each feature's bags."""

    ids: list[list[list[int]]]
    weights: list[list[list[float]]] | None

    def arguments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        bags = [bag for feature in self.ids for bag in feature]
        offsets = torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0)
        flat = torch.tensor([one for bag in bags for one in bag], dtype=torch.int64)
        if self.weights is None:
            return flat, offsets, None
        return flat, offsets, torch.tensor([one for feature in self.weights for bag in feature for one in bag], dtype=torch.float32)


def kernel_of(optimizer: Any = SGD, mode: Any = PoolingMode.SUM, dims: tuple[int, int] = (4, 8), **other: Any) -> Any:
    specs = [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, dim in zip((6, 5), dims, strict=True)]
    found = {"learning_rate": RATE, "eps": EPS, "stochastic_rounding": False} | other
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        specs, feature_table_map=READS, optimizer=optimizer, weights_precision=SparseType.BF16, pooling_mode=mode, **found
    )
    generator = torch.Generator().manual_seed(1)
    for table in kernel.split_embedding_weights():
        table.copy_(torch.randn(table.shape, generator=generator))
    return kernel


def tables_of(kernel: Any) -> list[Tensor]:
    return [table.detach().double() for table in kernel.split_embedding_weights()]


def by_hand(case: Case, tables: list[Tensor], mode: Any) -> list[list[Tensor]]:
    """Each feature's bags as vectors; without pooling, each id's."""
    answers: list[list[Tensor]] = []
    for feature, bags in enumerate(case.ids):
        table, rows = tables[READS[feature]], []
        for place, bag in enumerate(bags):
            weights = [1.0] * len(bag) if case.weights is None else case.weights[feature][place]
            vectors = [float(torch.tensor(weight)) * table[one] for one, weight in zip(bag, weights, strict=True)]
            if mode == PoolingMode.NONE:
                rows += vectors
            else:
                total = sum(vectors, torch.zeros(table.shape[1], dtype=torch.float64))
                rows.append(total / max(len(bag), 1) if mode == PoolingMode.MEAN else total)
        answers.append(rows)
    return answers


def expected_step(optimizer: Any, gradient: Tensor, moments: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if optimizer == SGD:
        return RATE * gradient, None
    squares = gradient.square() if optimizer == ADAGRAD else gradient.square().mean(1)
    assert moments is not None
    moments = moments + squares
    root = moments.sqrt() if optimizer == ADAGRAD else moments.sqrt().unsqueeze(1)
    return RATE * gradient / (root + EPS), moments


def neighbours(exact: Tensor) -> tuple[Tensor, Tensor]:
    """The largest bfloat16 that is not above a number, and the smallest that is not below."""
    nearest = exact.bfloat16()
    infinity = torch.full_like(nearest, float("inf"))
    below = torch.where(nearest.double() > exact, torch.nextafter(nearest, -infinity), nearest)
    return below.double(), torch.where(nearest.double() < exact, torch.nextafter(nearest, infinity), nearest).double()


@st.composite
def cases(draw: st.DrawFn, weighted: bool) -> Case:
    bags = draw(st.integers(1, 3))
    ids = [[draw(st.lists(st.integers(0, 4), max_size=5)) for _ in range(bags)] for _ in READS]
    weight = st.sampled_from([-2.0, 0.0, 0.3, 1.0, 100.0])
    return Case(ids, [[[draw(weight) for _ in bag] for bag in feature] for feature in ids] if weighted else None)


@pytest.mark.parametrize(
    ("mode", "weighted"), [(PoolingMode.SUM, False), (PoolingMode.SUM, True), (PoolingMode.MEAN, False), (PoolingMode.NONE, False)]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_two_steps_are_what_the_formulas_say(data: st.DataObject, optimizer: Any, mode: Any, weighted: bool) -> None:
    kernel = kernel_of(optimizer, mode, (4, 4) if mode == PoolingMode.NONE else (4, 8))
    lookup = Bf16Lookup(kernel)
    shapes = [table.shape if optimizer == ADAGRAD else table.shape[:1] for table in tables_of(kernel)]
    moments: list[Tensor | None] = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    for seed in range(2):
        case = data.draw(cases(weighted))
        tables = [table.requires_grad_() for table in tables_of(kernel)]
        answers = by_hand(case, tables, mode)
        columns = [torch.stack(rows) if rows else torch.zeros(0, 4, dtype=torch.float64) for rows in answers]
        expected = torch.cat(columns, dim=0 if mode == PoolingMode.NONE else 1)
        found = lookup(*case.arguments())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-6, atol=1e-4)
        cotangent = torch.randn(found.shape, generator=torch.Generator().manual_seed(seed))
        torch.autograd.backward(found, cotangent)
        loss = (expected * cotangent.double()).sum() + sum(table.sum() for table in tables) * 0  # there may be no id at all
        gradients = torch.autograd.grad(loss, tables)
        states = kernel.split_optimizer_states()
        for place, (before, gradient, after) in enumerate(zip(tables, gradients, kernel.split_embedding_weights(), strict=True)):
            step, moments[place] = expected_step(optimizer, gradient, moments[place])
            exact = before.detach() - step
            torch.testing.assert_close(after.detach().double(), exact, rtol=2**-8, atol=1e-4)
            if states:
                torch.testing.assert_close(states[place][0].double(), moments[place], rtol=1e-4, atol=1e-5)
            unread = torch.ones(len(before), dtype=torch.bool)
            unread[[one for feature, bags in enumerate(case.ids) if READS[feature] == place for bag in bags for one in bag]] = False
            assert torch.equal(after[unread].double(), before[unread])


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_numbers_are_rounded_to_a_neighbour(numbers: list[float], seed: int) -> None:
    torch.manual_seed(seed)
    exact = torch.tensor(numbers, dtype=torch.float32)
    found = round_by_chance(exact)
    assert found.dtype == torch.bfloat16
    finite = exact.isfinite()
    below, above = neighbours(exact.double())
    assert bool(((found.double() == below) | (found.double() == above))[finite].all())
    torch.testing.assert_close(found[~finite].float(), exact[~finite], rtol=0, atol=0, equal_nan=True)
    held = exact.bfloat16()
    torch.testing.assert_close(round_by_chance(held.float()), held, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_is_rounded_up_as_often_as_it_is_near(share: float, sign: int) -> None:
    torch.manual_seed(0)
    number = sign * (1 + share / 128)
    found = round_by_chance(torch.full((40_000,), number))
    assert set(found.tolist()) == ({sign * 1.0, sign * (1 + 1 / 128)} if share else {sign * 1.0})
    assert (found == sign * (1 + 1 / 128)).double().mean().item() == pytest.approx(share, abs=0.01)


def test_steps_smaller_than_a_number_can_show_are_not_lost() -> None:
    """A hundred steps of 1/1024 from 1: rounding to the nearest would stay at 1 for ever."""
    torch.manual_seed(0)
    ends = {}
    for by_chance in (True, False):
        kernel = kernel_of(dims=(400, 4), learning_rate=1 / 1024, stochastic_rounding=by_chance)
        kernel.split_embedding_weights()[0].fill_(1.0)
        lookup = Bf16Lookup(kernel)
        for _ in range(100):
            torch.autograd.backward(lookup(torch.arange(6), torch.tensor([0, 6, 6, 6])).sum())
        ends[by_chance] = kernel.split_embedding_weights()[0].double().mean().item()
    assert ends[True] == pytest.approx(1 - 100 / 1024, abs=0.002)
    assert ends[False] == 1.0


def test_a_rate_of_zero_leaves_rows_as_they_are_whatever_the_gradient() -> None:
    kernel = kernel_of(learning_rate=0.0)
    before = tables_of(kernel)
    found = Bf16Lookup(kernel)(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2, 3]))
    torch.autograd.backward(found, torch.full_like(found, float("nan")))
    assert all(torch.equal(now, then) for now, then in zip(tables_of(kernel), before, strict=True))


@pytest.mark.parametrize("bags", [0, 1, 2])
@pytest.mark.parametrize("mode", [PoolingMode.SUM, PoolingMode.NONE])
def test_no_ids_at_all(bags: int, mode: Any) -> None:
    kernel = kernel_of(ADAGRAD, mode, (4, 4))
    before = tables_of(kernel)
    found = Bf16Lookup(kernel)(torch.zeros(0, dtype=torch.int32), torch.zeros(3 * bags + 1, dtype=torch.int32))
    assert found.shape == ((0, 4) if mode == PoolingMode.NONE else (bags, 12))
    torch.autograd.backward(found.sum())
    assert not found.any()
    assert all(torch.equal(now, then) for now, then in zip(tables_of(kernel), before, strict=True))


def test_every_kind_of_sharded_collection_gets_its_lookup() -> None:
    """Fbgemm's own kernel refuses to read such tables: whatever answers has been given our lookup."""
    text = TEXT.replace("embedding_dim: 4", 'embedding_dim: 4 data_type: "BF16"').replace("embedding_dim: 8", 'embedding_dim: 8 data_type: "BF16"')
    group, sharders = group_of(text), create_sharders()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.group = group

    model = Model()
    with process_group():
        sharded = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=create_single_process_plan(model, sharders), sharders=sharders, init_data_parallel=False
        )
        lookups = [lookup for part in sharded.modules() for lookup in getattr(part, "_lookups", ())]
        kernels = [part for lookup in lookups for part in lookup.modules() if isinstance(part, SplitTableBatchedEmbeddingBagsCodegen)]
        assert len(kernels) == 4
        assert all(isinstance(kernel.forward, Bf16Lookup) for kernel in kernels)
        for kernel in kernels:
            with pytest.raises(NotImplementedError, match="BFloat16"):
                type(kernel).forward(kernel, torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1]))


ONE = """
feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 6 data_type: "BF16" } }
feature_groups { group_name: "g" feature_names: "a" }
"""


@pytest.mark.parametrize(
    ("dense", "decay", "message"),
    [
        (False, 0.1, "tables a_emb: data_type BF16 can be trained on a CPU with sgd, adagrad or rowwise_adagrad, without weight_decay"),
        (True, 0.0, "tables a_emb: data_type BF16 needs the fused kernel on a CPU, not the dense one"),
    ],
)
def test_what_such_tables_cannot_have_is_refused_by_name(dense: bool, decay: float, message: str) -> None:
    group, sharders = group_of(ONE), create_sharders()
    if not dense:
        apply_optimizer_in_backward(torch.optim.SGD, group.table_weights().values(), {"lr": 0.1, "weight_decay": decay})
    model = nn.Sequential(group)
    plan = create_single_process_plan(model, sharders)
    for table in plan.plan["0.pooled.ebc"].values() if dense else ():
        table.compute_kernel = "dense"
    with process_group(), pytest.raises(ConfigError, match=message):
        DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders, init_data_parallel=False)
