"""Options of the form `CHOICE` for all of a model's features or tables, and `NAME=CHOICE` for single ones."""

from collections.abc import Mapping, Sequence

from emberline.errors import ExportError
from emberline.train.features.sentences import unknown_name


def read_choices(
    option: str,
    texts: Sequence[str],
    *,
    thing: str,
    names: Sequence[str],
    choice: str,
    choices: Sequence[str],
    refused: Mapping[str, str] | None = None,
) -> tuple[str | None, dict[str, str]]:
    """What is chosen for all, and for single ones.

    Args:
        option: as a user writes it, for messages.
        texts: as they were given.
        thing: what can have a choice: `feature`.
        names: of all of them.
        choice: what is chosen: `policy`.
        choices: all that there are.
        refused: names of other things, which can have none, and why.

    Returns:
        The choice for all, None where nothing is said of all; and the choices by name.

    Raises:
        ExportError: there is no such choice or name, or something is said twice.
    """
    for_all: list[str] = []
    single: dict[str, str] = {}
    for text in texts:
        name, equals, found = text.rpartition("=")
        if found not in choices:
            form = choice.split()[-1].upper()
            raise ExportError(f"{option} {text}: {unknown_name(choice, found, choices)}; write {form} or {thing.upper()}={form}")
        if not equals:
            for_all.append(found)
        elif name in single:
            raise ExportError(f"{option} {text}: {thing} {name!r} has the {choice} {single[name]} already")
        elif name not in names:
            raise ExportError(f"{option} {text}: {(refused or {}).get(name) or unknown_name(thing, name, names)}")
        else:
            single[name] = found
    if len(for_all) > 1:
        raise ExportError(f"{option}: {' and '.join(for_all)} are given for all {thing}s: keep one, or name the {thing}s")
    return (for_all[0] if for_all else None), single
