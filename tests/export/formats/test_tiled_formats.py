"""Programs for tiled requests in every format: an example with encoders, and groups of every kind with steps of both sides."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from emberline.export.program import write_programs
from emberline.export.program_options import ProgramOptions
from emberline.program_inputs import program_outputs, tiled_inputs
from emberline.serving.program import FORMATS, load_program
from emberline.train.config import load_config
from emberline.train.data import Batch, tiled_from_encoded, untile_batch
from emberline.train.data.tile import is_user_side
from emberline.train.embedding import SideParts
from emberline.train.models import RecModel, build_model, features_of
from tests.train.embedding.conftest import Make
from tests.train.embedding.tiled_case import draw
from tests.train.models.test_tiled_models import EXAMPLES, columns
from tests.train.models.test_tiled_programs import SIZES, inputs_of, make_model

Answers = list[tuple[torch.Tensor, ...]]
Case = tuple[RecModel, str, list[tuple[torch.Tensor, ...]], Answers]


def example() -> Case:
    """The outputs of MultiTowerDIN, which reads sequences by itself; inputs are looked up by the model, answers those of the rows written out."""
    config = load_config(EXAMPLES / "multi_tower_din.pbtxt")
    features = features_of(config)
    torch.manual_seed(0)
    model = build_model(config, features).eval()
    inputs, answers = [], []
    for seed, (owners, users, _) in enumerate(SIZES):
        user = columns([feature for feature in features if is_user_side(feature)], users, seed)
        item = columns([feature for feature in features if not is_user_side(feature)], len(owners), seed + 10)
        tiled = tiled_from_encoded(features, user, item, torch.tensor(owners, dtype=torch.int64).numpy())
        with torch.no_grad():
            inputs.append(inputs_of(model, model.embedding_group.tiled_lookup(tiled)))
            answers.append(tuple(model(untile_batch(tiled)).values()))
    return model, "tiled_outputs", inputs, answers


def groups() -> Case:
    """Group tensors with steps of users and of rows side by side, padded and not."""
    model = make_model("seq_both", "jag_both", "jag", "item")
    inputs, answers = [], []
    for seed, (owners, users, most) in enumerate(SIZES):
        case = draw(Make(), seed, owners, users, most)
        assert case.tiled.tile is not None
        with torch.no_grad():
            parts = model.embedding_group.tiled_lookup(case.tiled)
            found = model.embedding_group(case.untiled)
        inputs.append(
            inputs_of(model, parts._replace(user=_all_numbers(parts.user, case.tiled.tile.user), item=_all_numbers(parts.item, case.tiled)))
        )
        answers.append(tuple(found[group.name] for group in model.embedding_group.groups))
    return model, "tiled_groups", inputs, answers


def _all_numbers(side: SideParts, batch: Batch) -> SideParts:
    """With those that no group reads, which programs are given too."""
    return side._replace(dense=batch.dense_features["__BASE__"].values())


@pytest.mark.usefixtures("quick_wrappers")
@pytest.mark.parametrize("make_case", [example, groups])
def test_every_format_answers_as_the_model_on_the_rows_written_out(make_case: Callable[[], Case], tmp_path: Path) -> None:
    model, role, inputs, answers = make_case()
    options = ProgramOptions.of(FORMATS, tile=True)
    entries = write_programs(model, tmp_path, options, kept=lambda made, digest: made != role)
    assert [(entry.role, entry.format) for entry in entries] == [(role, format) for format in FORMATS]
    schema = model.schema()
    wanted = tiled_inputs(schema)
    names = program_outputs(schema, role)
    for entry in entries:
        program: Any = load_program(tmp_path / entry.file, entry, wanted, names, torch.device("cpu"))
        for given, expected in zip(inputs, answers, strict=True):
            found = program({one.name: tensor for one, tensor in zip(wanted, given, strict=True)})
            for name, tensor in zip(names, expected, strict=True):
                torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5, check_dtype=False, msg=f"{entry.format} {name}")
