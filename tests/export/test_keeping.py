"""Old versions: removed by policy, never one that is served by name, and taken again by a rollback."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from emberline.building import remove_stale_builds
from emberline.cli import main
from emberline.errors import ArtifactError, ExportError
from emberline.export.export import export_model
from emberline.export.keeping import remove_old_versions, roll_back
from emberline.serving import Engine
from emberline.serving.versions import list_versions, pinned_version, served_version
from tests.export.conftest import SmallRun
from tests.serving.conftest import make_toy


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for version in (1, 2, 3, 5):
        make_toy(name="m").write(tmp_path, version)
    return tmp_path


def names(models: Path) -> list[str]:
    return sorted(path.name for path in (models / "m").iterdir())


def test_the_oldest_go_and_the_named_and_the_published_stay(models: Path) -> None:
    assert remove_old_versions(models / "m", 3, 5) == [1]
    assert remove_old_versions(models / "m", 3, 5) == []
    assert roll_back(models, "m", 2) == 2
    assert remove_old_versions(models / "m", 1, 5) == [3]
    assert names(models) == ["2", "5", "served.json"]
    make_toy(name="m").write(models, 4)
    assert remove_old_versions(models / "m", 1, 4) == []
    assert names(models) == ["2", "4", "5", "served.json"]


def test_unfinished_folders_and_other_names_are_left_alone(models: Path) -> None:
    (models / "m" / "4" / "tables").mkdir(parents=True)
    (models / "m" / "notes").mkdir()
    assert remove_old_versions(models / "m", 1, 5) == [1, 2, 3]
    assert names(models) == ["4", "5", "notes"]


def test_who_has_it_open_goes_on(models: Path) -> None:
    toy = make_toy(name="m")
    engine = Engine.open(models / "m" / "1")
    golden = engine.artifact.golden()
    assert remove_old_versions(models / "m", 1, 5) == [1, 2, 3]
    for name, rows in toy.tables.items():
        assert engine.artifact.tables[name].equal(rows)
    assert engine.apply_new_deltas() == []
    assert golden["output.probs"].numel() > 0


def test_a_kill_between_hiding_and_deleting_leaves_nothing_visible(models: Path) -> None:
    script = (
        "import os, shutil, signal, sys; from pathlib import Path; from emberline.export import keeping\n"
        "shutil.rmtree = lambda path, **options: os.kill(os.getpid(), signal.SIGKILL)\n"
        "keeping.remove_old_versions(Path(sys.argv[1]), 2, 5)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(models / "m")], check=False)
    assert done.returncode == -9
    assert list_versions(models / "m") == [3, 5]
    hidden = sorted(path.name.rpartition("-")[0] for path in (models / "m").glob(".*"))
    assert hidden == [".removing-1", ".removing-2"]
    assert len(remove_stale_builds(models / "m")) == 2
    assert names(models) == ["3", "5"]


def test_many_at_once_remove_each_version_once(models: Path) -> None:
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(remove_old_versions(models / "m", 2, 5))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for versions in found for version in versions) == [1, 2]
    assert names(models) == ["3", "5"]


def test_a_rollback_goes_back_step_by_step_and_forward_again(models: Path) -> None:
    assert [roll_back(models, "m") for _ in range(3)] == [3, 2, 1]
    assert (served_version(models / "m"), Engine.open(models / "m").version) == (1, 1)
    with pytest.raises(ExportError, match="no version is before 1, which is served: there are 1, 2, 3, 5"):
        roll_back(models, "m")
    assert roll_back(models, "m", 5) == 5
    assert (pinned_version(models / "m"), served_version(models / "m")) == (None, 5)
    make_toy(name="m").write(models, 6)
    assert served_version(models / "m") == 6


def test_a_rollback_to_what_is_not_there_or_damaged_changes_nothing(models: Path) -> None:
    roll_back(models, "m", 3)
    with pytest.raises(ExportError, match="there is no version 4: there are 1, 2, 3, 5"):
        roll_back(models, "m", 4)
    with pytest.raises(ExportError, match="there are no versions to roll back to"):
        roll_back(models, "none")
    path = next((models / "m" / "2" / "tables").iterdir())
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match=f"{path.name} was changed"):
        roll_back(models, "m")
    assert served_version(models / "m") == 3


def test_a_named_version_that_went_is_replaced_by_a_rollback(models: Path) -> None:
    roll_back(models, "m", 3)
    shutil.rmtree(models / "m" / "3")
    with pytest.raises(ArtifactError, match="version 3 is served, which is not there"):
        served_version(models / "m")
    assert roll_back(models, "m") == 2
    assert served_version(models / "m") == 2
    (models / "m" / "served.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"served\.json should hold"):
        roll_back(models, "m")
    assert roll_back(models, "m", 1) == 1
    assert served_version(models / "m") == 1


def test_the_commands_keep_and_roll_back(small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, checkpoint = ["--output", str(tmp_path), "--name", "m"], ["--checkpoint", str(small_run.path)]
    for version in (1, 2):
        make_toy(name="m").write(tmp_path, version)
    assert main(["export", *place, "--rollback"]) == 0
    assert capsys.readouterr().out == "m: version 1 is served from now on; servers take it when they start\n"
    assert main(["export", *checkpoint, *place, "--version", "7", "--keep", "1"]) == 0
    told = capsys.readouterr().out.splitlines()[-3:]
    assert told[0] == f"published {tmp_path / 'm' / '7'}"
    assert told[1].startswith("version 1 is still the one that is served: `emberline export --rollback 7`")
    assert told[2] == "removed version 2"
    assert main(["inspect", str(tmp_path / "m")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("artifact m, version 1, ")
    assert "  versions there: 1, 7; 1 is served, as it was rolled back" in told
    assert main(["export", *place, "--rollback", "7"]) == 0
    assert (served_version(tmp_path / "m"), names(tmp_path)) == (7, ["1", "7"])


def test_a_candidate_is_published_and_the_present_version_served_on(small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", "--output", str(tmp_path), "--name", "m", "--checkpoint", str(small_run.path), "--candidate"]
    assert main(command) == 1
    assert "no version is served yet" in capsys.readouterr().err
    for version in (1, 2):
        make_toy(name="m").write(tmp_path, version)
    assert main([*command, "--version", "2"]) == 1
    assert names(tmp_path) == ["1", "2"]
    assert main([*command, "--version", "3"]) == 0
    assert (served_version(tmp_path / "m"), names(tmp_path)) == (2, ["1", "2", "3", "served.json"])
    assert "version 2 is still the one that is served" in capsys.readouterr().out
    for more in (["--delta-from", "1"], ["--triton", "x"]):
        assert main([*command, *more]) == 2
        assert "--candidate goes with" in capsys.readouterr().err
    assert main([*command[:2], "s3://bucket/models", *command[3:]]) == 2
    assert "--candidate needs a folder here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "--checkpoint is needed"),
        (["--rollback", "--checkpoint", "x", "--keep", "2", "--unknown", "zeros"], "leave out --checkpoint, --unknown, --keep"),
        (["--rollback", "3", "--full", "--memory", "1GiB", "--quantize", "int8"], "leave out --full, --quantize, --memory"),
        (["--checkpoint", "x", "--delta-from", "1", "--keep", "2"], "--keep and --triton go with the export of a whole version"),
    ],
)
def test_options_that_do_not_go_together_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str) -> None:
    assert main(["export", "--output", str(tmp_path), "--name", "m", *options]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--keep", "--rollback"])
@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, option: str, number: str) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--output", str(tmp_path), "--name", "m", option, number])
    with pytest.raises(ExportError, match="at least one version must be kept, not 0"):
        export_model(tmp_path, tmp_path, "m", keep=0)
