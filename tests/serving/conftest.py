"""A hand-made artifact, and the oracle that tells what it must answer: no training and no export is needed to test serving.

The toy model has every kind of input: a ZCH feature, static ones with and without an out-of-vocabulary row, weights with sum and mean, dense vectors.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from emberline.manifest import ArtifactManifest, ProgramEntry, RemapEntry, TableEntry, hash_tree, read_manifest, write_manifest
from emberline.program_inputs import program_inputs
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
    StreamSpec,
    TableKind,
    TableSpec,
)
from emberline.serving.files import write_tensors
from emberline.serving.remap import write_remap
from emberline.serving.tables import write_table
from tests.serving.ways import BOTH_SERVERS, Urls, Way, served

Ids = npt.NDArray[np.int64]
Arrays = dict[str, npt.NDArray[Any]]
"""A request's arrays by name, as `PackedRequest` has them."""
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
        )[0]


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


class ToyStepGroups(nn.Module):
    """Three sequences of one stream: padded with their number, and left as they are; and the pooled lookups with the dense numbers."""

    def forward(
        self, pooled: Tensor, dense: Tensor, clicks: Tensor, words: Tensor, prices: Tensor, lengths: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        steps = torch.cat([torch.zeros_like(clicks[:1]), clicks], dim=0) if clicks.shape[0] > 0 else clicks.new_zeros(1, clicks.shape[1])
        places = (torch.cumsum(lengths, 0) - lengths).unsqueeze(1) + positions.unsqueeze(0) + 1
        padded = steps[torch.where(positions.unsqueeze(0) < lengths.unsqueeze(1), places, torch.zeros_like(places))]
        return torch.cat([pooled, dense], dim=1), padded, lengths.clone(), torch.cat([words, prices], dim=1), lengths.clone()


class ToyStepOutputs(nn.Module):
    """One output: a row's numbers, and the sum of its steps by their number."""

    def forward(
        self, pooled: Tensor, dense: Tensor, clicks: Tensor, words: Tensor, prices: Tensor, lengths: Tensor, positions: Tensor
    ) -> tuple[Tensor]:
        steps = torch.cat([clicks, words, prices], dim=1).sum(1)
        rows = torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths)
        sums = torch.zeros(lengths.shape[0], device=lengths.device).index_add_(0, rows, steps)
        return (pooled.sum(1) + dense.sum(1) + sums / lengths.clamp(min=1),)


@dataclass(frozen=True)
class Sequences:
    """The sequences of a request, read by plain loops.

    Args:
        bags: by sparse sequence: the ids and weights of each step of all rows.
        numbers: by dense sequence: float32 [steps, value_dim].
        lengths: steps of each row, by sequence.
    """

    bags: dict[str, list[tuple[list[int], list[float]]]]
    numbers: dict[str, npt.NDArray[np.float32]]
    lengths: dict[str, list[int]]

    @classmethod
    def of(cls, schema: ModelSchema, request: Arrays) -> "Sequences":
        features, found = schema.sparse_features, cls({}, {}, {})
        lengths = request["lengths"].reshape(len(features), -1)
        ends = np.concatenate([[0], lengths.sum(axis=1).cumsum()])
        names = [feature.name for feature in features]
        own = [lengths[names.index(feature.name)] for feature in schema.sparse_sequences]
        table = request["steps"].reshape(len(schema.sequences), -1) if "steps" in request else np.array(own)
        sizes = iter(request["step_lengths"].tolist()) if "step_lengths" in request else itertools.repeat(1)
        numbers = request.get("dense_steps", np.empty(0, np.float32))
        for feature, steps in zip(schema.sequences, table, strict=True):
            found.lengths[feature.name] = [int(count) for count in steps]
            total = int(steps.sum())
            if feature.kind is FeatureKind.DENSE:
                found.numbers[feature.name], numbers = (
                    numbers[: total * feature.value_dim].reshape(total, feature.value_dim),
                    numbers[total * feature.value_dim :],
                )
                continue
            start = int(ends[names.index(feature.name)])
            bags = found.bags[feature.name] = []
            for _ in range(total):
                stop = start + int(next(sizes))
                weights = request["weights"][start:stop].tolist() if "weights" in request else [1.0] * (stop - start)
                bags.append((request["ids"][start:stop].tolist(), weights))
                start = stop
        return found


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

    def stepped(self, request: Arrays) -> dict[str, Tensor]:
        """The oracle of steps: what a program takes of them, by name; each step is a bag of its own."""
        sequences = Sequences.of(self.schema, request)
        found: dict[str, Tensor] = {}
        for lookup in self.schema.sequence_lookups:
            table, remap = self.tables[lookup.table].double().numpy(), self.remaps.get(lookup.table)
            vectors = []
            for ids, weights in sequences.bags[lookup.feature]:
                rows = [table[remap.row(one) if remap else one] for one in ids]
                scale = weights if lookup.weighted else [1.0] * len(ids)
                total = sum((weight * row for weight, row in zip(scale, rows, strict=True)), np.zeros(lookup.dim))
                if lookup.pooling is Pooling.MEAN:
                    total = total / sum(scale) if sum(scale) != 0 else np.zeros(lookup.dim)
                vectors.append(total.tolist())
            found[f"steps.{lookup.key}"] = torch.tensor(vectors, dtype=torch.float32).reshape(-1, lookup.dim)
        for name, numbers in sequences.numbers.items():
            found[f"steps.{name}"] = torch.from_numpy(numbers)
        for stream in self.schema.streams:
            lengths = torch.tensor(sequences.lengths[stream.name], dtype=torch.int64)
            found[f"lengths.{stream.name}"] = lengths
            found[f"positions.{stream.name}"] = torch.arange(max(sequences.lengths[stream.name], default=0))
        return found

    def answers(self, request: Arrays) -> dict[str, Tensor]:
        """Outputs as `output.<name>` and groups as `group.<name>` for a request's arrays."""
        pooled = self.pooled(request["ids"], request["lengths"], request.get("weights"))
        numbers = torch.tensor(request.get("dense", np.empty(0, np.float32))).view(pooled.shape[0], self.schema.dense_dim)
        given = {"pooled": pooled, "dense": numbers, **self.stepped(request)}
        inputs = [given[wanted.name] for wanted in program_inputs(self.schema)]
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            if self.outputs is not None:
                found |= {f"output.{spec.name}": value for spec, value in zip(self.schema.outputs, self.outputs(*inputs), strict=True)}
            if self.groups is not None:
                found |= {f"group.{spec.name}": value for spec, value in zip(self.schema.groups, self.groups(*inputs), strict=True)}
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
    steps = _random_steps(schema, lengths.reshape(len(features), num_rows), draw) if schema.sequences else {}
    tables = {table.name: table for table in schema.tables}
    parts: list[Ids] = []
    for place, feature in enumerate(features):
        count = int(lengths[place * num_rows : (place + 1) * num_rows].sum())
        table = next(tables[lookup.table] for lookup in schema.reads if lookup.feature == feature.name)
        if table.kind is TableKind.STATIC:
            parts.append(draw.integers(0, table.rows, count))
        else:
            strange = draw.integers(INT64_MIN, 2**63 - 1, count, endpoint=True)
            parts.append(np.where(draw.random(count) < 0.7, draw.choice(np.array(raw_ids or (0,), np.int64), count), strange))
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    request: Arrays = {"ids": ids.astype(np.int64), "lengths": lengths, **steps}
    if schema.has_weights and weights:
        request["weights"] = draw.normal(1, 0.3, ids.size).astype(np.float32)
    if schema.dense_dim:
        request["dense"] = draw.normal(0, 1, num_rows * schema.dense_dim).astype(np.float32)
    return request


def _random_steps(schema: ModelSchema, lengths: npt.NDArray[np.int32], draw: np.random.Generator) -> Arrays:
    """Steps of one stream for all sequences, of 0 to 2 ids where they take any number; `lengths` [F, B] of the sparse ones are set to fit."""
    counts = draw.integers(0, 4, lengths.shape[1])
    names, sizes, numbers = [feature.name for feature in schema.sparse_features], [], []
    for feature in schema.sequences:
        total = int(counts.sum())
        if feature.kind is FeatureKind.DENSE:
            numbers.append(draw.normal(0, 1, total * feature.value_dim))
            continue
        own = draw.integers(0, 3, total) if feature.value_dim != 1 else np.ones(total, np.int64)
        sizes.append(own)
        ends = np.concatenate([[0], own.cumsum()])
        lengths[names.index(feature.name)] = np.diff(ends[np.concatenate([[0], counts.cumsum()])])
    return {
        "steps": np.tile(counts, len(schema.sequences)).astype(np.int32),
        "step_lengths": np.concatenate(sizes).astype(np.int32),
        "dense_steps": np.concatenate(numbers or [np.empty(0)]).astype(np.float32),
    }


def steps_schema() -> ModelSchema:
    """Three sequences side by side: raw ids that a pooled feature reads too, weighted steps of any number of ids, and numbers."""

    def steps(feature: FeatureSpec, most: int) -> FeatureSpec:
        return replace(feature, sequence=True, sequence_length=most)

    stream = StreamSpec(features=("clicks", "words", "prices"), padded=True)
    return ModelSchema(
        features=(
            sparse("user", RawIdEncoder()),
            steps(sparse("clicks", RawIdEncoder(), value_dim=1), 5),
            dense("age", 1),
            steps(sparse("words", HashEncoder(rows=20), weighted=True), 0),
            steps(dense("prices", 2), 5),
        ),
        tables=(TableSpec(name="user_emb", rows=8, dim=4, kind=TableKind.ZCH), TableSpec(name="words_emb", rows=20, dim=3)),
        lookups=(LookupSpec(key="user", feature="user", table="user_emb", pooling=Pooling.SUM, dim=4),),
        groups=(
            GroupSpec(name="deep", kind=GroupKind.DEEP, dim=5),
            GroupSpec(name="seq.sequence", kind=GroupKind.SEQUENCE, dim=4, stream="clicks"),
            GroupSpec(name="seq.sequence_length", kind=GroupKind.SEQUENCE, dim=0, stream="clicks"),
            GroupSpec(name="jag.sequence", kind=GroupKind.JAGGED_SEQUENCE, dim=5, stream="clicks"),
            GroupSpec(name="jag.sequence_length", kind=GroupKind.JAGGED_SEQUENCE, dim=0, stream="clicks"),
        ),
        outputs=(OutputSpec(name="score"),),
        sequence_lookups=(
            LookupSpec(key="clicks", feature="clicks", table="user_emb", pooling=Pooling.SUM, dim=4),
            LookupSpec(key="words", feature="words", table="words_emb", pooling=Pooling.MEAN, dim=3, weighted=True),
        ),
        streams=(stream,),
    )


def one_sequence_schema(*, weighted: bool, value_dim: int, pooling: Pooling) -> ModelSchema:
    """A sequence `f` alone, whose steps are looked up in a table `t` of 9 rows of 5."""
    feature = replace(sparse("f", HashEncoder(rows=9), weighted=weighted, value_dim=value_dim), sequence=True)
    return ModelSchema(
        features=(feature,),
        tables=(TableSpec(name="t", rows=9, dim=5),),
        lookups=(),
        groups=(),
        sequence_lookups=(LookupSpec(key="f", feature="f", table="t", pooling=pooling, dim=5, weighted=weighted),),
        streams=(StreamSpec(features=("f",), padded=False),),
    )


def make_steps_toy() -> ToyModel:
    """A model of sequences; raw ids 100, -7 and 2**62 are trained, any other reads row 7."""
    schema, generator = steps_schema(), torch.Generator().manual_seed(3)
    tables = {table.name: torch.randn(table.rows, table.dim, generator=generator) for table in schema.tables}
    return ToyModel(schema, tables, {"user_emb": Remap({100: 2, -7: 0, 2**62: 5})}, ToyStepOutputs(), ToyStepGroups(), name="steps")


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


@pytest.fixture(scope="module", params=BOTH_SERVERS)
def urls(request: pytest.FixtureRequest, models: Path) -> Iterator[Urls]:
    """A server of the module's `models`, each of both in turn."""
    with served(request.param, models) as found:
        yield found


@pytest.fixture(params=["http", "http-json", "http-aio", "grpc", "grpc-aio"])
def way(request: pytest.FixtureRequest, urls: Urls) -> Way:
    """Each protocol and client of that server in turn."""
    return Way(request.param, urls[request.param[:4]].partition("://")[2])
