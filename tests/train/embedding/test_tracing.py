"""What stands behind the lookups, as programs: traced, scripted, exported, for any number of rows, steps and longest row."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import Dim

from emberline.schema import GroupKind
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.embedding import EmbeddingGroup, SequenceParts
from emberline.train.encoders import PoolingEncoderConfig, SimpleAttentionConfig
from emberline.train.features import AutoDisConfig, MlpEmbeddingConfig

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning"),
]
KINDS = [GroupKind.DEEP, GroupKind.WIDE, GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE, "nested"]


class Assemble(nn.Module):
    """`assemble` of flat tensors: pooled, dense, lengths and positions of the one stream, then the steps of each part."""

    def __init__(self, group: EmbeddingGroup, parts: SequenceParts, outputs: list[str]) -> None:
        super().__init__()
        self.group = group
        self.stream = next(iter(parts.lengths), None)
        self.names = list(parts.values)
        self.outputs = outputs

    def forward(self, pooled: Tensor, dense: Tensor, lengths: Tensor, positions: Tensor, *steps: Tensor) -> tuple[Tensor, ...]:
        parts = None
        if self.stream is not None:
            values = dict(zip(self.names, steps, strict=True))
            parts = SequenceParts(values, {self.stream: lengths}, {self.stream: positions})
        found = self.group.assemble(pooled, dense, parts)
        return tuple(found[key] for key in self.outputs)


class Flat(Assemble):
    """The same, with a fixed number of inputs, and a type of output that can be scripted."""

    def forward(  # type: ignore[override]
        self, pooled: Tensor, dense: Tensor, lengths: Tensor, positions: Tensor, first: Tensor, second: Tensor
    ) -> list[Tensor]:
        return list(super().forward(pooled, dense, lengths, positions, *(first, second)[: len(self.names)]))


def build(make: Any, kind: Any) -> EmbeddingGroup:
    features = [
        make.sparse("item"),
        make.dense("x", dense_embedding=AutoDisConfig(num_channels=2), embedding_dim=3),
        make.sequence("s"),
        make.numbers("n", 2, dense_embedding=MlpEmbeddingConfig(), embedding_dim=2),
        make.sparse("wide"),
    ]
    if kind is GroupKind.WIDE:
        return EmbeddingGroup(features, [make.group("g", "wide", "item", group_type=kind)])
    if kind is GroupKind.DEEP:
        return EmbeddingGroup(features, [make.group("g", "wide", "x")])
    if kind == "nested":
        nested = (SequenceGroupConfig(group_name="a", feature_names=("item", "s")), SequenceGroupConfig(group_name="b", feature_names=("s", "n")))
        encoders = (SimpleAttentionConfig(input="a"), PoolingEncoderConfig(input="b"))
        return EmbeddingGroup(features, [make.group("g", "wide", "x", sequence_groups=nested, sequence_encoders=encoders)])
    return EmbeddingGroup(features, [make.group("g", "item", "x", "s", "n", group_type=kind)])


def inputs(make: Any, group: EmbeddingGroup, lengths: list[int]) -> tuple[SequenceParts, tuple[Tensor, ...]]:
    """The tensors for rows of so many steps."""
    torch.manual_seed(len(lengths))
    rows = len(lengths)
    ids = {"item": [[row % 10] for row in range(rows)], "wide": [[1]] * rows, "s": [list(range(length)) for length in lengths]}
    numbers = {"n": [torch.rand(length, 2).tolist() for length in lengths]}
    batch = make.steps(ids, numbers=numbers, dense={"x": torch.rand(rows, 1).tolist()})
    if not sum(lengths):
        batch.sequence_dense_features["n"] = make.jagged([[]] * rows, 2)
    parts = group.sequence_lookup(batch)
    stream = next(iter(parts.lengths), None)
    length = torch.zeros(rows, dtype=torch.int32) if stream is None else parts.lengths[stream]
    positions = torch.zeros(0, dtype=torch.int64) if stream not in parts.positions else parts.positions[stream]
    return parts, (group.lookup(batch).detach(), group.dense(batch), length, positions, *(value.detach() for value in parts.values.values()))


OTHERS = [[4, 0, 1], [1], [0, 0], [3, 3, 3, 3, 3], [5, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_answers_as_the_group_for_any_sizes(make: Any, kind: Any) -> None:
    group = build(make, kind).eval()
    parts, example = inputs(make, group, [2, 3])
    program = Assemble(group, parts, list(group.assemble(example[0], example[1], parts))).eval()
    with torch.no_grad():
        traced = torch.jit.trace(program, example, check_trace=False)  # type: ignore[no-untyped-call]
        traced = torch.jit.freeze(traced)
        for lengths in [*OTHERS, []]:
            _, tensors = inputs(make, group, lengths)
            for found, expected in zip(traced(*tensors), program(*tensors), strict=True):
                assert torch.equal(found, expected), lengths


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_answers_as_the_group_for_any_sizes(make: Any, kind: Any) -> None:
    group = build(make, kind).eval()
    parts, example = inputs(make, group, [2, 3])
    program = Assemble(group, parts, list(group.assemble(example[0], example[1], parts))).eval()
    rows, longest, steps = Dim("rows"), Dim("longest"), Dim("steps")
    is_padded = kind in (GroupKind.SEQUENCE, "nested")
    shapes = (
        {0: rows},
        {0: rows},
        {0: rows},
        {0: longest} if is_padded else None,
        *([tuple({0: steps} for _ in example[4:])] if example[4:] else []),
    )
    with torch.no_grad():
        exported = torch.export.export(program, example, dynamic_shapes=shapes).module()
        for lengths in OTHERS:
            _, tensors = inputs(make, group, lengths)
            for found, expected in zip(exported(*tensors), program(*tensors), strict=True):
                assert torch.allclose(found, expected, atol=1e-6), lengths


@pytest.mark.parametrize("kind", KINDS)
def test_a_symbolic_trace_can_be_scripted(make: Any, kind: Any) -> None:
    group = build(make, kind).eval()
    parts, example = inputs(make, group, [2, 3])
    program = Flat(group, parts, list(group.assemble(example[0], example[1], parts))).eval()
    padding = (torch.zeros(0, 1),) * (2 - len(example[4:]))
    with torch.no_grad():
        scripted = torch.jit.script(fx.symbolic_trace(program))
        for lengths in [*OTHERS, []]:
            _, tensors = inputs(make, group, lengths)
            for found, expected in zip(scripted(*tensors, *padding), program(*tensors, *padding), strict=True):
                assert torch.equal(found, expected), lengths
