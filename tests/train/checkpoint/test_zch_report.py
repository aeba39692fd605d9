"""What `inspect --zch` tells of a checkpoint, against its tensors; and the picture of a run's log."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from emberline import cli
from emberline.errors import CheckpointError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.occupancy_chart import read_occupancy, write_occupancy_chart
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.checkpoint.zch_report import _histogram, zch_lines
from emberline.train.zch import FREE_ROW

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_report_is_what_the_tensors_say(finished_run: Path) -> None:
    tensors = {name.removeprefix("zch/user_emb/"): value for name, value in read_tensors(finished_run / "step-4" / "tensors", "zch/").items()}
    owned = tensors["raw_ids"] != FREE_ROW
    ids, counts, rows = (tensors[name][owned].tolist() for name in ("raw_ids", "counts", "rows"))
    lines = zch_lines(finished_run)
    assert lines[0] == f"{finished_run}/step-4: step 4"
    assert lines[2] == f"user_emb: {len(ids)} ids in 39 rows that can have one, occupancy {len(ids) / 39:.1%}"
    seen, admitted, evicted, dropped = tensors["counters"][0].tolist()
    assert lines[3].startswith(f"  ids seen {seen}, admitted {admitted}, evicted {evicted}, dropped {dropped};")
    bins = [re.fullmatch(r"  (\S+) to (\S+) +(\d+) +(#*)", line) for line in lines]
    found = {(float(one[1]), float(one[2])): int(one[3]) for one in bins if one}
    assert found == {(low, high): sum(low <= count < high for count in counts) for low, high in found}
    assert sum(found.values()) == len(ids)
    start = next(place for place, line in enumerate(lines) if line.startswith("  top ids"))
    best = sorted(range(len(ids)), key=lambda place: (-counts[place], ids[place]))[:10]
    assert [line.split() for line in lines[start + 1 :]] == [[str(ids[one]), str(counts[one]), str(rows[one]), str(counts[one])] for one in best]


def test_scores_below_zero_and_small_ones() -> None:
    lines = [line.split() for line in _histogram(torch.tensor([-1.0, -3.0, -3.5, -9.0], dtype=torch.float64))]
    assert [line[:4] for line in lines[1:]] == [["-1", "to", "-2", "1"], ["-2", "to", "-4", "2"], ["-4", "to", "-8", "0"], ["-8", "to", "-16", "1"]]
    assert [line.split()[:4] for line in _histogram(torch.tensor([0.3], dtype=torch.float64))][1:] == [["0.25", "to", "0.5", "1"]]


def test_a_picture_has_a_line_for_each_table(tmp_path: Path) -> None:
    lines = [{"kind": "train", "step": step, "loss": 1.0, "zch/a/occupancy": step / 10, "zch/b/occupancy": 0.0} for step in (2, 4, 10)]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"kind": "eval", "step": 10, "auc": 0.5}])
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "train", "step": 12, "zch/a/occ')  # the run was killed as it wrote
    assert read_occupancy(tmp_path) == {"a": [(2, 0.2), (4, 0.4), (10, 1.0)], "b": [(2, 0.0), (4, 0.0), (10, 0.0)]}
    write_occupancy_chart(tmp_path, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        pixels = image.convert("RGB")
        left, top = 54, 38
        assert pixels.getpixel((left + 900 * 7 // 10, top + 400 * 3 // 10)) == (150, 25, 15)
        assert pixels.getpixel((left + 450, top + 400)) == (20, 80, 160)


def test_the_command(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match=r"metrics.jsonl cannot be read: .*; give a run's folder"):
        write_occupancy_chart(tmp_path, tmp_path / "x.png")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1.0}\n')
    with pytest.raises(CheckpointError, match="has no occupancy of ZCH tables"):
        write_occupancy_chart(tmp_path, tmp_path / "x.png")
    assert cli.main(["inspect", str(store.find_checkpoint(finished_run)), "--zch"]) == 0
    assert "user_emb: " in capsys.readouterr().out
    assert cli.main(["inspect", str(finished_run), "--png", str(tmp_path / "x.png")]) != 0
    assert "--png goes with --zch" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
