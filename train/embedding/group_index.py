"""What there is to know about groups without a batch: names, kinds, widths.

Names that every question takes:

| name | stands for |
|---|---|
| `G` | a group of the config, or a sequence group nested in one |
| `G.query`, `G.sequence` | that part of a SEQUENCE, JAGGED_SEQUENCE or nested group |
"""

from collections.abc import Mapping, Sequence

from emberline.errors import ConfigError
from emberline.schema import GroupKind
from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH, Columns, GroupColumns, SequenceColumns
from emberline.train.embedding.registry import TableRegistry

Widths = dict[str, int]


class GroupIndex:
    """Answers questions about a model's groups.

    Args:
        registry: the groups.
        encoder_dims: for each DEEP group the widths of its encoders' outputs, in order.
    """

    def __init__(self, registry: TableRegistry, encoder_dims: Mapping[str, Sequence[int]]) -> None:
        self.names = registry.group_order
        self._groups = {group.name: group for group in registry.groups}
        self._sequences = {group.name: group for group in registry.sequence_groups}
        self._encoder_dims = encoder_dims

    @property
    def keys(self) -> list[str]:
        """The tensors of the config's groups, sorted; a sequence group counts with all three, whether it has query features or not."""
        found = []
        for name in self.names:
            parts = (QUERY, SEQUENCE, SEQUENCE_LENGTH)
            found += [name] if name in self._groups else [f"{name}.{part}" for part in parts]
        return sorted(found)

    def kind(self, name: str) -> GroupKind:
        """The kind of the group that a name, or the part before its dot, stands for.

        Raises:
            ConfigError: there is no such group.
        """
        return self._find(name)[0].kind

    def widths(self, name: str) -> Widths:
        """The width of each feature's part, then of each encoder's output as `G_seq_encoder_0`, in order.

        Raises:
            ConfigError: there is no such group, or the name is that of its number of steps.
        """
        group, part = self._find(name)
        if part == SEQUENCE_LENGTH:
            raise ConfigError(f"{name!r} has no width: it is one number a row; ask for {group.name!r}, or its {QUERY} or {SEQUENCE}")
        if isinstance(group, GroupColumns):
            encoders = {f"{group.name}_seq_encoder_{number}": dim for number, dim in enumerate(self._encoder_dims.get(group.name, ()))}
            return _widths(group) | encoders
        if part == QUERY:
            return _widths(group.query)
        if part == SEQUENCE:
            return _widths(group.sequence)
        return dict(zip(group.features, group.dims, strict=True))

    def _find(self, name: str) -> tuple[GroupColumns | SequenceColumns, str]:
        head, _, part = name.partition(".")
        if part in (QUERY, SEQUENCE, SEQUENCE_LENGTH) and head in self._sequences:
            return self._sequences[head], part
        found = self._groups.get(head) or self._sequences.get(head)
        if found is None:
            raise ConfigError(f"there is no feature group {name!r}; the groups are {', '.join([*self.names, *self._nested()]) or 'none'}")
        return found, ""

    def _nested(self) -> list[str]:
        return [name for name, group in self._sequences.items() if group.parent and name not in self.names]


def _widths(columns: Columns) -> Widths:
    return dict(zip(columns.features, columns.dims, strict=True))
