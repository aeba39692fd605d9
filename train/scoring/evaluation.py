"""The metrics of a trained model over data files."""

import json
from pathlib import Path

from emberline.errors import ConfigError
from emberline.train.checkpoint.store import write_text
from emberline.train.data.paths import Paths
from emberline.train.job_build import open_files
from emberline.train.job_eval import evaluate
from emberline.train.job_log import finite
from emberline.train.scoring.model import Scorer


def evaluate_files(scorer: Scorer, paths: Paths | None = None, *, num_steps: int | None = None, batch_size: int | None = None) -> dict[str, float]:
    """Measure a model. On several ranks all call it together.

    Args:
        scorer: the model.
        paths: files, folders, patterns, of the format that the config says; None: the config's evaluation data.
        num_steps: most batches on each rank; None: all.
        batch_size: rows that are looked at together; None: as the config says.

    Returns:
        the numbers by name, and `rows`, the same on all ranks; those of the evaluation during training, for the same files.

    Raises:
        ConfigError: there are no files to take.
        DataError: rows that cannot be read, or labels that make no sense.
    """
    config, ranks = scorer.config, scorer.ranks
    if paths is None and not config.eval_input_path:
        raise ConfigError("the checkpoint's config has no eval_input_path; name files with --input")
    reader = open_files(config, scorer.features, paths if paths is not None else config.eval_input_path, ranks, batch_size)
    numbers = evaluate(scorer.forward, scorer.model, reader, num_steps=num_steps, ranks=ranks)
    assert numbers is not None  # nothing asks it to stop
    return numbers


def write_metrics(path: Path, scorer: Scorer, numbers: dict[str, float]) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    content = {"checkpoint": str(scorer.path), "step": scorer.step, "metrics": finite(numbers)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
