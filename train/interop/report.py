"""What an import says of itself."""

from collections.abc import Iterable, Mapping, Sequence

from emberline.train.interop.id_maps import IdMap
from emberline.train.interop.parts import DENSE_EMBEDDINGS, ENCODERS, HEAD, ID_MAPS, TABLES
from emberline.train.interop.selection import Selection


def advice(problems: Sequence[str]) -> list[str]:
    """What a user can do about names that do not fit."""
    if not any(": missing" in text or ": surplus" in text for text in problems):
        return []
    found = "to go on: name pairs in a file for --map, leave names of theirs out with --skip"
    return [found + ", or let the head start afresh with --embeddings-only" * any(text.startswith(f"{HEAD}.") for text in problems)]


def selection_lines(selection: Selection) -> list[str]:
    """Where each part of the model comes from."""
    sources = selection.match.sources
    counts = {kind: sum(part.startswith(f"{kind}.") for part in sources) for kind in (TABLES, DENSE_EMBEDDINGS, ENCODERS, HEAD)}
    maps = len({part.split(".")[1] for part in sources if part.startswith(f"{ID_MAPS}.")})
    lines = [
        f"embedding group at {' and '.join(group or 'the top' for group in selection.groups)}: {counts[TABLES]} tables "
        f"({len(selection.match.copies)} further copies, equal), {maps} id maps, {counts[DENSE_EMBEDDINGS]} tensors of dense embeddings, "
        f"{counts[ENCODERS]} of encoders",
        f"head: {counts[HEAD]} tensors, by the map" if counts[HEAD] or not selection.fresh else "",
        f"head: STARTS AFRESH, untrained: {', '.join(selection.fresh)}" if selection.fresh else "",
        f"left out of the checkpoint: {', '.join(selection.left_out)}" if selection.left_out else "",
    ]
    return [line for line in lines if line]


def id_map_lines(id_maps: Mapping[str, IdMap]) -> list[str]:
    """How many ids each map has, and what became of several ranks' fallback rows."""
    lines = []
    for table, found in id_maps.items():
        text = f"id map of table {table}: {found.num_ids} ids, each with its row"
        if found.num_repeated:
            text += f"; {found.num_repeated} ids stood twice: the row of the highest count or latest access is kept"
        if found.freed:
            text += (
                f"; trained on {len(found.freed) + 1} ranks: ids without a row now all read the last rank's fallback row, "
                f"{found.state['rows'][-1]}; the other ranks' fallback rows {', '.join(map(str, found.freed))} become free"
            )
        lines.append(text)
    return lines


def first_names(names: Iterable[str]) -> list[str]:
    """A few of many names."""
    found = list(names)
    return found[:3] + ["..."] * (len(found) > 3)
