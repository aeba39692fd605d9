"""Checkpoints as TorchEasyRec writes them."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from emberline.train.models import RecModel
from emberline.train.zch import zch_modules

State = dict[str, Tensor]
GROUP = "model.embedding_group"
BASE = f"{GROUP}.emb_impls.__BASE__"


def save_alone(folder: Path, state: Mapping[str, Any]) -> None:
    """One process's checkpoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict(state), checkpoint_id=folder, no_dist=True)


def save_on_two_ranks(folder: Path, state: State, layout: Mapping[str, Mapping[str, Any]]) -> None:
    """Two processes' checkpoint."""
    scratch = folder.with_name(f"{folder.name}-scratch")
    scratch.mkdir(parents=True)
    torch.save(state, scratch / "full.pt")
    (scratch / "layout.json").write_text(json.dumps(layout))
    script = Path(__file__).with_name("save_on_ranks.py")
    arguments = [str(scratch / "full.pt"), str(scratch / "layout.json"), "2", str(folder)]
    done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


HEAD_OF_DLRM = {
    "dense_mlp.layers.0": "dense_mlp.mlp.0.perceptron.0",
    "dense_mlp.layers.3": "dense_mlp.mlp.1.perceptron.0",
    "final_mlp.layers.0": "final_mlp.mlp.0.perceptron.0",
    "final_mlp.layers.1": "final_mlp.mlp.0.perceptron.1",
    "output": "output_mlp",
}
"""Our modules in the head of the standard config, and what TorchEasyRec's may be called."""


def state_of(model: RecModel) -> State:
    """An unsharded model's tensors by the reference's names; the head must be that of `HEAD_OF_DLRM`."""
    group, state = model.embedding_group, {}
    maps: dict[str, Any] = dict(zch_modules(group))
    for table, weight in group.table_weights().items():
        inner = f"mc_ebc._embedding_module.embedding_bags.{table}" if table in maps else f"ebc.embedding_bags.{table}"
        state[f"{BASE}.{inner}.weight"] = weight.detach().clone()
    for table, module in maps.items():
        path = f"{BASE}.mc_ebc._managed_collision_collection._managed_collision_modules.{table}"
        state |= {f"{path}.{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    for name, tensor in group.state_dict().items():
        if ".dense_ec." in name:
            parameter = name.split(".")[-1]
            state[f"{BASE}.dense_ec.dense_embs.some#settings.{parameter}.weight"] = tensor.clone()
    for name, tensor in model.head.state_dict().items():
        (path,) = (path for path in HEAD_OF_DLRM if name.startswith(f"{path}."))
        state[f"model.{HEAD_OF_DLRM[path]}{name.removeprefix(path)}"] = tensor.clone()
    return state


@pytest.fixture
def reference_state() -> Callable[[RecModel], State]:
    """`state_of`."""
    return state_of


@pytest.fixture
def on_two_ranks() -> Callable[[Path, State, Mapping[str, Mapping[str, Any]]], None]:
    """`save_on_two_ranks`."""
    return save_on_two_ranks


@pytest.fixture
def write_reference(tmp_path: Path) -> Callable[..., Path]:
    """Writes `reference/model.ckpt-STEP` and `reference/pipeline.config`; returns the first."""

    def write(state: Mapping[str, Any], config: str, step: int = 10, optimizer: Mapping[str, Any] | None = None) -> Path:
        folder = tmp_path / "reference" / f"model.ckpt-{step}"
        save_alone(folder / "model", state)
        if optimizer is not None:
            save_alone(folder / "optimizer", optimizer)
        (folder.parent / "pipeline.config").write_text(config)
        return folder

    return write
