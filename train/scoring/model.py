"""A model out of a checkpoint, on as many ranks as there are."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from emberline.train.checkpoint import load_trained, store
from emberline.train.checkpoint.configs import read_checkpoint_config
from emberline.train.checkpoint.ranks import from_first_rank
from emberline.train.checkpoint.run_state import RunTensors, read_progress, restore_run
from emberline.train.config import PipelineConfig
from emberline.train.data import Batch
from emberline.train.features import Feature
from emberline.train.job_build import build_parts
from emberline.train.job_folder import plan_of_checkpoint
from emberline.train.models import RecModel
from emberline.train.sharding.process_group import Ranks


@dataclass(frozen=True)
class Scorer:
    """A model in eval mode.

    Args:
        config: as it was when training began.
        features: made from it.
        model: its tables may lie on several ranks.
        forward: what to call with a batch; on several ranks all call it together.
        step: batches trained.
        path: the checkpoint's directory.
        ranks: all of them.
        notes: what of the checkpoint could not be kept on these ranks.
    """

    config: PipelineConfig
    features: tuple[Feature, ...]
    model: RecModel
    forward: nn.Module
    step: int
    path: Path
    ranks: Ranks
    notes: tuple[str, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether ranks must call `answers` together."""
        return self.ranks.world_size > 1

    def answers(self, batch: Batch) -> Mapping[str, Tensor]:
        """The outputs by name, float32 on the CPU, for this rank's rows."""
        with torch.no_grad():
            outputs = self.forward(self.model.embedding_group.on_device(batch, self.ranks.device))
        return {name: output.float().cpu() for name, output in outputs.items()}


@contextmanager
def open_scorer(checkpoint: Path, ranks: Ranks, plan: Path | None = None) -> Iterator[Scorer]:
    """Read a model; moving averages stand in place of dense parameters where the config has them used.

    One rank reads the model whole: ids that a ZCH table does not know then read the row that they read in training, on however many ranks that was.
    Several ranks share the tables, as in training.

    Args:
        checkpoint: a step-N folder, or a run's: its newest step.
        ranks: of the process group.
        plan: the file of the plan to shard by; None: the checkpoint's own, where it is for as many ranks, else whatever fits: pins and
            other wishes of the config are for training, and neither its data nor bandwidths are looked at.

    Raises:
        CheckpointError: there is none, it is damaged, or it does not fit the model that its config describes.
    """
    if ranks.world_size == 1 and ranks.device.type == "cpu":
        trained = load_trained(checkpoint)
        yield Scorer(trained.config, trained.features, trained.model, trained.model, trained.step, trained.path, ranks)
        return
    path = store.find_checkpoint(checkpoint)
    from_first_rank(lambda: store.verify_checkpoint(path), ranks.group)
    progress, config = read_progress(path), read_checkpoint_config(path)
    config = replace(config, source=str(Path(progress.config_folder) / store.CONFIG_NAME))  # a user's own module is looked for beside it
    parts = build_parts(config, plan or plan_of_checkpoint(path, config, ranks), ranks, bound=False)
    _, notes = restore_run(path, RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors(), ranks.group))
    parts.sharded.eval()
    with parts.step.averaged(config.uses_dense_ema):
        yield Scorer(config, parts.features, parts.model, parts.sharded, progress.step, path, ranks, tuple(notes))
