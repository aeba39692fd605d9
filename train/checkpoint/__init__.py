"""Checkpoints: `RUN/step-N/`, complete or not there at all.

`store` writes, finds, checks and prunes the directories; `tensors` puts named tensors on disk; `names` gives a model's tensors names that do
not depend on sharding; `run_state` is a whole run; `trained` reads a model back for export, `towers` a part of it.
"""

from emberline.train.checkpoint.towers import tower_of
from emberline.train.checkpoint.trained import Trained, load_trained

__all__ = ["Trained", "load_trained", "tower_of"]
