"""Where a feature's raw values come from: `side:column` texts."""

from emberline.train.features.sentences import unknown_name

SIDES = ("user", "item", "context")

_OF_ROWS = frozenset(("item", "context", "const"))
"""Those whose columns have a value for each row, and not one for each user."""


def read_expression(text: str, encoded: bool = False) -> tuple[str, str]:
    """`side:column` as side and column; without a side, the side is empty.

    Args:
        text: as a config writes it.
        encoded: the data is encoded already: no column is read, so results of other features and constants are understood, with an empty side.

    Raises:
        ValueError: an unknown side, an empty column, or a form that reads something else than a column.
    """
    side, colon, column = text.rpartition(":")
    side, column = side.strip(), column.strip()
    if side in ("feature", "const"):
        if encoded:
            return "", column
        raise ValueError(
            f"expression {text!r}: the side {side!r} is not supported yet; read a column as side:column with a side of {', '.join(SIDES)}"
        )
    if not column:
        raise ValueError(f"expression {text!r} names no column; write side:column")
    if colon and side not in SIDES:
        raise ValueError(f"expression {text!r}: " + unknown_name("side", side, SIDES))
    return side, column


def side_of(sides: list[str]) -> str:
    """Who a feature belongs to, as `FeatureSpec.side` has it.

    Args:
        sides: what its raw columns have in front of the colon; empty where there is none.

    Returns:
        The side that all have; `item` where some have a value for each row; empty where that is not known.
    """
    if len(set(sides)) == 1 and sides[0] in SIDES:
        return sides[0]
    return "" if _OF_ROWS.isdisjoint(sides) else "item"
