"""The manifest: how a directory on disk describes itself.

An artifact's `manifest.json` lists what is in it: schema, tables, programs, versions, and size and sha256 of every other file. Checkpoints
use the same file list. The manifest is written last and carries a digest of itself, so a directory with a valid one is complete. It is not signed:
digests tell of damage, not of forgery.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from emberline.cpus import usable_cpus
from emberline.digests import PIECE_BYTES, PiecesDigest, can_reckon
from emberline.plain import from_plain
from emberline.schema import ModelSchema

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """What one file holds. Entries are equal where size and sha256 are.

    Args:
        bytes: its size.
        sha256: of all of it (hex).
        xxh3: of its pieces, as `emberline.digests` tells: for large files that must be compared fast; None where it was not reckoned.
    """

    bytes: int
    sha256: str
    xxh3: str | None = field(default=None, compare=False)

    @property
    def fast(self) -> str | None:
        """The `xxh3`; None where there is none, or this machine cannot reckon it, so that the sha256 is to be compared."""
        return self.xxh3 if can_reckon() else None


@dataclass(frozen=True, kw_only=True)
class RemapEntry:
    """Where a ZCH or dynamic table's raw ids are.

    The file holds `raw_ids` int64 [K] ascending, `rows` int64 [K], `fallback_starts` int64 [S] ascending (the first is -2**63) and
    `fallback_rows` int64 [S]: an id that is not in `raw_ids` reads the row of the last start at or below it. Where `routing` is given, it reads the
    row of its part, of S, as `emberline.routing.owner_of` tells. Where `seed` is given, the file also holds the finished index, `lines` int64 [H, 8],
    which was filled by it. `spare_rows` are rows of the table that no id owns yet, for ids that deltas bring: a dynamic table has some.
    """

    file: str
    num_ids: int
    routing: str | None = None
    seed: int | None = None
    spare_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """Where one table's rows are: a safetensors file whose tensor `rows` holds them in the number type `dtype`.

    That is [rows, dim] of `fp32`, `fp16` or `bf16`, or bytes [rows, row_bytes] of `int8` or `int4`, as `emberline.serving.quantized` lays them out.
    The schema's `TableSpec.dtype` is what the table was trained in.
    """

    table: str
    file: str
    dtype: str
    remap: RemapEntry | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramEntry:
    """One compiled program. There is one for each role and format.

    Args:
        role: `outputs` (what `program_inputs` lists -> the model's outputs in schema order), `groups` (the same -> the group tensors in schema order)
            or `full` (what `full_inputs` lists -> the model's outputs, with the tables inside; no engine runs it); for tiled requests
            `tiled_outputs` and `tiled_groups`, which take what `tiled_inputs` lists.
        file: its path in the artifact.
        format: `torchscript`, `aoti` or `onnx`.
        device: the device type that it runs on.
        libraries: modules that must be imported before it can be loaded.
        arch: what its machine code is for: the compute capability of a GPU (`sm_90`), or a CPU and its instruction sets (`x86_64 avx avx2`); empty
            where it holds none.
        versions: of torch, and of each of `libraries`, where it was made.
        precision: number type of its matrix products: fp32, bf16 or fp16. Its answers are float32 all the same.
        bound: largest difference from the trained model's answers, relative above 1, that was let pass.
        opset: of ONNX; 0 for other formats.
        data_file: the path of a file that holds its numbers apart, which must stay beside it.
        source: digest of what it was made of: programs with the same one answer alike.
    """

    role: str
    file: str
    format: str
    device: str = "cpu"
    libraries: tuple[str, ...] = ()
    arch: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    precision: str = "fp32"
    bound: float = 1e-6
    opset: int = 0
    data_file: str | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ArtifactManifest:
    """The whole of an artifact's `manifest.json`.

    Args:
        golden: file with a sample request (`ids`, `lengths`, `dense`, `weights` where used) and its answers (`output.<name>`, `group.<name>`); and
            maybe a tiled one, with its answers, whose tensors' names begin with `tiled_`.
        parity: the parity gate's report: rows compared, and the largest difference of each output.
        quality: the sum of the quantisation report in `quality.json`; empty where all tables are stored as they were trained.
        versions: versions of the packages that made it.
        files: every file but the manifest, by path relative to the artifact, with `/`.
        tower: the part of the trained model that this is; empty for all of it.
    """

    name: str
    version: int
    created: str
    schema: ModelSchema
    tables: tuple[TableEntry, ...]
    programs: tuple[ProgramEntry, ...]
    golden: str
    parity: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, FileEntry]
    quality: Mapping[str, Any] = field(default_factory=dict)
    tower: str = ""
    format_version: int = FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`. Raises ValueError, as `from_plain`."""
        return from_plain(cls, data)


def hash_file(path: Path) -> FileEntry:
    """Read one file once, in blocks."""
    with path.open("rb", buffering=0) as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileEntry(bytes=stream.tell(), sha256=digest.hexdigest())


def find_change(path: Path, entry: FileEntry, *, fast: bool = False) -> str:
    """How a file's bytes differ from an entry, of whose size it is: which of its digests is another; empty where all is well.

    Args:
        fast: leave out the sha256 where there is a faster one that this machine can reckon.
    """
    digests: dict[str, Any] = {} if entry.fast is None else {"XXH3": PiecesDigest()}
    if not fast or not digests:
        digests["sha256"] = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(PIECE_BYTES):
            for digest in digests.values():
                digest.update(block)
    wanted = {"XXH3": entry.fast, "sha256": entry.sha256}
    return next((name for name, digest in digests.items() if digest.hexdigest() != wanted[name]), "")


def hash_tree(root: Path, known: Mapping[str, FileEntry] | None = None) -> dict[str, FileEntry]:
    """Every file below `root` but the manifest, by relative path; those that are `known` already are not read."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path != root / MANIFEST_NAME)
    names, before = [path.relative_to(root).as_posix() for path in found], known or {}
    return {name: before[name] if name in before else hash_file(path) for name, path in zip(names, found, strict=True)}


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _text(plain: Mapping[str, Any]) -> str:
    """What a manifest's file holds; another spelling of the same data is no manifest, so that a change of any byte is seen."""
    return json.dumps({**plain, "digest": _digest(plain)}, indent=1)


def write_manifest(root: Path, data: Mapping[str, Any]) -> None:
    """Write `data` and its digest as `root/manifest.json`: by rename, flushed to disk, so that it is there whole or not at all."""
    text = _text(json.loads(json.dumps(data)))
    draft = root / (MANIFEST_NAME + ".part")
    with draft.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(root / MANIFEST_NAME)


def read_manifest(root: Path) -> dict[str, Any]:
    """The data that `write_manifest` wrote.

    Raises:
        FileNotFoundError: there is no manifest.
        ValueError: it is not JSON, or was changed after it was written.
    """
    return parse_manifest((root / MANIFEST_NAME).read_bytes())


def parse_manifest(text: bytes) -> dict[str, Any]:
    """As `read_manifest`, of a file's bytes.

    Raises:
        ValueError: see there.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or "digest" not in data:
        raise ValueError(f"{MANIFEST_NAME} has no digest")
    del data["digest"]
    if text != _text(data).encode():
        raise ValueError(f"{MANIFEST_NAME} was changed after it was written")
    return data


def manifest_digest(data: Mapping[str, Any]) -> str:
    """The digest of what `read_manifest` gives: names this state of the directory, as the manifest holds the sha256 of all its files."""
    return _digest(data)


def find_damage(
    root: Path, files: Mapping[str, FileEntry], *, contents: bool = True, apart: str = "", compared_later: Collection[str] = (), fast: bool = False
) -> list[str]:
    """What differs between the files listed and the files there: one sentence for each, empty where all is well.

    Args:
        contents: compare digests too, which reads every byte, of several files at once; else only names and sizes.
        apart: a folder in `root` that is not looked into: what it holds describes itself.
        compared_later: files of which only name and size are compared: whoever reads them compares the rest.
        fast: of files that have a faster digest, leave out the sha256.
    """
    tops = [path for path in root.iterdir() if path.name != apart]
    found = tops + [path for top in tops if top.is_dir() and not top.is_symlink() for path in top.rglob("*")]
    there = {path.relative_to(root).as_posix() for path in found if path.is_symlink() or not path.is_dir()} - {MANIFEST_NAME}
    problems = [f"{path} is missing" for path in sorted(set(files) - there)]
    problems += [f"{path} is not listed in the manifest" for path in sorted(there - set(files))]
    listed = sorted(set(files) & there)
    with ThreadPoolExecutor(max(1, min(usable_cpus(), len(listed))), "hash") as pool:
        problems += filter(None, pool.map(lambda path: _damage(root, path, files[path], contents and path not in compared_later, fast), listed))
    return problems


def changed_text(path: str, digest: str = "sha256") -> str:
    """What is said of a file of which a digest is not the one listed."""
    return f"{path} was changed: its {digest} differs"


def size_text(path: str, size: int, entry: FileEntry) -> str:
    """What is said of a file that has another size than the one listed."""
    return f"{path} has {size} bytes, not {entry.bytes}"


def _damage(root: Path, path: str, entry: FileEntry, contents: bool, fast: bool) -> str:
    """What is wrong with one file; empty where all is well."""
    try:
        size = (root / path).stat().st_size
        if size != entry.bytes:
            return size_text(path, size, entry)
        digest = find_change(root / path, entry, fast=fast) if contents else ""
        return changed_text(path, digest) if digest else ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
