"""What callers are told of a version that is refused: why, and no place on the server's machine."""

from pathlib import Path

import pytest

from emberline.errors import ArtifactError, ConfigError
from emberline.serving.live.reasons import UNTOLD, reason_of, refusal_of
from emberline.storage import Place

CACHE = Path("/var/cache/artifacts")


@pytest.mark.parametrize(
    ("text", "place", "models_dir", "want"),
    [
        (
            "/srv/m/toy/3: the artifact is damaged: tables/a.safetensors is missing",
            "/srv/m/toy/3",
            "/srv/m",
            "the artifact is damaged: tables/a.safetensors is missing",
        ),
        ("m/toy/3: it is 1/2 of what m was from them", "m/toy/3", "m", "it is 1/2 of what m was from them"),
        ("m/toy: there are none", "m/toy/3", "m", "toy: there are none"),
        ("made for another than /srv/m/toy/3", "/srv/m/toy/3", "/srv/m", "made for another than "),
        ("made for another than /srv/m/toy/30", "/srv/m/toy/3", "/srv/m", "made for another than toy/30"),
        ("it is in /srv/m2/toy", "/srv/m/toy/3", "/srv/m", UNTOLD),
        ("/srv/m/toy/3/programs/o.ts cannot be read", "/srv/m/toy/3", "/srv/m", "programs/o.ts cannot be read"),
        ("/srv/m/toy: served.json says no", "/srv/m", "/srv/m", "toy: served.json says no"),
        ("s3://b/m/toy/3: golden is missing", "s3://b/m/toy/3", "s3://b/m", "golden is missing"),
        (f"{CACHE}/{'0a' * 16}/3: tables/a was changed", "s3://b/m/toy/3", "s3://b/m", "tables/a was changed"),
        ("no room on /dev/shm", "/srv/m/toy/3", "/srv/m", UNTOLD),
        ("file ~/x", "/srv/m/toy/3", "/srv/m", UNTOLD),
        ("see ../../etc", "/srv/m/toy/3", "/srv/m", UNTOLD),
        ("it came from https://user:word@host/x", "/srv/m/toy/3", "/srv/m", UNTOLD),
        ("first\nTraceback: /usr/lib", "/srv/m/toy/3", "/srv/m", "first"),
        ("", "/srv/m/toy/3", "/srv/m", "ArtifactError"),
        ("x" * 400, "/srv/m/toy/3", "/srv/m", "x" * 300 + "..."),
    ],
)
def test_folders_are_left_out_and_what_may_be_another_is_not_told(text: str, place: Place, models_dir: Place, want: str) -> None:
    assert reason_of(ArtifactError(text), place, models_dir, CACHE) == want


def test_faults_are_not_told() -> None:
    assert reason_of(RuntimeError("secret"), "m/toy/3", "m", None) == UNTOLD
    assert refusal_of(ConfigError("no such lookup"), Path("m/toy/3"), Path("m"), None) == "version 3 is refused: no such lookup"
    assert refusal_of(RuntimeError("secret"), Path("m"), Path("m"), None) == f"what is to be served is refused: {UNTOLD}"
