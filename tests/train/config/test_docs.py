"""The page on optimisers: its example is a config, and its tables have every field with its default."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from emberline.train.config import parse_config
from emberline.train.config.protos import optimizer_pb2
from emberline.train.config.read import CLASSES
from emberline.train.config.refusals import lookup
from emberline.train.config.train_config import DenseEmaConfig, GradClippingConfig, GradScalerConfig


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "optimisers.md").read_text(encoding="utf-8")


def test_the_example_is_a_config(page: str) -> None:
    (example,) = re.findall(r"```\n(train_config .*?)```", page, flags=re.S)
    train = parse_config(example).need_train()
    assert train.dense_optimizer.part_optimizers[0].regex_pattern == r"head\..*\.bias"
    assert train.grad_scaler == GradScalerConfig(init_scale=1024)


COMMON = {"lr", "by_epoch", "warmup_size", "warmup_learning_rate"}
CLIPPING = {"gradient_clipping", "max_gradient"}


def messages() -> dict[str, type[Any]]:
    """Field of the oneofs -> the dataclass that it is read into."""
    found = {}
    for descriptor in (optimizer_pb2.SparseOptimizer.DESCRIPTOR, optimizer_pb2.DenseOptimizer.DESCRIPTOR):
        for oneof in descriptor.oneofs:
            for field in oneof.fields:
                if field.message_type is not None and lookup(descriptor.name, field.name) is None:
                    found[f"{descriptor.name}.{field.name}"] = CLASSES.get(f"{descriptor.name}.{field.name}") or CLASSES[field.message_type.name]
    return found


def test_its_tables_have_every_field(page: str, said: list[str]) -> None:
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    dense = next(place for place, row in enumerate(rows) if row.startswith("| `dense_optimizer`"))
    sparse, rest = rows[:dense], rows[dense:]
    assert "Each has `gradient_clipping` (false) and `max_gradient` (1) too." in page  # the tables' optimisers
    seen = 0
    for key, cls in messages().items():
        told = COMMON | CLIPPING if key.startswith("Sparse") else COMMON
        name = key.partition(".")[2]
        table = sparse if key.startswith("Sparse") and name.endswith("optimizer") else rest
        (row,) = [row for row in table if f"`{name}`" in row.split("|")[1]]
        for field in dataclasses.fields(cls):
            if field.name not in told:
                assert f"`{field.name}`" in row, (key, field.name)
                assert field.default is dataclasses.MISSING or f"`{field.name}` {shown(field.default)}" in row, (key, field.name)
                seen += 1
    for name, cls in {"grad_scaler": GradScalerConfig, "grad_clipping": GradClippingConfig, "ema": DenseEmaConfig}.items():
        (row,) = [row for row in rest if row.startswith(f"| `{name}`")]
        for field in dataclasses.fields(cls):
            assert f"`{field.name}` {'(required)' if field.default is dataclasses.MISSING else shown(field.default)}" in row, (name, field.name)
            seen += 1
    said.append(f"docs/optimisers.md: {seen} fields are there")
    assert seen > 40


def shown(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return str(value)
    assert isinstance(value, int | float)
    return f"{value:g}".replace("e-0", "e-")
