"""A user's file that says which tensor of a TorchEasyRec checkpoint goes into which part of our model.

    # ours                          theirs
    head.deep_mlp.*                 model.deep_mlp.*
    head.output.weight              model.output_mlp.weight
    tables.item_in_sequence         model.embedding_group.seq_emb_impls.__BASE__.ec_dict.8.embeddings.item_emb.weight

One pair a line; `*` stands for any run of characters, the same on both sides; the first line that fits a part counts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from emberline.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """One line.

    Args:
        number: of the line, from 1.
        ours: fits whole names of parts.
        theirs: pieces of their name; what each `*` of ours stood for goes between them.
    """

    number: int
    ours: re.Pattern[str]
    theirs: tuple[str, ...]

    def name_for(self, part: str) -> str | None:
        """Their name, or None where the line is not about this part."""
        found = self.ours.fullmatch(part)
        if found is None:
            return None
        return self.theirs[0] + "".join(text + piece for text, piece in zip(found.groups(), self.theirs[1:], strict=True))


@dataclass(frozen=True)
class NameMap:
    """A whole file.

    Args:
        rules: its lines.
        source: the file.
    """

    rules: tuple[Rule, ...] = ()
    source: str = ""

    def names(self, parts: Iterable[str]) -> dict[str, str]:
        """Part -> their name, for the parts that some line is about."""
        found: dict[str, str] = {}
        for part in parts:
            name = next((name for rule in self.rules if (name := rule.name_for(part)) is not None), None)
            if name is not None:
                found[part] = name
        return found

    def problems(self, parts: Iterable[str], mapped: Mapping[str, str], stored: Iterable[str]) -> list[str]:
        """Lines about no part, and names that the checkpoint does not have."""
        there, all_parts = set(stored), list(parts)
        unused = [rule for rule in self.rules if not any(rule.name_for(part) is not None for part in all_parts)]
        found = [f"{self.source} line {rule.number}: the model has no part of that name" for rule in unused]
        unknown = [(part, name) for part, name in mapped.items() if name not in there]
        return found + [f"{name}: the checkpoint has no tensor of that name; {self.source} gives it to {part}" for part, name in unknown]


def read_name_map(path: Path) -> NameMap:
    """Read the file.

    Raises:
        ConfigError: it cannot be read, or a line is not a pair; names every such line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the name map cannot be read: {error}", str(path)) from error
    rules: list[Rule] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        columns = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()  # some of their names have a # inside
        if not columns:
            continue
        if len(columns) != 2:
            problems.append(f"line {number}: must be our name and theirs with a space between them, found {len(columns)} names")
        elif columns[0].count("*") != columns[1].count("*"):
            problems.append(f"line {number}: both names must have as many *, found {columns[0].count('*')} and {columns[1].count('*')}")
        else:
            rules.append(Rule(number, re.compile("(.*)".join(map(re.escape, columns[0].split("*")))), tuple(columns[1].split("*"))))
    if problems:
        raise ConfigError(problems, str(path))
    return NameMap(tuple(rules), str(path))
