"""What the reference recorded, as a checkpoint of its own: imported, it answers as recorded."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from emberline.train.checkpoint import load_trained
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.interop.import_checkpoint import import_torcheasyrec
from emberline.train.interop.selection import Wishes

CASES = ["enc_din", "raw_dense_embedding", "seq_basic", "two_data_groups", "wide_and_deep", "zch_lfu", "zch_lru"]
TRAIN = """train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
}
"""
CUSTOM = 'custom_model { class_path: "first_group_head.FirstGroupHead" }'
DSSM = """dssm {
  user_tower { input: "user" mlp { hidden_units: 4 } } item_tower { input: "item" mlp { hidden_units: 4 } } output_dim: 4
} losses { softmax_cross_entropy {} } metrics { recall_at_k { top_k: 1 } }"""
MODELS = {"two_data_groups": DSSM}
HEAD = """
import torch

class FirstGroupHead(torch.nn.Module):
    def __init__(self, embedding_group):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, groups):
        return {"logits": self.scale * next(iter(groups.values())).float().flatten(1).sum(1)}
"""


def config_of(folder: Path, neg_fields: list[str]) -> str:
    case = folder.name
    features, _, groups = (folder / "config.pbtxt").read_text().partition("model_config {")
    pairs = " ".join(f"columns {{ key: '{name}' value: '{name}s' }}" for name in neg_fields)
    data = f"data_config {{ label_fields: 'label' {f'negative_columns {{ {pairs} num_negatives: 1 }}' if pairs else ''} }}\n"
    return f"{data}{TRAIN}{features}model_config {{ {MODELS.get(case, CUSTOM)} {groups}"


@pytest.fixture(scope="session")
def replay(repository: Path) -> ModuleType:
    """The tests that replay the records, for how they read them."""
    spec = importlib.util.spec_from_file_location("recorded_groups", repository / "tests" / "golden" / "test_embedding_groups.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES)
def test_outputs(case: str, golden_root: Path, replay: ModuleType, write_reference: Callable[..., Path], tmp_path: Path) -> None:
    folder = golden_root / case
    meta = json.loads((folder / "meta.json").read_text())
    recorded = replay.Recorded(folder, meta, None)
    # A recorded id map learns from batches before the vectors do: what was recorded after its last batch answers those in eval mode.
    weights = "weights_after" if (folder / "weights_after.npz").is_file() else "weights"
    batches = [batch for batch in meta["batches"] if weights == "weights" or batch["mode"] == "eval"]
    state = {f"model.embedding_group.{name}": torch.from_numpy(value) for name, value in recorded.arrays(weights).items()}
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "first_group_head.py").write_text(HEAD)
    checkpoint = write_reference(state, config_of(folder, meta["neg_fields"] or []))
    path = import_torcheasyrec(checkpoint, tmp_path / "run", wishes=Wishes(embeddings_only=True))
    group = load_trained(path).model.embedding_group
    expected = recorded.arrays("outputs")
    compared = 0
    for batch in batches:
        found = group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
        assert sorted(found) == sorted(batch["output_keys"])
        for key, tensor in found.items():
            assert np.abs(tensor.detach().numpy() - expected[f"{batch['name']}/{key}"]).max(initial=0) <= 1e-5, key
            compared += 1
    assert compared >= len(batches) > 0


@pytest.mark.parametrize("optimizer", ["fused_adagrad", "fused_rowwise_adagrad"])
def test_weights_and_moments_of_a_trained_model(optimizer: str, golden_root: Path, write_reference: Callable[..., Path], tmp_path: Path) -> None:
    folder = golden_root.parent / "fused" / optimizer
    with np.load(folder / "steps.npz") as file:
        steps: dict[str, Any] = {name.removeprefix("s3/"): torch.from_numpy(file[name]) for name in file if name.startswith("s3/")}
    weights = {name.removeprefix("weight/"): value for name, value in steps.items() if name.startswith("weight/")}
    moments = {name.removeprefix("state/").replace("/", "."): value for name, value in steps.items() if name.startswith("state/")}
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "first_group_head.py").write_text(HEAD)
    config = config_of(folder, []).replace(TRAIN, f"train_config {{ {(folder / 'train_config.pbtxt').read_text()} }}\n")
    prefix = "model.embedding_group"
    checkpoint = write_reference(
        {f"{prefix}.{name}": value for name, value in weights.items()},
        config,
        optimizer={f"state.{prefix}.{name}": value for name, value in moments.items()},
    )
    saved = read_tensors(import_torcheasyrec(checkpoint, tmp_path / "run", wishes=Wishes(embeddings_only=True)) / "tensors", "tables/")
    assert len(weights) == len(moments) == 6
    for name, value in weights.items():
        assert torch.equal(saved[f"tables/{name.split('.')[-2]}/weight"], value)
    for name, value in moments.items():
        assert torch.equal(saved[f"tables/{name.split('.')[-2]}/sum"].reshape(value.shape), value)
