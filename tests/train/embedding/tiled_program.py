"""`assemble_tiled` as a program of flat parts."""

import torch
from torch import Tensor, nn

from emberline.train.embedding import EmbeddingGroup, SequenceParts, SideParts, TiledParts


class Program(nn.Module):
    """`assemble_tiled` of dicts of tensors by name: those of the users, of the rows, and what goes with both."""

    def __init__(self, group: EmbeddingGroup, example: TiledParts) -> None:
        super().__init__()
        self.group = group
        self.names = [[list(part) for part in side.sequences] for side in (example.user, example.item)]
        self.places = list(example.places)
        self.one_user = example.rows is None
        self.outputs = list(group.assemble_tiled(example))

    def forward(self, user: dict[str, Tensor], item: dict[str, Tensor], rows: Tensor, places: dict[str, Tensor]) -> dict[str, Tensor]:
        sides = [self._side(values, names) for values, names in zip((user, item), self.names, strict=True)]
        parts = TiledParts(sides[0], sides[1], None if self.one_user else rows, {name: places[name] for name in self.places})
        found = self.group.assemble_tiled(parts)
        return {key: found[key] for key in self.outputs}

    def _side(self, values: dict[str, Tensor], names: list[list[str]]) -> SideParts:
        parts = [{name: values[f"{kind}.{name}"] for name in some} for kind, some in zip(SequenceParts._fields, names, strict=True)]
        return SideParts(values["pooled"], values["dense"], SequenceParts(*parts))


Inputs = tuple[dict[str, Tensor], dict[str, Tensor], Tensor, dict[str, Tensor]]


def flat(parts: TiledParts) -> Inputs:
    """The parts as the program takes them."""

    def side(found: SideParts) -> dict[str, Tensor]:
        named = zip(SequenceParts._fields, found.sequences, strict=True)
        return {"pooled": found.pooled, "dense": found.dense} | {f"{kind}.{name}": value for kind, some in named for name, value in some.items()}

    rows = torch.zeros(0, dtype=torch.int64) if parts.rows is None else parts.rows
    return side(parts.user), side(parts.item), rows, parts.places or {"none": torch.zeros(0, dtype=torch.int64)}
