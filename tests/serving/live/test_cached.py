"""What becomes of old versions in the cache of a server that serves from a URL."""

from pathlib import Path

import pytest

from emberline.serving import Engine
from emberline.serving.fetch import fetch
from emberline.serving.live.cached import remove_old
from tests.serving.conftest import make_toy


@pytest.fixture
def url(tmp_path: Path) -> str:
    for version in range(1, 6):
        make_toy(seed=version).write(tmp_path / "models", version)
    make_toy(seed=9, name="other").write(tmp_path / "models", 1)
    return f"local://{tmp_path / 'models'}"


def kept(cache: Path) -> list[int]:
    return sorted(int(path.name) for path in cache.glob("*/*"))


def test_the_one_that_is_used_and_the_newest_other_stay(url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    roots = {version: fetch(f"{url}/toy/{version}", cache).root for version in range(1, 6)}
    other = fetch(f"{url}/other", cache).root
    (cache / ".building-x").mkdir()
    assert set(remove_old(cache, "toy", [roots[2]])) == {roots[1], roots[3], roots[4]}
    assert kept(cache) == [1, 2, 5]
    assert other.is_dir()
    assert remove_old(cache, "toy", [roots[2]]) == []
    assert Engine.open(f"{url}/toy/2", cache=cache).artifact.root == roots[2]
    assert set(remove_old(cache, "toy", [roots[2], roots[5]])) == set()
    assert remove_old(tmp_path / "none", "toy", []) == []
    assert sorted(path.name for path in cache.iterdir() if not path.name.startswith(".")) == sorted(
        path.parent.name for path in (roots[2], roots[5], other)
    )


def test_what_is_open_stays(url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    roots = {version: fetch(f"{url}/toy/{version}", cache).root for version in (1, 2, 3, 4)}
    engine = Engine.open(f"{url}/toy/1", cache=cache)
    assert remove_old(cache, "toy", [roots[4]]) == [roots[2]]
    assert (engine.version, kept(cache)) == (1, [1, 3, 4])
    del engine
    assert remove_old(cache, "toy", [roots[4]]) == [roots[1]]


def test_what_went_is_copied_again(url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    roots = {version: fetch(f"{url}/toy/{version}", cache).root for version in (1, 2, 3)}
    assert remove_old(cache, "toy", [roots[3]]) == [roots[1]]
    assert Engine.open(f"{url}/toy/1", cache=cache).artifact.root == roots[1]
