"""The model that `serving.py` serves: an artifact written by hand, requests for it, and what they must be answered.

F features of one id each: 26 read static tables, 2 read ZCH tables; all are of dim 16. The answer is their vectors side by side: float32 [B, 448].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from emberline.manifest import ArtifactManifest, FileEntry, ProgramEntry, RemapEntry, TableEntry, hash_tree, write_manifest
from emberline.schema import (
    BucketEncoder,
    FeatureKind,
    FeatureSpec,
    GroupKind,
    GroupSpec,
    LookupSpec,
    ModelSchema,
    Pooling,
    RawIdEncoder,
    TableKind,
    TableSpec,
)
from emberline.serving.files import write_tensors
from emberline.serving.remap import write_remap
from emberline.serving.tables import write_table

NUM_STATIC, NUM_ZCH, DIM = 26, 2, 16
FEATURES = [f"feature_{number}" for number in range(NUM_STATIC + NUM_ZCH)]
ZCH_FEATURES = FEATURES[NUM_STATIC:]
WIDTH = DIM * len(FEATURES)
NAME, VERSION, ANSWER = "bench", 1, "lookup.deep"
KNOWN_SHARE = 0.95
INT64_MIN = -(2**63)
Request = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]
"""ids [N], feature after feature, and lengths [F * B]."""


class AsTheyAre(nn.Module):
    """The looked-up vectors side by side are the group."""

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor]:
        return (pooled,)


def schema(table_rows: int) -> ModelSchema:
    """The model's description; a ZCH table has one more row, which ids that are not known read."""
    features, tables, lookups = [], [], []
    for name in FEATURES:
        zch = name in ZCH_FEATURES
        encoder = RawIdEncoder() if zch else BucketEncoder(rows=table_rows)
        features.append(FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=encoder))
        tables.append(TableSpec(name=f"{name}_emb", rows=table_rows + zch, dim=DIM, kind=TableKind.ZCH if zch else TableKind.STATIC))
        lookups.append(LookupSpec(key=name, feature=name, table=f"{name}_emb", pooling=Pooling.SUM, dim=DIM))
    groups = (GroupSpec(name="deep", kind=GroupKind.DEEP, dim=WIDTH),)
    return ModelSchema(features=tuple(features), tables=tuple(tables), lookups=tuple(lookups), groups=groups)


def write_model(models: Path, table_rows: int, *, version: int = VERSION) -> Path:
    """Write the artifact, tables of random rows and maps of random ids; its folder. Versions have different rows, and the same ids."""
    root, described = models / NAME / str(version), schema(table_rows)
    for folder in ("tables", "remap", "programs"):
        (root / folder).mkdir(parents=True)
    entries, files = [], dict[str, FileEntry]()
    for number, table in enumerate(described.tables):
        entry = TableEntry(table=table.name, file=f"tables/{table.name}.safetensors", dtype="fp32")
        source = torch.Generator().manual_seed(number + 1000 * (version - VERSION))
        files[entry.file] = write_table(root / entry.file, torch.empty(table.rows, DIM).uniform_(-1, 1, generator=source))
        if table.kind is TableKind.ZCH:
            remap, files[f"remap/{table.name}.safetensors"] = _write_map(root, table, number)
            entry = replace(entry, remap=remap)
        entries.append(entry)
    data = Data(root)
    ids = data.draw(3, np.random.default_rng(0))
    lengths = np.ones(ids.size, np.int32)
    golden = {"ids": ids.reshape(-1), "lengths": lengths, "group.deep": data.answer(ids)}
    write_rest(root, NAME, described, entries, {name: torch.from_numpy(values) for name, values in golden.items()}, files)
    return root


def write_rest(
    root: Path, name: str, described: ModelSchema, entries: Sequence[TableEntry], golden: Mapping[str, Tensor], files: Mapping[str, FileEntry]
) -> None:
    """What makes an artifact of a folder with tables: the program, whose one group is what was looked up, the golden sample and the manifest.

    Args:
        root: the folder; its name is the version.
        name: of the model.
        described: the model.
        entries: its tables.
        golden: a request, and its answer as `group.deep`.
        files: what was written already.
    """
    torch.jit.save(torch.jit.script(AsTheyAre().eval()), str(root / "programs/groups.ts"))
    write_tensors(root / "golden.safetensors", golden)
    manifest = ArtifactManifest(
        name=name,
        version=int(root.name),
        created="2026-01-01T00:00:00Z",
        schema=described,
        tables=tuple(entries),
        programs=(ProgramEntry(role="groups", file="programs/groups.ts", format="torchscript"),),
        golden="golden.safetensors",
        parity={},
        versions={"torch": torch.__version__},
        files=hash_tree(root, files),
    )
    write_manifest(root, manifest.to_dict())


def _write_map(root: Path, table: TableSpec, seed: int) -> tuple[RemapEntry, FileEntry]:
    source, known = np.random.default_rng(seed), table.rows - 1
    raw_ids = np.unique(source.integers(INT64_MIN, 2**63 - 1, known))
    assert raw_ids.size == known, "two of the random ids are the same"
    return write_remap(
        root / "remap" / f"{table.name}.safetensors",
        raw_ids=torch.from_numpy(raw_ids),
        rows=torch.from_numpy(source.permutation(known)),
        fallback_starts=torch.tensor([INT64_MIN]),
        fallback_rows=torch.tensor([known]),
        num_rows=table.rows,
    )


@dataclass(frozen=True)
class Map:
    """A ZCH table's raw ids, ascending, and their rows; any other reads `fallback`."""

    raw_ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    fallback: int


class Data:
    """The artifact's tables and maps, read without Emberline's engine: what peers are made of and answers are compared with.

    Args:
        root: the artifact's folder.
    """

    def __init__(self, root: Path) -> None:
        self.tables = {name: load_file(root / "tables" / f"{name}_emb.safetensors")["rows"] for name in FEATURES}
        self.num_rows = self.tables[FEATURES[0]].shape[0]
        self.maps: Mapping[str, Map] = {name: self._map(root / "remap" / f"{name}_emb.safetensors", name) for name in ZCH_FEATURES}

    def draw(self, num_rows: int, source: np.random.Generator) -> npt.NDArray[np.int64]:
        """Ids of a request: int64 [F, B]; 19 in 20 of the ZCH features' are known."""
        ids = source.integers(0, self.num_rows, (len(FEATURES), num_rows))
        for place, name in enumerate(ZCH_FEATURES, NUM_STATIC):
            strange = source.integers(INT64_MIN, 2**63 - 1, num_rows)
            ids[place] = np.where(source.random(num_rows) < KNOWN_SHARE, source.choice(self.maps[name].raw_ids, num_rows), strange)
        return ids

    def answer(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The vectors of a request of one id for each bag, int64 [F, B]: float32 [B, 448]."""
        return np.concatenate([self.tables[name].numpy()[self.find_rows(name, ids[place])] for place, name in enumerate(FEATURES)], axis=1)

    def find_rows(self, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows that a feature's ids read."""
        if name not in self.maps:
            return ids
        known = self.maps[name]
        places = np.searchsorted(known.raw_ids, ids).clip(max=known.raw_ids.size - 1)
        return np.where(known.raw_ids[places] == ids, known.rows[places], known.fallback)

    def _map(self, path: Path, name: str) -> Map:
        found = load_file(path)
        rows = self.tables[name].shape[0]
        return Map(found["raw_ids"].numpy(), found["rows"].numpy(), rows - 1)


def pack(ids: npt.NDArray[np.int64]) -> bytes:
    """A request of one id for each bag as FastAPI and LitServe get it: the number of lengths, the lengths, the ids."""
    return np.int64(ids.size).tobytes() + np.ones(ids.size, np.int32).tobytes() + ids.tobytes()


def unpack(body: bytes) -> Request:
    """What `pack` made."""
    count = int(np.frombuffer(body, np.int64, 1)[0])
    return np.frombuffer(body, np.int64, offset=8 + 4 * count), np.frombuffer(body, np.int32, count, offset=8)
