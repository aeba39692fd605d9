"""The declared type of group tensors: float32's answers, each rounded once, for every kind of group."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from emberline.errors import ConfigError
from emberline.schema import GroupKind, Pooling
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig, RecurrentEncoderConfig, SimpleAttentionConfig
from emberline.train.features import AutoDisConfig, MlpEmbeddingConfig
from tests.train.embedding.test_tracing import KINDS, OTHERS, Assemble, Flat, build, inputs

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning"),
]
HALVES = [torch.bfloat16, torch.float16]


def twins(make: Any, dtype: torch.dtype) -> tuple[EmbeddingGroup, EmbeddingGroup]:
    """All kinds of groups and of encoders that read queries, or round, or neither; in float32 and in `dtype`, with equal weights."""
    features = [
        make.sparse("item", embedding_name="t"),
        make.sparse("mean", pooling=Pooling.MEAN, dtype="bf16"),
        make.dense("x", dense_embedding=AutoDisConfig(num_channels=2), embedding_dim=3),
        make.dense("raw", 2),
        make.sequence("s", embedding_name="t"),
        make.numbers("n", dense_embedding=MlpEmbeddingConfig(), embedding_dim=2),
    ]
    nested = (SequenceGroupConfig(group_name="a", feature_names=("item", "s")), SequenceGroupConfig(group_name="b", feature_names=("s", "n")))
    encoders = (SimpleAttentionConfig(input="a"), PoolingEncoderConfig(input="b"), RecurrentEncoderConfig(cell="gru", hidden_size=3, input="b"))
    groups = [
        make.group("deep", "item", "mean", "x", "raw", sequence_groups=nested, sequence_encoders=encoders),
        make.group("wide", "item", "mean", group_type=GroupKind.WIDE),
        make.group("sequence_length", "raw"),  # a name that could be taken for a part of a sequence group
        make.group("seq", "item", "x", "s", "n", group_type=GroupKind.SEQUENCE),
        make.group("jag", "s", "n", group_type=GroupKind.JAGGED_SEQUENCE),
    ]
    plain, other = EmbeddingGroup(features, groups), EmbeddingGroup(features, groups, output_dtype=dtype)
    other.load_state_dict(plain.state_dict())
    return plain, other


def batch_of(make: Any, rows: int) -> Any:
    lengths = [3, 0, 5, 1][:rows]
    ids = {"item": [[1, 2], [], [3], [4, 5, 6]][:rows], "mean": [[1], [2, 3], [], [4]][:rows], "s": [list(range(length)) for length in lengths]}
    numbers = {"n": [[[0.1 * step] for step in range(length)] for length in lengths]}
    dense = {"x": [[0.3], [-1.0], [2.0], [0.0]][:rows], "raw": [[0.1, 1000.1]] * rows}
    return make.steps(ids, numbers=numbers, dense=dense)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [4, 2, 1])
def test_every_tensor_is_float32s_rounded_once(make: Any, dtype: torch.dtype, rows: int) -> None:
    plain, other = twins(make, dtype)
    expected, found = plain(batch_of(make, rows)), other(batch_of(make, rows))
    assert list(found) == list(expected)
    assert len(found) == 13
    rounded = 0
    for name, tensor in expected.items():
        if name.endswith(".sequence_length"):
            assert torch.equal(found[name], tensor)
            assert found[name].dtype == tensor.dtype == torch.int32
        else:
            assert tensor.dtype == torch.float32
            assert torch.equal(found[name], tensor.to(dtype)), name
            assert found[name].dtype == dtype
            rounded += int((found[name].float() != tensor).sum())
    assert rounded > 10


@pytest.mark.parametrize("dtype", HALVES)
def test_a_sum_is_taken_in_float32(make: Any, dtype: torch.dtype) -> None:
    """Adding ones in the half type itself would stick at 256 and at 2048."""
    group = EmbeddingGroup([make.sparse("f")], [make.group("g", "f")], output_dtype=dtype)
    make.counted(group, f_emb=0)
    assert group(make.batch({"f": [[1] * 4096]}))["g"].tolist() == [[4096.0] * 4]
    assert group.lookup(make.batch({"f": [[1] * 4096]})).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_flow_to_everything(make: Any, dtype: torch.dtype) -> None:
    plain, other = twins(make, dtype)
    for group in (plain, other):
        outputs = [tensor for tensor in group(batch_of(make, 4)).values() if tensor.is_floating_point()]
        torch.autograd.backward(sum((tensor.float() / 100).square().sum() for tensor in outputs))
    for (name, one), two in zip(other.named_parameters(), plain.parameters(), strict=True):
        assert one.grad is not None, name
        assert two.grad is not None, name
        assert one.grad.isfinite().all(), name
        torch.testing.assert_close(one.grad, two.grad, rtol=0.05, atol=0.05 * float(two.grad.abs().max()))


def test_under_autocast_the_type_is_the_declared_one_too(make: Any) -> None:
    plain, other = twins(make, torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        for group, dtype in ((plain, torch.float32), (other, torch.float16)):
            assert {tensor.dtype for name, tensor in group(batch_of(make, 4)).items() if not name.endswith(".sequence_length")} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_other_types_are_refused(make: Any, dtype: torch.dtype) -> None:
    with pytest.raises(ConfigError, match=rf"output_dtype must be one of torch.float32, torch.float16, torch.bfloat16, found {dtype}"):
        EmbeddingGroup([make.sparse("f")], [make.group("g", "f")], output_dtype=dtype)


def programs(make: Any, kind: Any) -> tuple[EmbeddingGroup, Assemble, tuple[Tensor, ...]]:
    group = build(make, kind).eval()
    group.output_dtype = torch.bfloat16
    parts, example = inputs(make, group, [2, 3])
    keys = list(group.assemble(example[0], example[1], parts))
    return group, Flat(group, parts, keys).eval(), (*example, *(torch.zeros(0, 1),) * (2 - len(example[4:])))


@pytest.mark.parametrize("kind", KINDS)
def test_traced_scripted_and_exported_programs_give_the_type(make: Any, kind: Any) -> None:
    group, program, example = programs(make, kind)
    with torch.no_grad():
        traced = torch.jit.trace(program, example, check_trace=False)  # type: ignore[no-untyped-call]
        scripted = torch.jit.script(fx.symbolic_trace(program))
        exported = torch.export.export(program, example).module()
        types = [tensor.dtype for tensor in program(*example)]
        assert torch.bfloat16 in types
        assert torch.float32 not in types
        for found, expected in zip(exported(*example), program(*example), strict=True):
            assert torch.equal(found, expected)
        for lengths in OTHERS:
            _, tensors = inputs(make, group, lengths)
            tensors = (*tensors, *example[len(tensors) :])
            for made in (traced, scripted):
                for found, expected in zip(made(*tensors), program(*tensors), strict=True):
                    assert found.dtype == expected.dtype
                    assert torch.equal(found, expected), lengths
