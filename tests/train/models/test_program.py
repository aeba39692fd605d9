"""What stands behind a model's lookups, as programs: without tables, and with the model's answers, whatever its groups are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from emberline.program_inputs import ProgramInput, program_inputs
from emberline.schema import GroupKind, OutputSpec
from emberline.train.config.group_configs import SequenceGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig, SimpleAttentionConfig
from emberline.train.features import AutoDisConfig, MlpEmbeddingConfig
from emberline.train.models import DenseProgram, GroupsProgram, RecModel
from tests.train.embedding.conftest import Make

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
SEQ, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE
ROWS: list[list[int]] = [[2, 0, 3], [], [0, 0], [1], [0, 4, 1, 0, 2]]
"""Steps of each row, by batch."""


class Head(nn.Module):
    """Sums of every group's tensor, one a row, and a sequence's steps by their number."""

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        lengths = groups["padded.sequence_length"]
        mean = groups["padded.sequence"].sum(dim=(1, 2)) / lengths.clamp(min=1)
        return {"found": groups["deep"].sum(1) + mean, "twice": groups["deep"] * 2}


def make_model() -> RecModel:
    """Every kind of group; `s` and `t` are one stream, as they stand side by side in one group, and so are they with `n` in another."""
    make = Make()
    features = [
        make.sparse("item"),
        make.dense("x", dense_embedding=AutoDisConfig(num_channels=2), embedding_dim=3),
        make.sequence("s", weighted=True),
        make.sequence("t", value_dim=0, dim=3, weighted=True),
        make.numbers("n", 2, dense_embedding=MlpEmbeddingConfig(), embedding_dim=2),
        make.sequence("u"),
        make.numbers("nobody_reads_it", 2),
    ]
    nested = (
        SequenceGroupConfig(group_name="a", feature_names=("item", "s")),
        SequenceGroupConfig(group_name="b", feature_names=("u",)),
    )
    encoders = (SimpleAttentionConfig(input="a"), PoolingEncoderConfig(input="b"))
    groups = [
        make.group("deep", "item", "x", sequence_groups=nested, sequence_encoders=encoders),
        make.group("wide", "item", group_type=GroupKind.WIDE),
        make.group("padded", "item", "s", "t", group_type=SEQ),
        make.group("jagged", "n", "t", "x", group_type=JAGGED),
        make.group("alone", "u", group_type=JAGGED),
    ]
    torch.manual_seed(1)
    group = EmbeddingGroup(features, groups)
    vectors = (OutputSpec(name="found"), OutputSpec(name="twice", width=group.group_total_dim("deep")))
    return RecModel(group, Head(), [feature.spec for feature in features], (), vectors).eval()


@pytest.fixture(scope="module")
def model() -> RecModel:
    return make_model()


def batch_of(steps: list[int]) -> Batch:
    ids = {
        "item": [[row % 10, 1] for row in range(len(steps))],
        "s": [[number % 10 for number in range(count)] for count in steps],
        "u": [[3] * row for row in range(len(steps))],
    }
    multi = {"t": [[[number, number + 1][: number % 3] for number in range(count)] for count in steps]}
    flat = {name: [len(row) for row in rows] for name, rows in ids.items()}
    weights = {"s": [[0.5 * (number + 1) for number in range(count)] for count in flat["s"]]}
    weights["t"] = [[0.25 * (number - 1) for number in range(sum(len(step) for step in row))] for row in multi["t"]]
    numbers = {"n": [[[row, number] for number in range(count)] for row, count in enumerate(steps)]}
    batch = Make.steps(ids, multi=multi, numbers=numbers, dense={"x": [[row - 1] for row in range(len(steps))]}, weights=weights)
    if not sum(steps):
        batch.sequence_dense_features["n"] = Make.jagged([[]] * len(steps), 2)
    return batch


def inputs_of(model: RecModel, batch: Batch) -> tuple[Tensor, ...]:
    """What `program_inputs` lists, of a batch."""
    group = model.embedding_group
    parts = group.sequence_lookup(batch)
    given = {"pooled": group.lookup(batch), "dense": group.dense(batch)}
    given |= {f"steps.{key}": values for key, values in parts.values.items()}
    given |= {f"lengths.{stream}": lengths.long() for stream, lengths in parts.lengths.items()}
    given |= {f"positions.{stream}": positions for stream, positions in parts.positions.items()}
    return tuple(given[wanted.name].detach() for wanted in program_inputs(model.schema()))


def test_inputs_are_listed_by_stream(model: RecModel) -> None:
    assert program_inputs(model.schema()) == (
        ProgramInput(name="pooled", dtype="float32", dims=("B", 8)),
        ProgramInput(name="dense", dtype="float32", dims=("B", 1)),
        ProgramInput(name="steps.s", dtype="float32", dims=("N.s", 4)),
        ProgramInput(name="steps.u", dtype="float32", dims=("N.u", 4)),
        ProgramInput(name="steps.t", dtype="float32", dims=("N.s", 3)),
        ProgramInput(name="steps.n", dtype="float32", dims=("N.s", 2)),
        ProgramInput(name="lengths.s", dtype="int64", dims=("B",)),
        ProgramInput(name="lengths.u", dtype="int64", dims=("B",)),
        ProgramInput(name="positions.s", dtype="int64", dims=("L.s",)),
        ProgramInput(name="positions.u", dtype="int64", dims=("L.u",)),
    )


@pytest.mark.parametrize("traced", [False, True], ids=["called", "traced"])
def test_programs_give_the_models_answers_for_any_sizes(model: RecModel, traced: bool) -> None:
    groups_program: Any = GroupsProgram(model)
    outputs_program: Any = DenseProgram(model)
    with torch.no_grad():
        if traced:
            example = inputs_of(model, batch_of([2, 1]))
            groups_program, outputs_program = (
                torch.jit.freeze(torch.jit.trace(program.eval(), example, check_trace=False))  # type: ignore[no-untyped-call]
                for program in (groups_program, outputs_program)
            )
        for steps in ROWS:
            batch = batch_of(steps)
            inputs, wanted = inputs_of(model, batch), model.embedding_group(batch)
            specs, found = model.schema().groups, groups_program(*inputs)
            assert len(found) == len(specs) == 10
            for spec, tensor in zip(specs, found, strict=True):
                assert torch.equal(tensor, wanted[spec.name]), (spec, steps)
                assert tensor.dtype == (torch.int64 if spec.is_lengths else torch.float32)
            for tensor, expected in zip(outputs_program(*inputs), model(batch).values(), strict=True):
                torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)


def test_a_program_gives_nothing_away_that_it_was_given(model: RecModel) -> None:
    """Some formats could not tell input and output apart."""
    inputs = inputs_of(model, batch_of([2, 0, 3]))
    memory = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.dim() == 1}
    for tensor in GroupsProgram(model)(*inputs):
        assert all(tensor is not given for given in inputs)
        assert tensor.dim() > 1 or tensor.untyped_storage().data_ptr() not in memory


def test_a_program_holds_no_table(model: RecModel) -> None:
    names = [name for name, _ in GroupsProgram(model).named_parameters()]
    assert names
    assert not [name for name in names if "pooled" in name or "sequence_tables" in name]
