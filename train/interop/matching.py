"""Which tensor of a state goes into which part of a model, with everything that does not fit."""

from collections.abc import Mapping
from dataclasses import dataclass

from emberline.train.checkpoint.tensors import TensorInfo, dtype_name
from emberline.train.interop.parts import fits, is_redundant


@dataclass(frozen=True)
class Match:
    """What was found.

    Args:
        sources: part -> the names that stand for it, one or, of a table with copies, several.
        problems: one sentence for each name that is surplus or does not fit, then for each part that is missing.
    """

    sources: dict[str, list[str]]
    problems: list[str]

    @property
    def copies(self) -> list[tuple[str, str]]:
        """Pairs of names that must hold the same."""
        return [(names[0], other) for names in self.sources.values() for other in names[1:]]


def match_parts(needed: Mapping[str, TensorInfo], stored: Mapping[str, TensorInfo], parts: Mapping[str, str | None]) -> Match:
    """Compare what a model needs with what a state has.

    Args:
        needed: every part of the model.
        stored: what the state has, by its names.
        parts: the part that each name stands for; None: it stands for none.
    """
    sources: dict[str, list[str]] = {}
    problems: list[str] = []
    named: set[str] = set()
    for name, info in stored.items():
        part = parts[name]
        if part is not None and is_redundant(part, needed):
            continue
        if part is None or part not in needed:
            problems.append(f"{name}: surplus, the model has nothing of that name")
            continue
        named.add(part)
        if not fits(part, info, needed[part]):
            problems.append(f"{name}: has shape {list(info.shape)}, the model needs {list(needed[part].shape)}")
        elif info.dtype != needed[part].dtype:
            problems.append(f"{name}: is {_short(info)}, the model needs {_short(needed[part])}")
        else:
            sources.setdefault(part, []).append(name)
    problems += [f"{part}: missing" for part in needed if part not in named]
    return Match(sources, problems)


def disagreement(name: str, other: str) -> str:
    """The sentence for two copies of one table that differ."""
    return f"{other}: disagrees with {name}, another copy of the same; keep one of them"


def _short(info: TensorInfo) -> str:
    return dtype_name(info.dtype)
