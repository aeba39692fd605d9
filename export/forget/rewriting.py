"""A version written anew in a hidden folder, without some ids: files that change are written, all others linked, as nobody ever writes to them."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from emberline.delta_manifest import DELTAS_NAME, DeltaManifest, TableChange
from emberline.export.forget.losses import TableLoss
from emberline.export.forget.samples import NewSamples
from emberline.export.golden import write_golden
from emberline.export.remap import write_remap_file
from emberline.manifest import ArtifactManifest, FileEntry, ProgramEntry, RemapEntry, hash_file, manifest_digest, read_manifest, write_manifest
from emberline.schema import TableKind
from emberline.serving.artifact import Artifact
from emberline.serving.deltas import Delta
from emberline.serving.files import InBlocks, map_tensors, write_tensors
from emberline.serving.hashed_file import HashedFile
from emberline.serving.rows_on_disk import RowsOnDisk

FULL = "full"
_COPY_BYTES = 4 << 20
_BLOCK_BYTES = 4 << 20
Manifest = TypeVar("Manifest", ArtifactManifest, DeltaManifest)


@dataclass(frozen=True, eq=False)
class Rewriting:
    """What a version becomes.

    Args:
        states: the version as it is, and the same with one delta more each.
        losses: what its tables lose, by name.
        samples: new golden samples, by state.
        drop_full: leave out the programs that have tables inside.
        note: what the manifest says of it.
    """

    states: Sequence[Artifact]
    losses: Mapping[str, TableLoss]
    samples: Mapping[int, NewSamples]
    drop_full: bool
    note: Mapping[str, Any]

    @property
    def deltas(self) -> tuple[int, ...]:
        """The numbers of the deltas of which more changes than what they follow."""
        numbers = range(1, len(self.states))
        return tuple(
            state
            for state in numbers
            if state in self.samples or any(_changes_in(self.states[state].deltas[-1], loss, state) for loss in self.losses.values())
        )

    def write(self, draft: Path) -> None:
        """Write the version and its deltas.

        Args:
            draft: an empty folder.

        Raises:
            OSError: it cannot be written.
        """
        base = self.states[0]
        files, maps = self._write_base(draft)
        tables = tuple(replace(entry, remap=maps.get(entry.table, entry.remap)) for entry in base.manifest.tables)
        previous = digest = _written(draft, self._completed(base.root, draft, replace(base.manifest, tables=tables), files, 0))
        for number, delta in enumerate(self.states[-1].deltas, 1):
            previous = self._write_delta(draft / DELTAS_NAME / str(number), delta, number, digest, previous)

    def _write_base(self, draft: Path) -> tuple[dict[str, FileEntry | None], dict[str, RemapEntry]]:
        """The files of tables and maps that change, and the entries of these maps by table."""
        base, files, maps = self.states[0], dict[str, FileEntry | None](), dict[str, RemapEntry]()
        for entry in base.manifest.tables:
            loss = self.losses.get(entry.table)
            if loss is None:
                continue
            zeroed = loss.zeroed(0)
            if bool(zeroed.any()):
                files[entry.file] = _copy_patched(base.root / entry.file, _made(draft / entry.file), loss.rows[zeroed], loss.after[0][zeroed])
            if entry.remap is not None and loss.counts[0]:
                spec = next(spec for spec in base.schema.tables if spec.name == entry.table)
                parts, gone = base.ids[entry.table], torch.isin(base.ids[entry.table].raw_ids, loss.ids)
                parts = replace(parts, raw_ids=parts.raw_ids[~gone], rows=parts.rows[~gone], lines=None)
                spare = entry.remap.spare_rows + (loss.counts[0] if spec.kind is TableKind.DYNAMIC else 0)
                maps[entry.table], files[entry.remap.file] = write_remap_file(parts, spec, _made(draft / entry.remap.file), spare)
        return files, maps

    def _completed(self, root: Path, draft: Path, manifest: Manifest, written: Mapping[str, FileEntry | None], state: int) -> Manifest:
        """Add the sample and all files that stay as they are; returns the manifest with these."""
        files: dict[str, FileEntry] = {path: entry for path, entry in written.items() if entry is not None}
        note = dict(self.note)
        if state in self.samples:
            new = self.samples[state]
            write_golden(_folder(draft), new.sample, new.tiled)
            files[manifest.golden] = hash_file(draft / manifest.golden)
            note["golden"] = "another id in the place of those forgotten; answers of the engine, not of the trained model"
        dropped = {path for entry in manifest.programs if self._is_dropped(entry) for path in (entry.file, entry.data_file)}
        others = dropped | {*written, *files}
        kept = {path: entry for path, entry in manifest.files.items() if path not in others}
        for path in kept:
            _link(root / path, _made(draft / path))
        programs = tuple(entry for entry in manifest.programs if not self._is_dropped(entry))
        return replace(manifest, files={**kept, **files}, programs=programs, parity={**manifest.parity, "forgotten": note})

    def _is_dropped(self, entry: ProgramEntry) -> bool:
        return self.drop_full and entry.role == FULL

    def _write_delta(self, draft: Path, delta: Delta, state: int, base: str, previous: str) -> str:
        """Write one delta; returns its manifest's digest."""
        changes, written = {change.table: self._counted(change, state) for change in delta.manifest.tables}, dict[str, FileEntry | None]()
        for file in dict.fromkeys(name for change in changes.values() for name in _files_of(change)):
            mine = [change for change in delta.manifest.tables if file in _files_of(change)]
            if not any(change.table in self.losses and _changes_in(delta, self.losses[change.table], state) for change in mine):
                continue
            tensors: dict[str, Tensor | InBlocks] = dict(map_tensors(delta.root / file))
            for change in mine:
                if change.table in self.losses:
                    changes[change.table] = _Edit(self.losses[change.table], state, changes[change.table], file).apply(tensors)
            tensors = dict(sorted(tensors.items(), key=lambda item: item[1].dtype.itemsize, reverse=True))
            written[file] = write_tensors(_made(draft / file), tensors) if tensors else None
        tables = tuple(change for change in changes.values() if change.file is not None or change.ids is not None)
        manifest = self._completed(delta.root, draft, delta.manifest, written, state)
        return _written(draft, replace(manifest, tables=tables, base=base, previous=previous))

    def _counted(self, change: TableChange, state: int) -> TableChange:
        """With as many ids afterwards as there will be, also where those that go came with an earlier delta."""
        if change.ids is None or change.table not in self.losses:
            return change
        return replace(change, ids=replace(change.ids, num_ids=change.ids.num_ids - self.losses[change.table].counts[state]))


@dataclass(frozen=True, eq=False)
class _Edit:
    """What one table loses in one file of a delta.

    Args:
        loss: of the table.
        state: the delta's number.
        change: what the manifest says of the table.
        file: which file.
    """

    loss: TableLoss
    state: int
    change: TableChange
    file: str

    def apply(self, tensors: dict[str, Tensor | InBlocks]) -> TableChange:
        """Change the tensors of the file; returns what the manifest is to say."""
        change = self.change
        if change.ids is not None and change.ids.file == self.file:
            change = self._without_ids(change, tensors)
        if change.file == self.file or (change.file is None and self._has_new_rows()):
            change = self._with_rows(change, tensors)
        return change

    def _has_new_rows(self) -> bool:
        return bool(self.loss.moved(self.state).any())

    def _without_ids(self, change: TableChange, tensors: dict[str, Tensor | InBlocks]) -> TableChange:
        assert change.ids is not None
        names = [f"{change.prefix}{name}" for name in ("came_ids", "came_rows", "went_ids")]
        came, rows, went = (_tensor(tensors[name]) for name in names)
        keep = ~torch.isin(came, self.loss.ids)
        left = (came[keep], rows[keep], went[~torch.isin(went, self.loss.ids)])
        for name, tensor in zip(names, left, strict=True):
            tensors[name] = tensor
        if not left[0].numel() and not left[2].numel():
            for name in names:
                del tensors[name]
            return replace(change, ids=None)
        return replace(change, ids=replace(change.ids, came=left[0].numel(), went=left[2].numel()))

    def _with_rows(self, change: TableChange, tensors: dict[str, Tensor | InBlocks]) -> TableChange:
        """Rows that the ids owned are there where they are others than before, all others as they were."""
        loss, moved = self.loss, self.loss.moved(self.state)
        width, dtype = loss.after[0].shape[1], loss.after[0].dtype
        at, held = f"{change.prefix}places", f"{change.prefix}rows"
        places = _tensor(tensors.pop(at, torch.empty(0, dtype=torch.int64)))
        rows = _tensor(tensors.pop(held, torch.empty(0, width, dtype=dtype)))
        keep = ~torch.isin(places, loss.rows)
        both, order = torch.cat([places[keep], loss.rows[moved]]).sort()
        if not both.numel():
            return replace(change, file=None, rows=0)
        sources = torch.cat([keep.nonzero().flatten(), -1 - moved.nonzero().flatten()])[order]
        tensors[at] = both
        tensors[held] = InBlocks((both.numel(), width), dtype, _gathered(sources, rows, loss.after[self.state]))
        return replace(change, file=self.file, rows=both.numel())


def _gathered(sources: Tensor, rows: Tensor, others: Tensor) -> Iterator[Tensor]:
    """Rows of two tensors, block by block: row s of `rows`, or for a negative source row -1 - s of `others`."""
    step = max(1, _BLOCK_BYTES // max(1, others.shape[1] * others.element_size()))
    for part in torch.split(sources, step):
        block = torch.empty(part.numel(), others.shape[1], dtype=others.dtype)
        block[part >= 0] = rows[part[part >= 0]]
        block[part < 0] = others[-1 - part[part < 0]]
        yield block


def _changes_in(delta: Delta, loss: TableLoss, state: int) -> bool:
    """Whether a delta says anything of the ids of a table that go, or of their rows."""
    change = next((change for change in delta.manifest.tables if change.table == loss.table), None)
    if change is None:
        return False
    found: dict[str, Tensor] = {}
    for file in _files_of(change):
        found |= map_tensors(delta.root / file)
    lists = [found.get(f"{change.prefix}{name}") for name in ("came_ids", "went_ids")]
    if any(ids is not None and bool(torch.isin(ids, loss.ids).any()) for ids in lists):
        return True
    places = found.get(f"{change.prefix}places", torch.empty(0, dtype=torch.int64))
    written = places[torch.isin(places, loss.rows)]
    return not torch.equal(written, loss.rows[loss.moved(state)]) or bool(loss.zeroed(state)[torch.isin(loss.rows, written)].any())


def _files_of(change: TableChange) -> list[str]:
    return [file for file in (change.file, change.ids.file if change.ids is not None else None) if file is not None]


def _tensor(found: Tensor | InBlocks) -> Tensor:
    assert isinstance(found, Tensor)
    return found


def _written(draft: Path, manifest: ArtifactManifest | DeltaManifest) -> str:
    write_manifest(draft, manifest.to_dict())
    return manifest_digest(read_manifest(draft))


def _copy_patched(source: Path, target: Path, rows: Tensor, values: Tensor) -> FileEntry:
    """Copy a table's file with other bytes in some of its rows.

    Args:
        source: of the table.
        target: where it is written.
        rows: int64 [T], ascending.
        values: [T, width].
    """
    layout, data = RowsOnDisk.find(source).file, values.contiguous().view(torch.uint8).numpy()
    starts = layout.start + rows.numpy() * layout.row_bytes
    with source.open("rb", buffering=0) as stream, HashedFile(target) as writer:
        first = 0
        while block := bytearray(stream.read(_COPY_BYTES)):
            for place in range(*np.searchsorted(starts, (first - layout.row_bytes + 1, first + len(block))).tolist()):
                start, own = int(starts[place]), data[place].tobytes()
                low, high = max(start, first), min(start + len(own), first + len(block))
                block[low - first : high - first] = own[low - start : high - start]
            first += len(block)
            writer.write(block)
        return writer.close()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _made(path: Path) -> Path:
    """The path; its folder is made."""
    _folder(path.parent)
    return path


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
