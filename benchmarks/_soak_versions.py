"""Versions and deltas of the model that `soak.py` serves, made beforehand and published one by one, with the answers that each must give."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks._serving_model import FEATURES, NAME, NUM_STATIC, VERSION, Data, write_model
from benchmarks._soak_requests import Good, draw_bags
from emberline.delta_manifest import DELTAS_NAME, DeltaManifest, TableChange
from emberline.manifest import hash_tree, manifest_digest, read_manifest, write_manifest
from emberline.serving.files import write_tensors
from emberline.serving.versions import SERVED_NAME

CHANGED = (FEATURES[0], FEATURES[NUM_STATIC])
"""Features whose tables a delta changes: all rows of them, so that hardly any answer stays as it was."""
Answers = Mapping[str, Sequence[npt.NDArray[np.float32]]]
"""By the kind of bags: before the delta and after it."""


@dataclass
class Versions:
    """Versions 1, 2 and so on of one model, the first of which is published; each but the first has a delta. Their rows all differ.

    Args:
        models: the folder that is served.
        drafts: where what is not published yet lies, on the same disk.
        table_rows: of each table.
        count: how many.
    """

    models: Path
    drafts: Path
    table_rows: int
    count: int
    answers: dict[int, Answers] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.data = Data(write_model(self.models, self.table_rows))
        bags = draw_bags(self.data, np.random.default_rng(5))
        for version in range(VERSION, VERSION + self.count):
            root = self.folder(version) if version == VERSION else write_model(self.drafts, self.table_rows, version=version)
            before = Data(root)
            after = before if version == VERSION else self._write_delta(root, before)
            self.answers[version] = {kind: [one.answer(before), one.answer(after)] for kind, one in bags.items()}

    def folder(self, version: int) -> Path:
        """Of a version that is published."""
        return self.models / NAME / str(version)

    def publish(self, version: int) -> None:
        """Let the server see a version."""
        self._draft(version).rename(self.folder(version))

    def publish_delta(self, version: int) -> None:
        """Let it see the version's delta."""
        folder = self.folder(version) / DELTAS_NAME
        folder.mkdir()
        self._delta_draft(version).rename(folder / "1")

    def damage(self, version: int) -> None:
        """Change one bit of a version that is not published yet."""
        path = self._draft(version) / "tables" / f"{FEATURES[3]}_emb.safetensors"
        content = bytearray(path.read_bytes())
        content[-7] ^= 1
        path.write_bytes(content)
        self.answers.pop(version)

    def pin(self, version: int) -> None:
        """Have this version served."""
        draft = self.models / NAME / f".{SERVED_NAME}"
        draft.write_text(json.dumps({"version": version}))
        draft.rename(draft.with_name(SERVED_NAME))

    def judge(self, request: Good, headers: dict[str, str], body: bytes) -> str:
        """Which version gave an answer, and after how many deltas: `3+1`; empty where it is not what the version that it names must answer."""
        version = headers.get("x-model-version", "")
        answers = self.answers.get(int(version)) if version.isdigit() else None
        if answers is None:
            return ""
        place = request.is_one_of(answers[request.name.partition(", ")[2]], headers, body)
        return "" if place is None else f"{version}+{place}"

    def _draft(self, version: int) -> Path:
        return self.drafts / NAME / str(version)

    def _delta_draft(self, version: int) -> Path:
        return self.drafts / f"delta-{version}"

    def _write_delta(self, root: Path, before: Data) -> Data:
        """The delta that turns the sign of all rows of two tables; what the model is after it."""
        version, folder, after = int(root.name), self._delta_draft(int(root.name)), copy(before)
        after.tables = {name: -rows if name in CHANGED else rows for name, rows in before.tables.items()}
        (folder / "tables").mkdir(parents=True)
        changes = []
        for name in CHANGED:
            file, rows = f"tables/{name}_emb.safetensors", after.tables[name]
            write_tensors(folder / file, {"places": torch.arange(rows.shape[0]), "rows": rows.contiguous()})
            changes.append(TableChange(table=f"{name}_emb", file=file, rows=rows.shape[0]))
        ids = before.draw(3, np.random.default_rng(0))
        golden = {"ids": ids.reshape(-1), "lengths": np.ones(ids.size, np.int32), "group.deep": after.answer(ids)}
        write_tensors(folder / "golden.safetensors", {name: torch.from_numpy(values) for name, values in golden.items()})
        digest = manifest_digest(read_manifest(root))
        manifest = DeltaManifest(
            name=NAME,
            version=version,
            number=1,
            created="2026-01-01T00:00:00Z",
            base=digest,
            previous=digest,
            tables=tuple(changes),
            programs=(),
            golden="golden.safetensors",
            parity={},
            versions={},
            files=hash_tree(folder),
        )
        write_manifest(folder, manifest.to_dict())
        return after
