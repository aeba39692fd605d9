"""One value followed through a model on disk: what id it becomes, which row that id reads in each table, and what lies there."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from emberline.encoding import columns_from_rows, encode
from emberline.errors import CheckpointError, RequestError
from emberline.export.describe import is_checkpoint
from emberline.routing import BY_RANGE, mix, owner_of
from emberline.schema import INT64_MAX, FeatureKind, FeatureSpec, LookupSpec, ModelSchema, TableKind, TableSpec, UnknownIds
from emberline.serving.artifact import Artifact
from emberline.serving.quantized import BITS, decode_rows, split_rows
from emberline.serving.rows_on_disk import rows_needed
from emberline.text_table import columns
from emberline.train.checkpoint import store
from emberline.train.checkpoint.dynamic_rows import DynamicRows
from emberline.train.checkpoint.id_maps import read_whole_map
from emberline.train.checkpoint.report import map_modules
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.checkpoint.stored_dynamic import LAST_STEPS, SCORES, WEIGHT, StoredDynamic
from emberline.train.checkpoint.stored_rows import read_rows
from emberline.train.checkpoint.zch_report import hour_text
from emberline.train.features.sentences import unknown_name

Facts = dict[str, object]
"""What is known, by name, in the order of the way: texts, numbers, and the list of a vector."""
_READS = {
    UnknownIds.FALLBACK: "the trained fallback row of its part",
    UnknownIds.ZEROS: "the row of zeros",
    UnknownIds.MEAN: "the row of the table's mean",
    UnknownIds.ERROR: "nothing: such a request is refused",
}
_DEFAULT = "the table's default vector"


def explain(path: Path, feature: str, value: str) -> list[Facts]:
    """The way of a value, once for each id that it becomes and each table that the feature reads.

    Args:
        path: an artifact, a model's folder (its newest version), a checkpoint, or a run's folder (its newest).
        feature: a sparse feature's name.
        value: as a row has it; for a feature of several columns a JSON object of column and value.

    Raises:
        ArtifactError: there is no artifact, or it is damaged.
        CheckpointError: the same for a checkpoint.
        RequestError: there is no such feature, it has no ids, or refuses the value.
    """
    if is_checkpoint(path):
        root = store.find_checkpoint(path)
        store.read_checkpoint(root)
        schema, read = _checkpoint_schema(root), _checkpoint_reader(root)
    else:
        artifact = Artifact.open(path, verify=False)
        root, schema, read = artifact.root, artifact.schema, _artifact_reader(artifact)
    spec = _feature(schema, feature)
    reads = {lookup.table: lookup for lookup in schema.reads if lookup.feature == feature}
    if not reads:
        raise RequestError("no group reads its ids, so there is no table to follow them to", feature=feature)
    tables = {table.name: table for table in schema.tables}
    found = []
    for one in _ids_of(spec, value):
        start: Facts = {"model": str(root), "feature": feature, "given": value, "encoding": _encoding(spec), "id": one}
        found += [{**start, "table": table, **read(spec, lookup, tables[table], one)} for table, lookup in reads.items()]
    return found


def explain_lines(facts: Facts) -> list[str]:
    """One way as a table for a terminal."""
    return columns([("step", "what"), *((name.replace("_", " "), _shown(value)) for name, value in facts.items())])


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"{number:.6g}" for number in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _feature(schema: ModelSchema, name: str) -> FeatureSpec:
    found = next((feature for feature in schema.features if feature.name == name), None)
    if found is None:
        raise RequestError(unknown_name("feature", name, [feature.name for feature in schema.sparse_features]))
    if found.kind is FeatureKind.DENSE:
        raise RequestError("it has numbers, not ids", feature=name)
    return found


def _ids_of(spec: FeatureSpec, value: str) -> list[int]:
    row: object = {spec.columns[0]: value}
    if len(spec.columns) > 1:
        try:
            row = json.loads(value)
        except json.JSONDecodeError as error:
            columns_text = ", ".join(spec.columns)
            raise RequestError(f"it is computed from {columns_text}: give a JSON object of them, not {value!r}", feature=spec.name) from error
    if not isinstance(row, dict):
        raise RequestError(f"give a JSON object of {', '.join(spec.columns)}, not {value!r}", feature=spec.name)
    encoded = encode((spec,), *columns_from_rows((spec,), [row]))
    ids: list[int] = (encoded.sparse | encoded.sparse_sequences)[spec.name].values.tolist()
    if not ids:
        raise RequestError(f"{value!r} is no id: the bag is empty, and reads zeros", feature=spec.name)
    return ids


def _encoding(spec: FeatureSpec) -> str:
    encoder = spec.encoder
    rows = getattr(encoder, "rows", 0)
    oov = getattr(encoder, "oov_row", None)
    words = {
        "raw_id": "an integer is kept whole, other text becomes XXH64 modulo 2^63-1",
        "hash": f"XXH64 of its text, modulo {rows}",
        "cross": f"XXH64 over the hashes of all columns, modulo {rows or '2^63-1'}",
        "bucket": f"an integer in [0, {rows}) is the row" + (f", any other reads row {oov}" if oov is not None else ", any other is refused"),
        "vocab": f"a listed word's row, of {rows}; any other reads row {oov}",
        "boundary": f"how many boundaries are at or below it, of {rows} buckets",
    }
    return f"{encoder.type}: {words[encoder.type]}" if encoder.type in words else encoder.type


Reader = Callable[[FeatureSpec, LookupSpec, TableSpec, int], Facts]


def _artifact_reader(artifact: Artifact) -> Reader:
    def read(spec: FeatureSpec, lookup: LookupSpec, table: TableSpec, one: int) -> Facts:
        facts: Facts = {"kind": table.kind.value}
        if artifact.deltas:
            facts["delta"] = len(artifact.deltas)
        row: int | None = one
        parts = artifact.ids.get(table.name)
        if parts is not None:
            index = artifact.remaps[table.name]
            index = index if lookup.unknown_row is None else index.reading(lookup.unknown_row)
            rows, known = index(torch.tensor([one]))
            if parts.routing is not None:
                facts |= _part(one, parts.fallback_rows.numel(), parts.routing)
            elif table.kind is TableKind.ZCH:
                part = int(torch.searchsorted(parts.fallback_starts, torch.tensor([one]), right=True)) - 1
                facts |= {"part": f"{part} of {parts.fallback_starts.numel()}, by ranges of ids"}
            facts |= _known(bool(known), spec.unknown_ids, table.kind)
            row = None if not known and spec.unknown_ids is UnknownIds.ERROR else int(rows)
        if row is None:
            return facts
        rows, places = rows_needed(artifact.rows[table.name], torch.tensor([row]))
        return facts | _stored(rows[places[0]], row, table.dim, artifact.table_types[table.name])

    return read


def _checkpoint_schema(root: Path) -> ModelSchema:
    try:
        return ModelSchema.from_dict(store.read_json(root / store.SCHEMA_NAME))
    except ValueError as error:
        raise CheckpointError(f"{root / store.SCHEMA_NAME} is not of this release: {error}") from error


def _checkpoint_reader(root: Path) -> Reader:
    folder = root / store.TENSORS_NAME
    modules = cache(lambda: map_modules(root))
    map_of = cache(lambda table: read_whole_map(folder, table, read_layout(root).zch_routing.get(table, BY_RANGE)))
    dynamic = cache(lambda table: DynamicRows(StoredDynamic(folder, table, read_layout(root).dynamic[table])))

    def read(spec: FeatureSpec, lookup: LookupSpec, table: TableSpec, one: int) -> Facts:
        facts: Facts = {"kind": table.kind.value}
        row = one
        if table.kind is TableKind.DYNAMIC:
            return facts | _grown(dynamic(table.name), one, table)
        if table.kind is TableKind.ZCH:
            whole = map_of(table.name)
            part = _owner(one, whole.num_parts, whole.routing)
            facts |= _part(one, whole.num_parts, whole.routing)
            places = (whole.entries["raw_ids"] == one).nonzero().flatten().tolist() if one != INT64_MAX else []
            facts |= _known(bool(places), UnknownIds.FALLBACK, table.kind)
            if places:
                entries = {name: values[places] for name, values in whole.entries.items()}
                row = int(entries["rows"])
                facts |= _use(entries, whole.numbers) | {"score": float(modules()[table.name].scores(entries, whole.numbers))}
            else:
                row = whole.ends[part + 1] - 1
                if "hour" not in whole.numbers:
                    facts["reads_since_the_last_round"] = int((whole.history_ids == one).sum())
        return facts | _stored(read_rows(folder, f"tables/{table.name}/weight", torch.tensor([row]))[0], row, table.dim, table.dtype)

    return read


def _grown(rows: DynamicRows, one: int, table: TableSpec) -> Facts:
    """What a checkpoint has of an id of a table that grows."""
    stored, (row,) = rows.stored, rows.find(torch.tensor([one])).tolist()
    facts = _known(row >= 0, UnknownIds.FALLBACK, table.kind)
    if row < 0:
        ids, counts = stored.own_counted(0, 1)
        facts["reads_that_count_for_admission"] = int(counts[ids == one].sum())
        default = _stored(rows.default, row, table.dim, table.dtype)
        return facts | {name: fact for name, fact in default.items() if name != "row"}
    at = torch.tensor([row])
    facts["last_seen"] = f"in step {int(stored.take(LAST_STEPS, at))} of {stored.step}"
    facts["score"] = int(stored.take(SCORES, at))
    facts["scored_by"] = stored.notes.score_strategy
    return facts | _stored(stored.take(WEIGHT, at)[0], row, table.dim, table.dtype)


def _use(entries: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> Facts:
    facts: Facts = {}
    if "counts" in entries:
        facts["seen"] = int(entries["counts"])
    if "last_access_iter" in entries:
        facts["last_seen"] = f"in batch {int(entries['last_access_iter'])} of {int(numbers['iteration'].max())}"
    if "last_seen_hour" in entries:
        facts["last_seen"] = hour_text(int(entries["last_seen_hour"]))
    return facts


def _owner(one: int, num_parts: int, routing: str) -> int:
    return int(owner_of(torch.tensor([one]), num_parts, routing))


def _part(one: int, num_parts: int, routing: str) -> Facts:
    facts: Facts = {} if routing == BY_RANGE else {"mixed": int(mix(torch.tensor([one])))}
    return {**facts, "part": f"{_owner(one, num_parts, routing)} of {num_parts}, routed by {routing!r}"}


def _known(known: bool, policy: UnknownIds, kind: TableKind) -> Facts:
    of_all = kind is TableKind.DYNAMIC and policy is UnknownIds.FALLBACK
    return {"known": known, "reads": "its own row" if known else f"{_DEFAULT if of_all else _READS[policy]} ({policy})"}


def _stored(stored: Tensor, row: int, dim: int, number_type: str) -> Facts:
    """What lies in a row, [stored_width]: its bytes, and what they mean."""
    kind, parts = f"{number_type}, not quantised: no scale", {}
    if number_type in BITS:
        scale, bias, codes = (part.squeeze(0).tolist() for part in split_rows(stored.unsqueeze(0), dim, number_type))
        kind, parts = f"{number_type}: each number is scale * code + bias", {"scale": scale, "bias": bias, "codes": codes}
    data = stored.contiguous().view(torch.uint8).numpy().tobytes()
    vector = decode_rows(stored.unsqueeze(0), dim, number_type).squeeze(0).tolist()
    return {"row": row, "type": kind, "bytes": data.hex(), **parts, "vector": vector}
