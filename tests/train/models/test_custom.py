"""A user's own head: found, built, checked, trained, and read back."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import load_trained
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from emberline.train.models import build_model, features_of
from emberline.train.models.custom import import_head_class

MakeConfig = Callable[..., PipelineConfig]

HEADS = """
import torch
from torch import nn
from myheads.parts import scale


class Head(nn.Module):
    def __init__(self, embedding_group, width=4, names=("dense",), rate=0.0):
        super().__init__()
        self.names = list(names)
        self.hidden = nn.Linear(sum(embedding_group.group_total_dim(name) for name in self.names), width)
        self.dropout = nn.Dropout(rate)
        self.out = nn.Linear(width, 1)

    def forward(self, groups):
        joined = torch.cat([groups[name] for name in self.names], dim=1)
        return {"logits": scale * self.out(self.dropout(torch.relu(self.hidden(joined)))).squeeze(1)}


class Plain:
    pass


class Keeps(nn.Module):
    def __init__(self, embedding_group):
        super().__init__()
        self.group = embedding_group


class Raises(nn.Module):
    def __init__(self, embedding_group, width):
        raise ValueError(f"width {width} is bad")


class Returns(nn.Module):
    def __init__(self, embedding_group, what):
        super().__init__()
        self.what = what

    def forward(self, groups):
        rows = groups["dense"].shape[0]
        return {
            "tensor": torch.zeros(rows),
            "names": {"logit": torch.zeros(rows), "extra": torch.zeros(rows)},
            "shape": {"logits": torch.zeros(rows, 1)},
            "ints": {"logits": torch.zeros(rows, dtype=torch.int64)},
            "error": {"logits": groups["dense"] @ torch.zeros(99, 1)} if self.what == "error" else None,
        }[self.what]
"""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the config, with a package of heads."""
    folder = tmp_path / "myheads"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text("scale = 2.0\n")
    (folder / "heads.py").write_text(HEADS)
    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    (folder / "wrong.py").write_text("1 / 0\n")
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "myheads"]:
        del sys.modules[name]


def custom(class_path: str, kwargs: str = "") -> str:
    return f"custom_model {{ class_path: '{class_path}' {kwargs} }}"


WITH_KWARGS = """
kwargs { name: "width" int_value: 6 } kwargs { name: "names" string_values: ["dense", "sparse"] } kwargs { name: "rate" float_value: 0.25 }
"""


def test_it_trains_and_reads_back(make_config: MakeConfig, package: Path, tmp_path: Path) -> None:
    config = make_config(model=custom("myheads.heads.Head", WITH_KWARGS), train="num_steps: 3")
    before = list(sys.path)
    run_training(config, tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    assert sys.path == before
    head = trained.model.head
    assert type(head).__name__ == "Head"
    assert head.hidden.weight.shape == (6, 5 + 32)  # type: ignore[union-attr]
    assert head.dropout.p == 0.25  # type: ignore[union-attr]
    groups = {"dense": torch.randn(2, 5), "sparse": torch.randn(2, 32)}
    hidden = torch.relu(torch.cat(list(groups.values()), dim=1) @ head.hidden.weight.T + head.hidden.bias)  # type: ignore[union-attr, operator]
    expected = 2.0 * (hidden @ head.out.weight.T + head.out.bias)[:, 0]  # type: ignore[union-attr, operator]
    torch.testing.assert_close(head(groups)["logits"], expected)


def test_a_checkpoint_whose_class_is_gone_says_so(make_config: MakeConfig, package: Path, tmp_path: Path) -> None:
    config = make_config(model=custom("myheads.heads.Head"), train="num_steps: 1")
    run_training(config, tmp_path / "run")
    for name in [name for name in sys.modules if name.split(".")[0] == "myheads"]:
        del sys.modules[name]
    package.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"its model cannot be built: custom_model 'myheads\.heads\.Head': there is no module 'myheads'"):
        load_trained(tmp_path / "run")


@pytest.mark.parametrize(
    ("class_path", "kwargs", "message"),
    [
        ("nowhere.at.all.Head", "", "there is no module 'nowhere'; besides Python's own places, these were searched: "),
        ("myheads.other.Head", "", r"there is no module 'myheads\.other'"),
        ("myheads.broken.Head", "", "there is no module 'nothing_of_that_name'"),
        ("myheads.wrong.Head", "", r"importing myheads\.wrong raised ZeroDivisionError"),
        ("myheads.heads.Haed", "", r"has no Haed; its modules are: Head, Keeps, Raises, Returns"),
        ("myheads.heads.Plain", "", r"is no subclass of torch\.nn\.Module"),
        ("myheads.heads.Keeps", "", "keeps the embedding group, or a part of it, as a submodule"),
        (
            "myheads.heads.Raises",
            'kwargs { name: "width" int_value: 7 }',
            "and the kwargs width, raised ValueError: width 7 is bad",
        ),
        ("myheads.heads.Head", 'kwargs { name: "depth" int_value: 7 }', "the kwargs depth, raised TypeError: .*unexpected keyword argument 'depth'"),
        ("myheads.heads.Head", 'kwargs { name: "names" string_values: ["no"] }', "there is no feature group 'no'"),
        ("myheads.heads.Returns", 'kwargs { name: "what" string_value: "tensor" }', "must return {'logits': tensor}, found Tensor"),
        ("myheads.heads.Returns", 'kwargs { name: "what" string_value: "names" }', r"found a dict with \['extra', 'logit'\]"),
        ("myheads.heads.Returns", 'kwargs { name: "what" string_value: "shape" }', r"of shape \[B\]; for B = 3 found torch\.float32 \[3, 1\]"),
        ("myheads.heads.Returns", 'kwargs { name: "what" string_value: "ints" }', r"found torch\.int64 \[3\]"),
        (
            "myheads.heads.Returns",
            'kwargs { name: "what" string_value: "error" }',
            r"called with the groups dense \[3, 5\].*raised RuntimeError",
        ),
    ],
)
def test_what_cannot_be_used_is_explained(make_config: MakeConfig, package: Path, class_path: str, kwargs: str, message: str) -> None:
    config = make_config(model=custom(class_path, kwargs))
    with pytest.raises(ConfigError, match=message):
        build_model(config, features_of(config))


def test_python_s_own_places_go_first(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('shadowed')")
    assert import_head_class("torch.nn.Linear", [tmp_path]) is torch.nn.Linear
