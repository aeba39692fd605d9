"""Where things are in a folder that TorchEasyRec trained into.

MODEL_DIR/pipeline.config                  the config
MODEL_DIR/model.ckpt-STEP/model/           the model's tensors, in PyTorch's distributed checkpoint format
MODEL_DIR/model.ckpt-STEP/optimizer/       the optimisers' tensors, likewise
MODEL_DIR/model.ckpt-STEP/...              averaged weights (dense_ema/), dynamic tables (dynamicemb/), plan, place in the data
"""

import re
from dataclasses import dataclass
from pathlib import Path

from emberline.errors import CheckpointError

CONFIG_NAME = "pipeline.config"
_MODEL, _OPTIMIZER, _DYNAMIC = "model", "optimizer", "dynamicemb"
_CHECKPOINT = re.compile(r"model\.ckpt-(0|[1-9][0-9]*)")
_LEFT_OUT = {"dense_ema": "the averaged weights (dense_ema)", "dataloader_state.json": "the place in the data"}


@dataclass(frozen=True)
class TorchEasyRecCheckpoint:
    """One checkpoint.

    Args:
        path: its folder.
        step: batches trained.
        model: folder of the model's tensors.
        optimizer: folder of the optimisers' tensors, or None.
        config: the config that lies with it, or None.
        left_out: what else it has, which is not taken over.
    """

    path: Path
    step: int
    model: Path
    optimizer: Path | None
    config: Path | None
    left_out: tuple[str, ...]

    @property
    def dynamic(self) -> Path:
        """Where the dynamic tables are, if there are any."""
        return self.path / _DYNAMIC


def find_torcheasyrec_checkpoint(path: Path, step: int | None = None) -> TorchEasyRecCheckpoint:
    """Look a checkpoint over, without reading any tensor.

    Args:
        path: a `model.ckpt-STEP` folder under any name, or the folder that holds such: its newest is taken.
        step: how many batches were trained, where the folder's name does not say so; of a folder that holds several, which one.

    Raises:
        CheckpointError: there is none, or its step cannot be told.
    """
    folder = path if (path / _MODEL).is_dir() else _newest(path, step)
    found = _CHECKPOINT.fullmatch(folder.resolve().name)
    if step is None and found is None:
        raise CheckpointError(f"{folder}: the folder's name does not say how many steps were trained, as model.ckpt-1000 would; add --step")
    if step is not None and found is not None and int(found[1]) != step:
        raise CheckpointError(f"{folder} is of step {found[1]}, not {step}; leave --step out")
    places = [folder / CONFIG_NAME, folder.resolve().parent / CONFIG_NAME]
    return TorchEasyRecCheckpoint(
        path=folder,
        step=int(found[1]) if found is not None else step or 0,
        model=folder / _MODEL,
        optimizer=folder / _OPTIMIZER if (folder / _OPTIMIZER).is_dir() else None,
        config=next((place for place in places if place.is_file()), None),
        left_out=tuple(text for name, text in _LEFT_OUT.items() if (folder / name).exists()),
    )


def _newest(path: Path, step: int | None) -> Path:
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such directory; give a model.ckpt-STEP folder")
    found = {int(match[1]): child for child in path.iterdir() if (match := _CHECKPOINT.fullmatch(child.name)) and (child / _MODEL).is_dir()}
    if not found:
        raise CheckpointError(f"{path}: no TorchEasyRec checkpoint: it has neither a folder model/ nor folders model.ckpt-STEP with one")
    if step is not None and step not in found:
        raise CheckpointError(f"{path}: no checkpoint of step {step}; there are {', '.join(map(str, sorted(found)))}")
    return found[max(found) if step is None else step]
