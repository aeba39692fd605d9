"""What of a TorchEasyRec checkpoint goes where: names to parts, the user's wishes included."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from emberline.train.checkpoint.tensors import TensorInfo
from emberline.train.interop.matching import Match, match_parts
from emberline.train.interop.name_map import NameMap
from emberline.train.interop.parts import HEAD, part_of

_IN_GROUP = re.compile(r"(?P<prefix>(?:.*?\.)?)(?P<name>(?:(?:seq_)?emb_impls|_group_name_to_seq_encoders)\..+)")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user says of it.

    Args:
        map: names for parts that the rules do not know.
        embeddings_only: whether the head starts afresh.
        skip: patterns of their names that are left out.
    """

    map: NameMap = field(default_factory=NameMap)
    embeddings_only: bool = False
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was decided.

    Args:
        match: part -> their names; and problems.
        groups: where their model holds embedding groups, such as `model.embedding_group`.
        mapped: parts whose name the user gave.
        fresh: parts that start afresh.
        left_out: their names that are not read.
    """

    match: Match
    groups: tuple[str, ...]
    mapped: tuple[str, ...]
    fresh: tuple[str, ...]
    left_out: tuple[str, ...]


def select(needed: Mapping[str, TensorInfo], stored: Mapping[str, TensorInfo], others: Sequence[str], wishes: Wishes) -> Selection:
    """Decide for every part of the model, and for every name of the checkpoint.

    Args:
        needed: the model's parts.
        stored: the checkpoint's tensors by name.
        others: its names of what is no tensor.
        wishes: the user's.
    """
    skipped = [name for name in (*stored, *others) if any(fnmatchcase(name, pattern) for pattern in wishes.skip)]
    problems = [f"--skip {pattern}: fits no name" for pattern in wishes.skip if not any(fnmatchcase(name, pattern) for name in skipped)]
    kept = {name: info for name, info in stored.items() if name not in set(skipped)}
    inside = {name: found for name in kept if (found := _IN_GROUP.fullmatch(name))}
    mapped = wishes.map.names(needed)
    problems += wishes.map.problems(needed, mapped, stored)
    problems += _contradictions(mapped, set(skipped), wishes)
    parts = {name: part_of(inside[name]["name"]) if name in inside else None for name in kept}
    taken = set(mapped.values())
    automatic = {name: info for name, info in kept.items() if name not in taken and not (wishes.embeddings_only and name not in inside)}
    fresh = [part for part in needed if wishes.embeddings_only and part.startswith(f"{HEAD}.")]
    match = match_parts({part: info for part, info in needed.items() if part not in mapped and part not in fresh}, automatic, parts)
    for part, name in mapped.items():
        if name in stored:
            one = match_parts({part: needed[part]}, {name: stored[name]}, {name: part})
            match.sources.update(one.sources)
            problems += one.problems
    unread = [name for name in others if name not in skipped and not (wishes.embeddings_only and not _IN_GROUP.fullmatch(name))]
    problems += match.problems + [f"{name}: is no tensor; leave it out with --skip" for name in unread]
    return Selection(
        match=Match(match.sources, problems),
        groups=tuple(sorted({found["prefix"].rstrip(".") for found in inside.values()})),
        mapped=tuple(mapped),
        fresh=tuple(fresh),
        left_out=(*skipped, *(name for name in kept if name not in automatic and name not in taken)),
    )


def _contradictions(mapped: Mapping[str, str], skipped: set[str], wishes: Wishes) -> list[str]:
    found = [f"{name}: --skip leaves it out, {wishes.map.source} gives it to {part}" for part, name in mapped.items() if name in skipped]
    if wishes.embeddings_only:
        head = [part for part in mapped if part.startswith(f"{HEAD}.")]
        found += [f"{part}: starts afresh with --embeddings-only, but {wishes.map.source} gives it {mapped[part]}" for part in head]
    return found
