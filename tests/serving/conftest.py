"""A hand-made artifact, and the oracle that tells what it must answer: no training and no export is needed to test serving.

The toy model has every kind of input: a ZCH feature, static ones with and without an out-of-vocabulary row, weights with sum and mean, dense vectors.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from emberline.manifest import ArtifactManifest, ProgramEntry, RemapEntry, TableEntry, hash_tree, read_manifest, write_manifest
from emberline.schema import (
    BucketEncoder,
    FeatureKind,
    FeatureSpec,
    GroupKind,
    GroupSpec,
    HashEncoder,
    LookupSpec,
    ModelSchema,
    NumericEncoder,
    OutputSpec,
    Pooling,
    RawIdEncoder,
    TableKind,
    TableSpec,
)
from emberline.serving.files import write_tensors
from emberline.serving.remap import write_remap
from emberline.serving.tables import write_table

Ids = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]
"""A request's arrays by name: ids, lengths, weights, dense."""
INT64_MIN = -(2**63)


def sparse(name: str, encoder: RawIdEncoder | BucketEncoder | HashEncoder, *, weighted: bool = False, value_dim: int = 0) -> FeatureSpec:
    return FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=encoder, weighted=weighted, value_dim=value_dim)


def dense(name: str, value_dim: int) -> FeatureSpec:
    return FeatureSpec(name=name, kind=FeatureKind.DENSE, columns=(name,), encoder=NumericEncoder(), value_dim=value_dim)


def toy_schema() -> ModelSchema:
    lookups = (
        LookupSpec(key="user", feature="user", table="user_emb", pooling=Pooling.SUM, dim=4),
        LookupSpec(key="item", feature="item", table="item_emb", pooling=Pooling.MEAN, dim=8),
        LookupSpec(key="city", feature="city", table="city_emb", pooling=Pooling.SUM, dim=4),
        LookupSpec(key="tags@sum", feature="tags", table="tags_emb", pooling=Pooling.SUM, dim=4, weighted=True),
        LookupSpec(key="tags@mean", feature="tags", table="tags2_emb", pooling=Pooling.MEAN, dim=4, weighted=True),
    )
    return ModelSchema(
        features=(
            sparse("user", RawIdEncoder()),
            dense("price", 1),
            sparse("item", BucketEncoder(rows=10)),
            sparse("city", BucketEncoder(rows=6, oov_row=5)),
            sparse("tags", HashEncoder(rows=20), weighted=True),
            dense("vector", 2),
        ),
        tables=(
            TableSpec(name="user_emb", rows=8, dim=4, kind=TableKind.ZCH),
            TableSpec(name="item_emb", rows=10, dim=8),
            TableSpec(name="city_emb", rows=6, dim=4),
            TableSpec(name="tags_emb", rows=20, dim=4),
            TableSpec(name="tags2_emb", rows=20, dim=4),
        ),
        lookups=lookups,
        groups=(GroupSpec(name="deep", kind=GroupKind.DEEP, dim=27), GroupSpec(name="wide", kind=GroupKind.WIDE, dim=4)),
        outputs=(OutputSpec(name="probs"), OutputSpec(name="scores", width=3)),
    )


@dataclass(frozen=True)
class Remap:
    """Raw id -> row, and the fallback row of each range, as a dictionary's owner would write it."""

    rows: Mapping[int, int]
    fallbacks: Mapping[int, int] = field(default_factory=lambda: {INT64_MIN: 7})

    def row(self, raw_id: int) -> int:
        if raw_id in self.rows:
            return self.rows[raw_id]
        return self.fallbacks[max(start for start in self.fallbacks if start <= raw_id)]

    def write(self, path: Path, num_rows: int) -> RemapEntry:
        raw_ids, starts = sorted(self.rows), sorted(self.fallbacks)
        return write_remap(
            path,
            raw_ids=torch.tensor(raw_ids, dtype=torch.int64),
            rows=torch.tensor([self.rows[raw_id] for raw_id in raw_ids], dtype=torch.int64),
            fallback_starts=torch.tensor(starts, dtype=torch.int64),
            fallback_rows=torch.tensor([self.fallbacks[start] for start in starts], dtype=torch.int64),
            num_rows=num_rows,
        )


class ToyOutputs(nn.Module):
    """Two outputs: [B] and [B, 3]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        found = self.linear(torch.cat([pooled, dense], dim=1))
        return torch.sigmoid(found[:, 0]), found[:, 1:]


class ToyGroups(nn.Module):
    """Two groups: everything, and the first lookup."""

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([pooled, dense], dim=1), pooled[:, :4]


class IdentityGroup(nn.Module):
    """One group: the pooled lookups as they are."""

    def forward(self, pooled: Tensor, dense: Tensor) -> tuple[Tensor]:
        return (pooled,)


@dataclass(frozen=True)
class ToyModel:
    """A model as plain data and modules, which writes itself as an artifact and says what it must answer."""

    schema: ModelSchema
    tables: Mapping[str, Tensor]
    remaps: Mapping[str, Remap]
    outputs: nn.Module | None
    groups: nn.Module | None
    name: str = "toy"
    libraries: tuple[str, ...] = ()

    def pooled(self, ids: Ids, lengths: Ids, weights: npt.NDArray[np.float32] | None = None) -> Tensor:
        """The oracle: bag by bag, in float64, by the definitions in the schema's docstrings."""
        features = [feature.name for feature in self.schema.sparse_features]
        num_rows = len(lengths) // len(features)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        rows: list[list[float]] = [[] for _ in range(num_rows)]
        for lookup in self.schema.lookups:
            table = self.tables[lookup.table].double().numpy()
            for row in range(num_rows):
                bag = features.index(lookup.feature) * num_rows + row
                places = range(int(ends[bag]), int(ends[bag + 1]))
                remap = self.remaps.get(lookup.table)
                vectors = [table[remap.row(int(ids[place])) if remap else int(ids[place])] for place in places]
                bag_weights = [float(weights[place]) if lookup.weighted and weights is not None else 1.0 for place in places]
                total = sum((weight * vector for weight, vector in zip(bag_weights, vectors, strict=True)), np.zeros(lookup.dim))
                if lookup.pooling is Pooling.MEAN:
                    total = total / sum(bag_weights) if sum(bag_weights) != 0 else np.zeros(lookup.dim)
                rows[row].extend(total)
        return torch.tensor(rows, dtype=torch.float32).reshape(num_rows, self.schema.pooled_dim)

    def answers(self, request: Arrays) -> dict[str, Tensor]:
        """Outputs as `output.<name>` and groups as `group.<name>` for a request's arrays."""
        pooled = self.pooled(request["ids"], request["lengths"], request.get("weights"))
        numbers = torch.tensor(request.get("dense", np.empty(0, np.float32))).view(pooled.shape[0], self.schema.dense_dim)
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            if self.outputs is not None:
                found |= {f"output.{spec.name}": value for spec, value in zip(self.schema.outputs, self.outputs(pooled, numbers), strict=True)}
            if self.groups is not None:
                found |= {f"group.{spec.name}": value for spec, value in zip(self.schema.groups, self.groups(pooled, numbers), strict=True)}
        return found

    def write(self, models: Path, version: int = 1, golden: Arrays | None = None) -> Path:
        """Write `<models>/<name>/<version>` and return it."""
        root = models / self.name / str(version)
        for folder in ("tables", "remap", "programs"):
            (root / folder).mkdir(parents=True)
        entries = []
        for spec in self.schema.tables:
            entry = TableEntry(table=spec.name, file=f"tables/{spec.name}.safetensors", dtype=spec.dtype)
            write_table(root / entry.file, self.tables[spec.name])
            if spec.name in self.remaps:
                entry = replace(entry, remap=self.remaps[spec.name].write(root / "remap" / f"{spec.name}.safetensors", spec.rows))
            entries.append(entry)
        programs = []
        for role, module in (("outputs", self.outputs), ("groups", self.groups)):
            if module is not None:
                file = f"programs/{role}.ts"
                torch.jit.save(torch.jit.script(module.eval()), str(root / file))
                programs.append(ProgramEntry(role=role, file=file, format="torchscript", libraries=self.libraries))
        raw_ids = tuple(raw_id for remap in self.remaps.values() for raw_id in remap.rows)
        sample = random_request(self.schema, num_rows=3, seed=1, raw_ids=raw_ids) if golden is None else golden
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in sample.items()}
        write_tensors(root / "golden.safetensors", tensors | {name: value.contiguous() for name, value in self.answers(sample).items()})
        manifest = ArtifactManifest(
            name=self.name,
            version=version,
            created="2026-01-01T00:00:00Z",
            schema=self.schema,
            tables=tuple(entries),
            programs=tuple(programs),
            golden="golden.safetensors",
            parity={},
            versions={"torch": torch.__version__},
            files=hash_tree(root),
        )
        write_manifest(root, manifest.to_dict())
        return root


def random_request(schema: ModelSchema, *, num_rows: int, seed: int, most: int = 3, raw_ids: tuple[int, ...] = (), weights: bool = True) -> Arrays:
    """A well-formed request's arrays: bags of 0 to `most` ids; raw ids are drawn from `raw_ids` and from all int64."""
    draw = np.random.default_rng(seed)
    features = schema.sparse_features
    lengths = draw.integers(0, most + 1, len(features) * num_rows).astype(np.int32)
    tables = {table.name: table for table in schema.tables}
    parts: list[Ids] = []
    for place, feature in enumerate(features):
        count = int(lengths[place * num_rows : (place + 1) * num_rows].sum())
        table = next(tables[lookup.table] for lookup in schema.lookups if lookup.feature == feature.name)
        if table.kind is TableKind.STATIC:
            parts.append(draw.integers(0, table.rows, count))
        else:
            strange = draw.integers(INT64_MIN, 2**63 - 1, count, endpoint=True)
            parts.append(np.where(draw.random(count) < 0.7, draw.choice(np.array(raw_ids or (0,), np.int64), count), strange))
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    request: Arrays = {"ids": ids.astype(np.int64), "lengths": lengths}
    if schema.has_weights and weights:
        request["weights"] = draw.normal(1, 0.3, ids.size).astype(np.float32)
    if schema.dense_dim:
        request["dense"] = draw.normal(0, 1, num_rows * schema.dense_dim).astype(np.float32)
    return request


def make_toy(seed: int = 0, name: str = "toy") -> ToyModel:
    """The toy model with random rows; raw ids 100, -7, 2**62 and 200 are trained, any other reads row 7."""
    schema = toy_schema()
    generator = torch.Generator().manual_seed(seed)
    tables = {table.name: torch.randn(table.rows, table.dim, generator=generator) for table in schema.tables}
    outputs = ToyOutputs(schema.pooled_dim + schema.dense_dim)
    with torch.no_grad():
        for parameter in outputs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return ToyModel(schema, tables, {"user_emb": Remap({100: 2, -7: 0, 2**62: 5, 200: 6})}, outputs, ToyGroups(), name=name)


def make_lookup_model(
    lookups: tuple[LookupSpec, ...], features: tuple[FeatureSpec, ...], tables: Mapping[str, Tensor], remaps: Mapping[str, Remap] | None = None
) -> ToyModel:
    """A model whose only answer is the pooled tensor, as group `pooled`."""
    remaps = remaps or {}
    specs = tuple(
        TableSpec(name=name, rows=rows.shape[0], dim=rows.shape[1], kind=TableKind.ZCH if name in remaps else TableKind.STATIC)
        for name, rows in tables.items()
    )
    group = GroupSpec(name="pooled", kind=GroupKind.DEEP, dim=sum(lookup.dim for lookup in lookups))
    schema = ModelSchema(features=features, tables=specs, lookups=lookups, groups=(group,))
    return ToyModel(schema, tables, remaps, None, IdentityGroup(), name="lookups")


def reseal(root: Path, manifest: dict[str, Any] | None = None) -> None:
    """Write an artifact's manifest again with a valid digest, as given, or with the files as they are now."""
    if manifest is None:
        manifest = read_manifest(root) | {"files": {path: asdict(entry) for path, entry in hash_tree(root).items()}}
    write_manifest(root, {key: value for key, value in manifest.items() if key != "digest"})


@pytest.fixture
def toy() -> ToyModel:
    return make_toy()


@pytest.fixture
def toy_artifact(toy: ToyModel, tmp_path: Path) -> Path:
    return toy.write(tmp_path / "models")
