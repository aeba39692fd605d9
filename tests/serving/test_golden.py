"""The golden sample: an engine that answers otherwise is never ready."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emberline.errors import ArtifactError
from emberline.serving import Engine
from emberline.serving.artifact import Artifact
from emberline.serving.files import write_tensors
from emberline.serving.golden import difference, row_scale
from tests.serving.conftest import ToyModel, random_request, reseal


def spoil(root: Path, **changed: torch.Tensor | None) -> None:
    """Put other tensors into the sample (None takes one away; `.` of a name is `__` here), and make the manifest agree."""
    sample = {name: value.clone() for name, value in Artifact.open(root).golden().items()}
    for name, value in changed.items():
        sample.pop(name.replace("__", "."), None)
        if value is not None:
            sample[name.replace("__", ".")] = value
    write_tensors(root / "golden.safetensors", sample)
    reseal(root)


@pytest.mark.parametrize("name", ["output.probs", "output.scores", "group.deep", "group.wide"])
def test_the_answer_that_differs_is_named(toy_artifact: Path, name: str) -> None:
    answer = Artifact.open(toy_artifact).golden()[name].clone()
    answer.view(-1)[2] += 1e-5 * max(1.0, abs(float(answer.view(-1)[2])))
    spoil(toy_artifact, **{name.replace(".", "__"): answer})
    with pytest.raises(
        ArtifactError, match=rf"golden\.safetensors: '{name}' is not what it was at export: 1 of \d+ numbers differ; number 2 is .*, expected"
    ):
        Engine.open(toy_artifact)


def test_a_changed_table_is_noticed_even_where_hashes_are_not_compared(toy: ToyModel, tmp_path: Path) -> None:
    sample = random_request(toy.schema, num_rows=8, seed=3, most=9)
    root = toy.write(tmp_path, golden=sample)
    path = root / "tables" / "tags2_emb.safetensors"
    data = bytearray(path.read_bytes())
    data[-80:] = np.ones(20, np.float32).tobytes()
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=r"'output\.probs' is not what it was"):
        Engine.open(root, verify=False)


def test_a_sample_without_an_answer_is_refused(toy_artifact: Path) -> None:
    spoil(toy_artifact, group__wide=None)
    with pytest.raises(ArtifactError, match=r"there is no answer 'group\.wide' to compare with"):
        Engine.open(toy_artifact)


def test_a_sample_that_is_no_request_is_refused(toy_artifact: Path) -> None:
    spoil(toy_artifact, lengths=torch.tensor([1, 2, 3], dtype=torch.int32))
    with pytest.raises(ArtifactError, match="the sample request cannot be answered here: lengths: 3 lengths are not a whole number"):
        Engine.open(toy_artifact)


def test_a_sample_without_rows_is_replayed(toy: ToyModel, tmp_path: Path) -> None:
    empty = random_request(toy.schema, num_rows=0, seed=0)
    assert Engine.open(toy.write(tmp_path, golden=empty)).name == "toy"


@pytest.mark.parametrize(
    ("found", "want", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0000009], [1.0], ""),
        ([1000.0005], [1000.0], ""),
        ([1.000002], [1.0], "1 of 1 numbers differ; number 0 is 1.00000203, expected 1"),
        ([0.0, 5.0], [0.0, float("nan")], "1 of 2 numbers differ; number 1 is 5, expected nan"),
        ([float("nan")], [float("nan")], "1 of 1 numbers differ; number 0 is nan, expected nan"),
        ([float("inf")], [float("inf")], ""),
        ([float("inf")], [1.0], "1 of 1 numbers differ; number 0 is inf, expected 1"),
        ([1.0], [float("-inf")], "1 of 1 numbers differ; number 0 is 1, expected -inf"),
        ([1.0], [1.0, 2.0], "found torch.float32 [1], expected torch.float32 [2]"),
        ([], [], ""),
    ],
)
def test_difference_in_words(found: list[float], want: list[float], message: str) -> None:
    assert difference(torch.tensor(found, dtype=torch.float32), torch.tensor(want, dtype=torch.float32)) == message


def test_a_row_is_as_large_as_its_largest_finite_number() -> None:
    groups = [torch.tensor([[3.0, -50.0], [0.1, 0.2], [float("inf"), float("nan")]]), torch.tensor([[[1.0], [9.0]], [[-8.0], [2.0]], [[0.0], [4.0]]])]
    assert row_scale([*groups, torch.ones(2, 5), torch.arange(3)], 3).tolist() == [50.0, 8.0, 4.0]
    assert row_scale([], 2).tolist() == [1.0, 1.0]
    wanted = torch.tensor([1.0, 1.0, 1.0])
    assert not difference(wanted + torch.tensor([4e-5, 7e-6, 3e-6]), wanted, 1e-6, row_scale(groups, 3))
    assert "1 of 3 numbers differ; number 2" in difference(wanted + torch.tensor([0.0, 0.0, 5e-6]), wanted, 1e-6, row_scale(groups, 3))
