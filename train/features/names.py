"""Which names features, tables and groups may have: they become keys, file names and parts of parameter names."""

import re

from torch import nn

from emberline.train.features.sentences import Absence

_NAME = re.compile(r"[\w-]+")
_MOST_BYTES = 200
_TAKEN = frozenset(dir(nn.ModuleDict())) | {"training"}


def name_problem(name: str) -> str:
    """What is wrong with a name, as the end of a sentence; empty where it is fine."""
    if not name:
        return "is missing"
    if not _NAME.fullmatch(name):
        return f"{name!r} may only have letters, digits, '_' and '-'; dots, '@', slashes and blanks have meanings of their own"
    if len(name.encode()) > _MOST_BYTES:
        return f"{name!r} is longer than {_MOST_BYTES} bytes"
    return ""


def named_problem(field: str, name: str) -> str:
    """What is wrong with the name in `field`, as a sentence; empty where it is fine."""
    problem = name_problem(name)
    if not problem:
        return ""
    return f"{field} {problem}" if name else Absence(f"{field} {problem}")


def table_name_problem(name: str) -> str:
    """As `name_problem`, for a table's name, which is also an attribute of a torch module."""
    if name in _TAKEN:
        return f"{name!r} is a name that torch keeps for itself; choose another, such as {name + '_emb'!r}"
    return name_problem(name)
