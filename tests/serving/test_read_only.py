"""Answering changes nothing: neither tables, nor maps, nor programs, nor what the same request is answered later."""

import hashlib
from pathlib import Path

import torch

from emberline.manifest import hash_tree
from emberline.serving import Engine, PackedRequest
from emberline.serving.remap import HashedRemap
from tests.serving.conftest import make_toy, random_request


def state_of(engine: Engine) -> str:
    """A digest of all that an engine answers from."""
    artifact, digest = engine.artifact, hashlib.sha256()
    for rows in artifact.tables.values():
        digest.update(rows.numpy().tobytes())
    for remap in artifact.remaps.values():
        assert isinstance(remap, HashedRemap)
        digest.update(remap.lines.numpy().tobytes())
    for parts in artifact.ids.values():
        for part in (parts.raw_ids, parts.rows, parts.fallback_starts, parts.fallback_rows):
            digest.update(part.numpy().tobytes())
    return digest.hexdigest()


def test_a_thousand_requests_change_nothing(tmp_path: Path) -> None:
    toy = make_toy()
    path = toy.write(tmp_path)
    engine = Engine.open(path, num_threads=1)
    requests = [PackedRequest(**random_request(toy.schema, num_rows=2, seed=seed, raw_ids=(100, -7, 200))) for seed in range(1000)]
    before, files = state_of(engine), hash_tree(path)
    first = {name: answer.clone() for name, answer in engine.predict(requests[0]).items()} | {"known": engine.known(requests[0])}
    with torch.no_grad():
        for request in requests[1:]:
            engine.predict(request)
    again = engine.predict(requests[0]) | {"known": engine.known(requests[0])}
    assert all(torch.equal(answer, again[name]) for name, answer in first.items())
    assert (state_of(engine), hash_tree(path)) == (before, files)
