"""What a run tells, on a terminal, in a file, in JSON lines and TensorBoard events."""

import io
import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from emberline.train.job_log import MetricsLog, ProgressBar, Speed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    bar = ProgressBar("training", 10, 3, stream)
    bar.advance()
    assert stream.getvalue() == ""
    bar.tell(loss="0.5", rows_per_s="1,000")
    bar.note("saved")
    bar.close()
    assert stream.getvalue() == "training 4/10: loss 0.5, rows per s 1,000\nsaved\n"
    bar = ProgressBar("training", None, 0, stream)
    bar.tell(loss="1")
    assert stream.getvalue().endswith("training 0: loss 1\n")


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    bar = ProgressBar("training", 4, 2, stream)
    bar.advance()
    bar.tell(loss="0.5")
    bar.note("saved")
    bar.close()
    text = stream.getvalue()
    assert "3/4" in text
    assert "loss 0.5" in text
    assert "saved\n" in text


def test_speed_begins_anew_when_taken() -> None:
    speed = Speed()
    speed.add(1000)
    assert speed.take() > 0
    assert speed.take() == 0.0


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_after_the_step_of_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, None)
    for step in (5, 10, 15):
        log.write("train", step, {"loss": 1.0 / step})
    log.write("eval", 10, {"auc": float("nan")})
    path.write_text(path.read_text() + '{"kind": "train", "st')
    log = MetricsLog(path, None, 10)
    assert [(line["kind"], line["step"]) for line in lines(path)] == [("train", 5), ("train", 10), ("eval", 10)]
    assert lines(path)[-1]["auc"] is None
    assert (log.has("eval", 10), log.has("eval", 5), log.has("train", 15)) == (True, False, False)
    log.write("eval", 5, {})
    assert log.has("eval", 5)


def test_tensorboard_gets_what_is_not_hidden(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "events")
    assert not (tmp_path / "events").exists()
    log.write("train", 5, {"loss": 0.25, "learning_rate/sparse": 0.1, "zch/t/evicted": 3}, hidden=("learning_rate",))
    log.write("eval", 5, {"auc": 0.75})
    log.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["eval/auc", "train/loss", "train/zch/t/evicted"]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(5, 0.25)]
    assert lines(tmp_path / "metrics.jsonl")[0]["learning_rate/sparse"] == 0.1


def test_tensorboard_forgets_too(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "events")
    for step in (5, 10):
        log.write("train", step, {"loss": 1.0})
    log.close()
    log = MetricsLog(tmp_path / "metrics.jsonl", tmp_path / "events", 5)
    log.write("train", 10, {"loss": 2.0})
    log.close()
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(5, 1.0), (10, 2.0)]
