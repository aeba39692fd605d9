"""Forgetting, in order: look through all versions, write the list, then change one version after the other.

    hold the model's folder ─► look ─► list: the ids' tags, what will be changed ─► each version beside the old one ─► exchange ─► list: done

What a kill leaves is whole: a version is as it was or as it is to be, and the list has the tags from before the first change on, so that exports
leave the ids out from then on, and the next call does the rest, whatever ids it is given.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emberline.building import BUILDING_PREFIX, building_dir, flush_tree, remove_stale_builds
from emberline.delta_manifest import DELTAS_NAME
from emberline.errors import ArtifactError, ExportError
from emberline.export.forget.ledger import Entry, Ledger
from emberline.export.forget.losses import find_losses, open_states
from emberline.export.forget.rewriting import FULL, Rewriting
from emberline.export.forget.samples import find_new_samples
from emberline.export.forget.swap import put_in_place, recover
from emberline.export.forget.tags import KEY_BYTES
from emberline.export.forget.targets import all_targets
from emberline.export.keeping import locked
from emberline.serving.artifact import load_manifest
from emberline.serving.engine import Engine
from emberline.serving.tables import MAPPED
from emberline.serving.versions import list_versions

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How ids are forgotten.

    Args:
        key_file: of the list; None for the one in the model's folder.
        zero_shared: make rows of static tables zeros for all who read them.
        drop_full: leave out programs that have tables inside, which cannot be changed.
        dry_run: tell what would be done, and do nothing.
    """

    key_file: Path | None = None
    zero_shared: bool = False
    drop_full: bool = False
    dry_run: bool = False


def forget(model_dir: Path, feature: str, values: Sequence[str], options: Options = Options(), tell: Tell = lambda line: None) -> Entry:
    """Take ids out of all versions of a model and their deltas, and keep them out of later ones.

    Args:
        model_dir: `<models>/<name>`.
        feature: whose ids: they leave every table that it reads.
        values: the ids as a row has them, each once; at least one.
        options: how.
        tell: takes a line for each thing that is done.

    Returns:
        The entry of the list; of a dry run, what it would be.

    Raises:
        RequestError: there is no such feature, or it refuses a value.
        ExportError: there are no versions, a table's rows are shared, programs have tables inside, or the list or its key cannot be used; nothing
            was changed.
        ArtifactError: a version is damaged, or does not answer as it did. It is as it was; others may have been changed, and the next call goes on.
    """
    if not model_dir.is_dir():
        raise ExportError(f"{model_dir}: there is no such folder; name a model's, <models>/<name>")
    with locked(model_dir, lambda: tell(f"waiting for another who changes {model_dir}")):
        if not options.dry_run:
            recover(model_dir)
            remove_stale_builds(model_dir)
        versions = list_versions(model_dir)
        if not versions:
            raise ExportError(f"{model_dir}: no version (1, 2, ...) is here; name a model's folder, <models>/<name>")
        schemas = {version: load_manifest(model_dir / str(version)).schema for version in versions}
        targets = all_targets(schemas, feature, values, zero_shared=options.zero_shared)
        before = Ledger.read(model_dir, options.key_file)
        if not options.dry_run:
            before = before.with_key(options.key_file)
        elif not before.secret:
            before = replace(before, secret=secrets.token_bytes(KEY_BYTES))  # for this look only
        return _Work(before, versions, options, tell).run(before.entry(feature, targets.tables, targets.ids))


class _Work:
    """One run over all versions.

    Args:
        ledger: as it was.
        versions: that are there.
        options: how.
        tell: takes lines.
    """

    def __init__(self, ledger: Ledger, versions: Sequence[int], options: Options, tell: Tell) -> None:
        self._before, self._versions, self._options, self._tell = ledger, versions, options, tell

    def run(self, entry: Entry) -> Entry:
        known = {(other.feature, tag) for other in self._before.entries for tag in other.tags}
        is_new = not {(entry.feature, tag) for tag in entry.tags} <= known
        ledger = replace(self._before, entries=(*self._before.entries, entry))
        planned = {version: deltas for version in self._versions if (deltas := self._look(ledger, version)) is not None}
        entry = replace(entry, versions={str(version): deltas for version, deltas in planned.items()})
        if not is_new:
            self._tell("all of these ids were forgotten before")
        if not planned:
            self._tell("no version has any of them; later exports leave them out")
        if self._options.dry_run:
            return entry
        entries = self._entries(entry, is_new=is_new)
        ledger = ledger.write(entries)
        for version in planned:
            self._change(ledger, version)
        return ledger.write([replace(other, done=True) for other in entries]).entries[-1]

    def _entries(self, entry: Entry, *, is_new: bool) -> list[Entry]:
        """The list with a new entry; what an entry began that is not done, this one ends, and what it changes is told there too."""
        before = [other if other.done else replace(other, versions={**other.versions, **entry.versions}) for other in self._before.entries]
        told = any(not other.done for other in before) or not entry.versions
        return before if not is_new and told else [*before, entry]

    def _look(self, ledger: Ledger, version: int) -> tuple[int, ...] | None:
        """The deltas of a version that are to be changed; None where nothing of it is."""
        root = self._root(version)
        if not self._options.dry_run:
            _require_no_exports(root)
        plan = _plan(root, ledger, self._options, verify=True)  # so that damage is found before anything is changed
        if plan is None:
            return None
        for loss in plan.losses.values():
            held = [_name(state) for state, count in enumerate(loss.counts) if count]
            self._tell(f"version {version}, table {loss.table}: {loss.ids.numel()} ids in {', '.join(held)}")
        if plan.samples:
            self._tell(f"version {version}: another id in the golden sample of {', '.join(_name(state) for state in plan.samples)}")
        return plan.deltas

    def _change(self, ledger: Ledger, version: int) -> None:
        root = self._root(version)
        plan = _plan(root, ledger, self._options, verify=False)
        assert plan is not None
        try:
            with building_dir(root.parent) as draft:
                plan.write(draft)
                _require_forgotten(draft, ledger, plan)
                flush_tree(draft)
                put_in_place(draft, root)
        except OSError as error:
            raise ExportError(f"{root} cannot be written anew: {error}; it is as it was") from error
        self._tell(f"version {version} was changed" + (f", with its deltas {', '.join(map(str, plan.deltas))}" if plan.deltas else ""))

    def _root(self, version: int) -> Path:
        return self._before.model_dir / str(version)


def _require_no_exports(root: Path) -> None:
    """Refuse to take away the folder that a delta is being written to."""
    deltas = root / DELTAS_NAME
    if deltas.is_dir():
        remove_stale_builds(deltas)
        if building := sorted(deltas.glob(BUILDING_PREFIX + "*")):
            raise ExportError(f"{building[0]}: a delta is being exported; call again when it is there")


def _plan(root: Path, ledger: Ledger, options: Options, *, verify: bool) -> Rewriting | None:
    """What becomes of a version; None where it has nothing of what is listed."""
    states = open_states(root, verify=verify)
    losses, samples = find_losses(states, ledger), find_new_samples(states, ledger)
    if not losses and not samples:
        return None
    programs = {entry.file for state in states for _, entry in state.programs.values() if entry.role == FULL}
    if losses and programs and not options.drop_full:
        raise ExportError(f"{root}: {', '.join(sorted(programs))} has the tables inside, and cannot be changed; --drop-full leaves it out")
    before = states[0].manifest.parity.get("forgotten", {})
    note = {"times": int(before.get("times", 0)) + 1, "last": ledger.entries[-1].time}
    return Rewriting(states, losses, samples, options.drop_full and bool(losses), note)


def _require_forgotten(draft: Path, ledger: Ledger, plan: Rewriting) -> None:
    """Read all that was written, replay new samples, and look for the ids once more.

    Raises:
        ArtifactError: something is wrong.
    """
    for state in plan.samples:
        Engine.open(draft, verify=False, deltas=state, tables=MAPPED)
    states = open_states(draft, verify=True)
    left = [*find_losses(states, ledger), *find_new_samples(states, ledger)]
    if left:
        raise ArtifactError(f"{draft}: ids are still in {', '.join(map(str, left))}; the version is left as it was")


def _name(state: int) -> str:
    return f"delta {state}" if state else "the version"
