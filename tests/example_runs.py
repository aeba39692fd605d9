"""Every example, trained on two ranks and exported: made once for all tests of a run that need it, whichever process runs them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from emberline.export.export import export_model
from emberline.train.models import features_of
from tests.test_examples import EXAMPLES, small_copy, write_items, write_rows
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

RANKS = 2
NAMES = [path.stem for path in EXAMPLES]
_ANSWER = str(Path(__file__).parent / "export" / "matrix_ranks.py")


def _shared(factory: pytest.TempPathFactory, worker: str) -> Path:
    """A folder that all workers of a run have in common."""
    own = factory.getbasetemp()
    return (own.parent if worker != "master" else own) / "examples"


def trained_examples(factory: pytest.TempPathFactory, worker: str) -> Mapping[str, Path]:
    """The run of each, by its name, with the answers of both ranks (`matrix_ranks.py`); the rows that it read lie beside it."""
    folder = _shared(factory, worker)
    found = {name: folder / name / "run" for name in NAMES}
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            draft = folder.with_name("examples-draft")
            draft.mkdir()
            _train(draft)
            draft.rename(folder)
    return found


def exported_examples(factory: pytest.TempPathFactory, worker: str) -> Path:
    """A folder of the artifacts of all of them, with tables of fp32, under their names."""
    runs = trained_examples(factory, worker)
    folder = _shared(factory, worker).with_name("example-models")
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            draft = folder.with_name("example-models-draft")
            for name, run in runs.items():
                export_model(run, draft, name)
            draft.rename(folder)
    return folder


def _train(folder: Path) -> None:
    jobs, runs = [], []
    for path in EXAMPLES:
        own = folder / path.stem
        own.mkdir()
        config = small_copy(path, own)
        features = features_of(config)
        for seed, name in enumerate(("train", "eval")):
            write_rows(config, features, own / f"{name}.parquet", seed)
        write_items(config, features, own / "items.parquet")
        runs.append(str(own / "run"))
        jobs.append(Job(RANKS, ("train", "--config", str(own / path.name), "--output", runs[-1])))
    run_forked(folder, [*jobs, Job(RANKS, (_ANSWER, *runs))])
