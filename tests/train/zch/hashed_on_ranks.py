"""What one of several ranks does for `test_hashed_ranks`; started with torchrun's variables.

    hashed_on_ranks.py train FOLDER         on R ranks: four steps, saved as FOLDER/run-R
    hashed_on_ranks.py take-up FOLDER       on R ranks: takes up FOLDER/run-N of some N, and saves FOLDER/from-N-on-R with two steps more

Four tables of maps by hashes: two whose ids lose their rows, one without room for all, and one with. An hour passes each step. What a row learns in a
step depends on the batch alone.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from emberline.train.checkpoint import store
from emberline.train.checkpoint.run_state import Progress, RunTensors, restore_run, save_run
from emberline.train.config import parse_config
from emberline.train.job_build import Parts, build_parts
from emberline.train.sharding import Ranks, process_group
from emberline.train.zch import HashedZchModule, zch_modules

sys.path.insert(0, str(Path(__file__).parent))

from grid_on_ranks import INITIAL, ROWS, STEPS, config_text, learn  # type: ignore[import-not-found]

SETTINGS = {
    "ttl": "zch_size: 61 ttl { hours: 1 } max_probe: 3",
    "lru": 'zch_size: 48 lru {} routing: "range"',
    "full": "zch_size: 50 max_probe: 8",
    "large": "zch_size: 30001 buckets: 24 ttl { hours: 100 }",
}
TABLES = tuple(SETTINGS)
LARGE = "large"
FEATURES = "\n".join(
    f'feature_configs {{ id_feature {{ feature_name: "{table}" embedding_name: "{table}" expression: "user:{table}" embedding_dim: 4 '
    f'init_fn: "nn.init.constant_,val={INITIAL}" zch {{ kind: "mpzch" {settings} }} }} }}'
    for table, settings in SETTINGS.items()
)
FIRST_HOUR = 495_000
SOURCES = (1, 4)
"""Numbers of ranks whose checkpoints are taken up; what all of them write is compared."""


def bags_of(step: int, table: str) -> list[list[int]]:
    """The ids of each row of a step: small, negative and far ones, -1 and 2^63-1 among them."""
    generator = np.random.default_rng((step, TABLES.index(table)))
    places = generator.zipf(1.2, (ROWS, 3)) % (500 if table == LARGE else 90)
    ids = np.where(places % 3 == 0, places, np.where(places % 3 == 1, -places, places * 2**53 + 7))
    ids[places == 5] = 2**63 - 1
    return [row[: 1 + place % 3].tolist() for place, row in enumerate(ids)]


def set_hour(parts: Parts, step: int) -> None:
    """Hours are those of the steps."""
    for module in zch_modules(parts.model).values():
        assert isinstance(module, HashedZchModule)
        module.clock = lambda: FIRST_HOUR + step


def main(what: str, folder: Path, ranks: Ranks) -> None:
    """Train, or take up what others trained."""
    config, count = parse_config(config_text(FEATURES, TABLES), folder=folder), ranks.world_size
    for source in SOURCES if what == "take-up" else (0,):
        parts = build_parts(config, None, ranks)
        tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors(), ranks.group)
        first, target = 0, folder / f"run-{count}"
        if source:
            _, notes = restore_run(store.find_checkpoint(folder / f"run-{source}"), tensors)
            first, target = STEPS, folder / f"from-{source}-on-{count}"
            save_run(target, tensors, config, Progress(step=STEPS))
            (target / f"notes-{ranks.rank}.json").write_text(json.dumps(notes))
        for step in range(first, STEPS + (2 if source else 0)):
            set_hour(parts, step)
            learn(parts, step, ranks, TABLES, bags_of)
        save_run(target, tensors, config, Progress(step=step + 1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[2])
    with process_group() as group:
        main(sys.argv[1], Path(sys.argv[2]), group)
