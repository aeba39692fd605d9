"""The demo's order of work: data, baselines, training, export, two servers, the same rows asked of each."""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from emberline.encoding import columns_from_rows, encode, required_columns
from emberline.errors import EmberlineError, ExportError, ParityError
from emberline.export.answers import model_answers
from emberline.export.demo import baselines
from emberline.export.demo.movielens import LIKED, Split, find_files, load_split
from emberline.export.demo.steps import Say, Steps, table_lines
from emberline.export.export import export_model
from emberline.serving.client import Client
from emberline.serving.golden import GOLDEN_TOLERANCE
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.triton.install import find_triton
from emberline.serving.triton.launcher import TritonServer
from emberline.serving.triton.settings import TritonSettings
from emberline.train.checkpoint import Trained, load_trained
from emberline.train.metrics import Auc

MODEL = "movielens"
CONFIG = Path(__file__).with_name("movielens_deepfm.pbtxt")
_CONFIG_DATA = ".demo/data/"
_MARKER = ".emberline-demo"
_ASKED_ROWS = 200
_SHOWN_ROWS = 6
_THREADS = 1

Row = dict[str, object]
Answers = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class DemoPaths:
    """Where the demo keeps what: all below one folder."""

    root: Path

    @property
    def train_data(self) -> Path:
        """Training rows."""
        return self.root / "data" / "train.parquet"

    @property
    def test_data(self) -> Path:
        """Each user's newest rows."""
        return self.root / "data" / "test.parquet"

    @property
    def config(self) -> Path:
        """The example config with these paths in it."""
        return self.root / "config.pbtxt"

    @property
    def run(self) -> Path:
        """Checkpoints and TensorBoard events."""
        return self.root / "run"

    @property
    def models(self) -> Path:
        """Artifacts: what a server is given."""
        return self.root / "models"


def run(output: Path, say: Say) -> None:
    """Run it all; every process that it starts has ended when it returns or raises.

    Args:
        output: the folder for all files; what an earlier demo left there is replaced.
        say: prints one line.

    Raises:
        ParityError: an answer of a server differs from the trained model's.
        EmberlineError: a step failed; the message says why.
    """
    torch.set_num_threads(_THREADS)
    paths, steps = _prepare_folder(output), Steps(6, say)
    with steps.step("Data: MovieLens-100k, each user's newest 20 % as the test set"):
        find_triton()  # what is missing is better known now than after the training
        split = load_split(find_files())
        _write_data(split, paths)
        steps.note(f"{len(split.train):,} training and {len(split.test):,} test ratings; label 1 is {LIKED} stars or more")
    with steps.step("Baselines, from the training ratings alone"):
        aucs = _baseline_aucs(split, steps)
    with steps.step("Training"):
        steps.command(f"emberline train --config {paths.config} --output {paths.run}")
        _train(paths)
        trained = load_trained(paths.run)
        aucs["Emberline DeepFM"] = _auc(split, _test_scores(trained, split))
        for line in table_lines([("test AUC", "")], [(name, f"{auc:.4f}") for name, auc in aucs.items()]):
            steps.note(line)
    with steps.step("Export"):
        steps.command(f"emberline export --checkpoint {paths.run} --output {paths.models} --name {MODEL}")
        artifact = export_model(paths.run, paths.models, MODEL, progress=steps.note)
    with steps.step("Serving: Triton and the embedded server, each asked over HTTP and gRPC"):
        rows = _rows_to_ask(split, trained)
        answers = _ask_servers(paths.models, rows, steps)
    with steps.step("Comparison with the trained model"):
        wanted = _trained_answers(trained, rows)
        for line in _answer_lines(rows, wanted, answers):
            steps.note(line)
        largest = _largest_difference(wanted, answers)
        steps.note(f"{len(answers)} servers and the trained model agree on {len(rows)} rows:")
        steps.note(f"outputs and embeddings differ by at most {largest:.3g} (bound {GOLDEN_TOLERANCE:g})")
    _say_where(paths, artifact, steps, say)


def write_data(output: Path, say: Say) -> None:
    """Write the data and the config that the demo trains with, and no more.

    Args:
        output: the folder for these files; what an earlier demo left there is replaced.
        say: prints one line.

    Raises:
        EmberlineError: the data is not installed, or the folder is something else's.
    """
    split = load_split(find_files())
    paths = _prepare_folder(output)
    _write_data(split, paths)
    say(f"{len(split.train):,} ratings to train with, {len(split.test):,} newer ones to test with: {paths.train_data.parent}")
    say(f"config: {paths.config}")


def _prepare_folder(output: Path) -> DemoPaths:
    """An empty folder that is the demo's own; a folder of something else is never emptied."""
    marker = output / _MARKER
    if output.exists() and not marker.exists() and any(output.iterdir()):
        raise ExportError(f"{output} is not empty and was not made by the demo: give --output another folder")
    if output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True)
    marker.write_text("Made by `emberline demo`, which replaces this folder when it runs again.\n")
    return DemoPaths(output)


def _write_data(split: Split, paths: DemoPaths) -> None:
    paths.train_data.parent.mkdir()
    pq.write_table(split.train, paths.train_data)
    pq.write_table(split.test, paths.test_data)
    text = CONFIG.read_text()
    assert _CONFIG_DATA in text
    paths.config.write_text(text.replace(_CONFIG_DATA, f"{paths.train_data.parent.resolve().as_posix()}/"))


def _baseline_aucs(split: Split, steps: Steps) -> dict[str, float]:
    """Test AUC of each baseline by name."""
    scores = {
        "item mean": baselines.score_by_mean(split, "item_id"),
        "user mean": baselines.score_by_mean(split, "user_id"),
        "smoothed item + user logits": baselines.score_by_smoothed_logits(split),
    }
    steps.note("a plain PyTorch model trains for a few seconds ...")
    scores["plain PyTorch model"] = baselines.score_by_plain_model(split)
    return {name: _auc(split, score) for name, score in scores.items()}


def _auc(split: Split, scores: baselines.Floats | npt.NDArray[np.float32]) -> float:
    metric = Auc()
    metric.update(scores.astype(np.float32), split.test["label"].to_numpy())
    return metric.compute()


def _train(paths: DemoPaths) -> None:
    """Train as a user does, in a process of its own; it is ended where we are.

    It gets one thread: the batches are small, and threads that wait for each other make a busy machine many times slower.
    """
    main = f"import sys, torch; torch.set_num_threads({_THREADS}); from emberline.cli import main; sys.exit(main())"
    with subprocess.Popen([sys.executable, "-c", main, "train", "--config", str(paths.config), "--output", str(paths.run)]) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise EmberlineError(f"training ended with exit status {code}: its last lines are above")


def _test_scores(trained: Trained, split: Split) -> npt.NDArray[np.float32]:
    """The trained model's logit for each test row."""
    names = list(required_columns(trained.model.schema().features))
    parts = []
    for batch in split.test.select(names).to_batches(4096):
        parts.append(_trained_answers(trained, batch.to_pylist())["logits"])
    return np.concatenate(parts)


def _rows_to_ask(split: Split, trained: Trained) -> list[Row]:
    """Raw rows as a client sends them: test rows, then a user and a movie that training never saw, and a row with nothing known."""
    names = list(required_columns(trained.model.schema().features))
    places = pa.array(np.linspace(0, len(split.test) - 1, _ASKED_ROWS).astype(np.int64))
    rows: list[Row] = split.test.select(names).take(places).to_pylist()
    rows[1] = {**rows[1], "user_id": 2**63 - 1}
    rows[2] = {**rows[2], "item_id": -1, "genres": None}
    rows[3] = {}
    return rows


def _trained_answers(trained: Trained, rows: list[Row]) -> Answers:
    """The trained model's outputs, and group tensors under `lookup.<group>`."""
    schema = trained.model.schema()
    outputs, groups = model_answers(trained.model, schema, encode(schema.features, *columns_from_rows(schema.features, rows)))
    return {name: answer.numpy() for name, answer in outputs.items()} | {f"lookup.{name}": answer.numpy() for name, answer in groups.items()}


def _ask_servers(models: Path, rows: list[Row], steps: Steps) -> dict[str, Answers]:
    """The four servers' answers by name; both servers have stopped afterwards."""
    answers = {}
    with ExitStack() as stack:
        triton = stack.enter_context(TritonServer(models, settings=TritonSettings(num_threads=_THREADS)))
        steps.note(f"Triton is ready:   http {triton.host}:{triton.http_port}, grpc {triton.host}:{triton.grpc_port}")
        embedded = stack.enter_context(EmbeddedServer(models, settings=ServerSettings(num_threads=_THREADS)))
        steps.note(f"embedded is ready: {embedded.http_url}, {embedded.grpc_url}")
        urls = {
            "Triton HTTP": f"http://{triton.host}:{triton.http_port}",
            "Triton gRPC": f"grpc://{triton.host}:{triton.grpc_port}",
            "embedded HTTP": embedded.http_url,
            "embedded gRPC": embedded.grpc_url,
        }
        for name, url in urls.items():
            with Client(url, MODEL) as client:
                predicted, looked_up = client.predict(rows), client.lookup(rows)
            answers[name] = predicted | {f"lookup.{group}": tensor for group, tensor in looked_up.items()}
            steps.note(f"{name}: {len(rows)} rows answered")
    steps.note("both servers have stopped")
    return answers


def _answer_lines(rows: list[Row], wanted: Answers, answers: dict[str, Answers]) -> list[str]:
    """The probabilities of the first rows, one column for each source; a source's name is on two lines."""
    names = [name.split(" ") for name in answers]
    headings = [["", "trained", *(first for first, _ in names)], ["user / movie", "model", *(second for _, second in names)]]
    sources = [wanted, *answers.values()]
    lines = []
    for place, row in enumerate(rows[:_SHOWN_ROWS]):
        key = f"{_short(row.get('user_id'))} / {_short(row.get('item_id'))}"
        lines.append((key, *(f"{source['probs'][place]:.7f}" for source in sources)))
    return table_lines(headings, lines)


def _short(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 7 else f"{text[:3]}..{text[-2:]}"


def _largest_difference(wanted: Answers, answers: dict[str, Answers]) -> float:
    """The largest absolute difference of all answers.

    Raises:
        ParityError: one is over the bound, or of another shape.
    """
    largest = 0.0
    for source, found in answers.items():
        for name, values in wanted.items():
            if found[name].shape != values.shape:
                raise ParityError(f"{source}: {name} has shape {found[name].shape}, the trained model's {values.shape}")
            difference = float(np.abs(found[name] - values).max())
            if not difference <= GOLDEN_TOLERANCE:
                raise ParityError(f"{source}: {name} differs from the trained model's by {difference:.3g}, over the bound of {GOLDEN_TOLERANCE:g}")
            largest = max(largest, difference)
    return largest


def _say_where(paths: DemoPaths, artifact: Path, steps: Steps, say: Say) -> None:
    say(f"\nAll of it took {steps.total_s:.0f} s. The files (this folder is replaced by the next demo):")
    for what, path in (
        ("data", paths.train_data.parent),
        ("config", paths.config),
        ("checkpoints, TensorBoard", paths.run),
        ("artifact", artifact),
    ):
        say(f"  {what:<25} {path}")
    say("Try it:")
    say(f"  emberline inspect {artifact}")
    say(f"  emberline serve {paths.models} --backend embedded")
    say("  and open http://127.0.0.1:8000/docs")
