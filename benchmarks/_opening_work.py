"""A worker of `opening.py`: a process that opens artifacts when it is told to, and tells what that took; and the delta that it is told to add.

It reads a JSON object a line, and answers with one: `{"open": path, "tables": memory, "verify": bool}` and `{"delta": path}` with seconds, and
`{"memory": true}` with bytes that only this process has in memory.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from benchmarks._serving_model import FEATURES, Data
from emberline.delta_manifest import DeltaManifest, TableChange
from emberline.manifest import hash_tree, manifest_digest, read_manifest, write_manifest
from emberline.serving import Engine
from emberline.serving.files import write_tensors
from emberline.serving.warm_up import answer_sizes, usual_sizes

MOST_ROWS = 4096
CHANGED = 1.0
"""Every number of a row that the delta changes."""


def write_delta(root: Path, share: float) -> Path:
    """A delta of the artifact in `root` that changes a share of the rows of each table; its folder, apart from the artifact's."""
    data, source = Data(root), np.random.default_rng(0)
    folder, file = root.parent.parent / "delta", "changes.safetensors"
    folder.mkdir()
    places = {name: np.sort(source.choice(len(data.tables[name]), int(len(data.tables[name]) * share), replace=False)) for name in FEATURES}
    tensors = {f"{name}_emb/places": torch.from_numpy(rows) for name, rows in places.items()}
    tensors |= {f"{name}_emb/rows": torch.full((rows.size, data.tables[name].shape[1]), CHANGED) for name, rows in places.items()}
    files = {file: write_tensors(folder / file, tensors)}
    changes = [TableChange(table=f"{name}_emb", file=file, rows=rows.size, prefix=f"{name}_emb/") for name, rows in places.items()]
    ids = data.draw(64, source)
    found = [data.find_rows(name, ids[place]) for place, name in enumerate(FEATURES)]
    vectors = [
        np.where(np.isin(rows, places[name])[:, None], np.float32(CHANGED), data.tables[name].numpy()[rows])
        for name, rows in zip(FEATURES, found, strict=True)
    ]
    golden = {"ids": ids.reshape(-1), "lengths": np.ones(ids.size, np.int32), "group.deep": np.concatenate(vectors, axis=1)}
    write_tensors(folder / "golden.safetensors", {name: torch.from_numpy(values) for name, values in golden.items()})
    base = read_manifest(root)
    manifest = DeltaManifest(
        name=base["name"],
        version=base["version"],
        number=1,
        created="2026-01-01T00:00:00Z",
        base=manifest_digest(base),
        previous=manifest_digest(base),
        tables=tuple(changes),
        programs=(),
        golden="golden.safetensors",
        parity={},
        versions={},
        files=hash_tree(folder, files),
    )
    write_manifest(folder, manifest.to_dict())
    return folder


class Worker:
    """Holds what it opened last."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def do(self, order: dict[str, Any]) -> dict[str, float]:
        """Carry one order out."""
        if "open" in order:
            self.engine = None
        start, busy = time.perf_counter(), time.process_time()
        if "open" in order:
            self.engine = Engine.open(order["open"], tables=order["tables"], verify=order["verify"], warm_up=usual_sizes(MOST_ROWS))
        elif "delta" in order:
            assert self.engine is not None
            self.engine.apply_delta(order["delta"])
        else:
            assert self.engine is not None
            for rows in self.engine.artifact.tables.values():
                rows.view(torch.uint8).amax()  # touches every page
            answer_sizes(self.engine, usual_sizes(MOST_ROWS))
            return {"own": psutil.Process().memory_full_info().uss}
        seconds, cpu = time.perf_counter() - start, time.process_time() - busy
        told = self.engine.table_memory()
        return {"seconds": seconds, "cpu": cpu, "bytes": told.num_bytes, "huge": told.huge_bytes or 0}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
