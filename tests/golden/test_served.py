"""The recorded answers of sequences, by what serves them: a packed request, merged with another, the engine's lookups and a traced program."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emberline.encoding import DenseSteps, EncodedColumns, Jagged, JaggedSteps
from emberline.program_inputs import program_inputs
from emberline.schema import FeatureKind, ModelSchema
from emberline.serving.batching import BatchLayout, merge
from emberline.serving.encoded import pack_encoded
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import Bags, RowFinder, TorchLookup
from emberline.serving.request import RequestValidator
from emberline.train import load_config
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.interop import load_torcheasyrec_state
from emberline.train.models import GroupsProgram, RecModel

Arrays = dict[str, np.ndarray[Any, Any]]
CASES = ["enc_din", "enc_pool_simple_attention", "seq_basic", "seq_jagged", "seq_multival"]
TOLERANCE = 1e-5
CPU = torch.device("cpu")


def encoded_of(schema: ModelSchema, inputs: Arrays) -> EncodedColumns:
    """The recorded inputs of one batch."""
    found, group = EncodedColumns(0, {}, {}), "__BASE__"
    num_rows = 0
    for feature in schema.features:
        name = feature.name
        if feature.kind is FeatureKind.DENSE and feature.sequence:
            lengths = inputs[f"seq_dense/{name}/lengths"]
            found.dense_sequences[name] = DenseSteps(inputs[f"seq_dense/{name}/values"].reshape(-1, feature.value_dim), lengths)
        elif feature.kind is FeatureKind.DENSE:
            found.dense[name] = inputs[f"dense/{group}/{name}"]
            lengths = found.dense[name]
        else:
            values, lengths = (inputs[f"sparse/{group}/{name}/{part}"] for part in ("values", "lengths"))
            sizes = f"seq_mulval/{group}/{name}"
            if not feature.sequence:
                found.sparse[name] = Jagged(values, lengths)
            elif f"{sizes}/key_lengths" in inputs:
                found.sparse_sequences[name] = JaggedSteps(values, inputs[f"{sizes}/key_lengths"], inputs[f"{sizes}/seq_lengths"])
            else:
                found.sparse_sequences[name] = JaggedSteps(values, np.ones(values.size, np.int32), lengths)
        num_rows = len(lengths)
    return EncodedColumns(num_rows, found.sparse, found.dense, found.sparse_sequences, found.dense_sequences)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", CASES)
def test_recorded_sequences_are_served(golden_root: Any, case: str) -> None:
    folder = golden_root / case
    meta, config = json.loads((folder / "meta.json").read_text()), load_config(folder / "config.pbtxt")
    features = create_features(config.feature_configs, neg_fields=())
    group = EmbeddingGroup(features, config.feature_groups, **meta["embedding_group_kwargs"])
    with np.load(folder / "weights.npz") as file:
        load_torcheasyrec_state(group, dict(file))
    model = RecModel(group, nn.Identity(), [feature.spec for feature in features], ()).eval()
    schema = model.schema()
    lookup = TorchLookup(schema, {name: weight.detach() for name, weight in group.table_weights().items()})
    (batch,) = meta["batches"]
    with np.load(folder / "inputs.npz") as file:
        inputs = {key.removeprefix(f"{batch['name']}/"): values for key, values in file.items()}
    with np.load(folder / "outputs.npz") as file:
        wanted = {key.removeprefix(f"{batch['name']}/"): values for key, values in file.items()}
    request = RequestValidator(schema).check(pack_encoded(schema, encoded_of(schema, inputs)))
    layout, make, program = BatchLayout.of(schema), InputMaker(schema), None
    compared = 0
    for requests in ([request], [request, request]):
        merged = merge(requests, layout)
        with torch.no_grad():
            rows = RowFinder(schema, {})(Bags.cut(merged.request, layout.num_features, CPU))
            given = make(lookup, rows, merged.request)
            tensors = tuple(given[one.name] for one in program_inputs(schema))
            if program is None:
                program = torch.jit.trace(GroupsProgram(model).eval(), tensors, check_trace=False)  # type: ignore[no-untyped-call]
            answers: tuple[Tensor, ...] = program(*tensors)
        for spec, answer in zip(schema.groups, answers, strict=True):
            parts = merged.split_steps(answer, spec.stream) if spec.is_jagged else merged.split_rows(answer)
            for part in parts:
                assert np.abs(part.numpy() - wanted[spec.name]).max(initial=0) <= TOLERANCE, spec.name
                compared += 1
    assert compared == 3 * len(schema.groups)
