"""What one of several ranks does for the tests of checkpoints; started with torchrun's variables.

    rank_work.py FOLDER CONFIG

On R ranks: trains to FOLDER/run-R; takes up FOLDER/run-N of other and of as many ranks and saves it again as FOLDER/from-N-on-R; scores and measures
with those; begins with another's model as FOLDER/begun-R, and with vectors of a file as FOLDER/filled-R.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from emberline.train.checkpoint import store
from emberline.train.checkpoint.init_tables import VectorFile
from emberline.train.checkpoint.run_state import Progress, RunTensors, restore_run, save_run
from emberline.train.checkpoint.start import Beginning, prepare
from emberline.train.checkpoint.warm_start import WarmStart
from emberline.train.config import PipelineConfig, load_config
from emberline.train.job import run_training
from emberline.train.job_build import build_parts
from emberline.train.scoring.evaluation import evaluate_files
from emberline.train.scoring.model import open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.sharding import Ranks, process_group

SOURCES = (1, 2, 3)


def built(config: PipelineConfig, ranks: Ranks) -> RunTensors:
    parts = build_parts(config, None, ranks)
    return RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors(), ranks.group)


def work(folder: Path, config: PipelineConfig, ranks: Ranks) -> None:
    count = ranks.world_size
    run_training(config, folder / f"run-{count}")
    take_up(folder, config, ranks, [source for source in SOURCES if source <= count])
    begin(folder, config, ranks)


def take_up(folder: Path, config: PipelineConfig, ranks: Ranks, sources: Sequence[int]) -> None:
    count = ranks.world_size
    for source in sources:
        run = folder / f"run-{source}"
        tensors = built(config, ranks)
        progress, notes = restore_run(store.find_checkpoint(run), tensors)
        save_run(folder / f"from-{source}-on-{count}", tensors, config, progress)
        (folder / f"notes-{source}-on-{count}-{ranks.rank}.json").write_text(json.dumps(notes))
        with open_scorer(run, ranks) as scorer:
            write_outputs(scorer, config.eval_input_path, folder / f"scores-{source}-on-{count}", keep=("row",), batch_size=7)
            numbers = evaluate_files(scorer)
        if ranks.is_first:
            (folder / f"metrics-{source}-on-{count}.json").write_text(json.dumps(numbers))


def begin(folder: Path, config: PipelineConfig, ranks: Ranks) -> None:
    beginnings = {
        "begun": Beginning(WarmStart(checkpoint=folder / "run-1"), (VectorFile("item_emb", folder / "rows.parquet"),)),
        "filled": Beginning(vectors=(VectorFile("other_emb", folder / "ids.parquet"),)),
    }
    for name, beginning in beginnings.items():
        tensors = built(config, ranks)
        prepare(beginning, config).apply(tensors)
        save_run(folder / f"{name}-{ranks.world_size}", tensors, config, Progress(step=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with process_group() as group:
        work(Path(sys.argv[1]), load_config(sys.argv[2]), group)
