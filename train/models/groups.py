"""Which groups a head reads, checked before it is built."""

from collections.abc import Sequence

from emberline.errors import ConfigError
from emberline.schema import GroupKind
from emberline.train.embedding import EmbeddingGroup

VECTORS = (GroupKind.DEEP, GroupKind.WIDE)
"""Kinds of groups that are one vector a row."""


def check_groups(embedding_group: EmbeddingGroup, names: Sequence[str], model: str, kinds: Sequence[GroupKind] = VECTORS) -> None:
    """Refuse groups that are missing or of another kind.

    Args:
        embedding_group: which groups there are.
        names: of those that the head reads.
        model: names the head in messages.
        kinds: that they may be of.

    Raises:
        ConfigError: names each group.
    """
    problems = []
    for name in dict.fromkeys(names):
        if name not in embedding_group.group_names():
            problems.append(f"{model}: there is no feature group {name!r}; the groups are {', '.join(embedding_group.group_names()) or 'none'}")
        elif embedding_group.group_type(name) not in kinds:
            wanted = " or ".join(kind.value for kind in kinds)
            problems.append(f"{model}: feature group {name!r} must be {wanted}, found {embedding_group.group_type(name).value}")
    if problems:
        raise ConfigError(problems)


def check_all_read(embedding_group: EmbeddingGroup, names: Sequence[str], model: str) -> None:
    """Refuse groups that the head does not read: their tables would never learn.

    Raises:
        ConfigError: names each group.
    """
    unread = [name for name in embedding_group.group_names() if name not in names]
    if unread:
        raise ConfigError(f"{model}: no part of the model reads the feature groups {', '.join(unread)}; take them out, or name them as an input")
