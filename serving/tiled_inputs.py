"""What a program for tiled requests takes, of what was looked up of either side.

Letters: U users, B rows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from emberline.program_inputs import tiled_streams
from emberline.schema import ModelSchema


class TiledInputMaker:
    """Makes the inputs that `tiled_inputs` lists, for one model.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self._streams = tiled_streams(schema)

    def __call__(self, user: Mapping[str, Tensor], item: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """The inputs of a batch, by name.

        Args:
            user: what `program_inputs` lists of the schema's user part, of U users; those without rows may be among them.
            item: the same of its other part, of B rows.
            rows: int64 [B], the user of each row.
        """
        inputs = {f"user.{name}": user[name] for name in ("pooled", "dense")} | {name: item[name] for name in ("pooled", "dense")} | {"rows": rows}
        inputs |= {name: tensor for side in (user, item) for name, tensor in side.items() if name.startswith(("steps.", "lengths."))}
        for stream in self._streams:
            if stream.whole.padded:
                # Of both sides, the longer: users without rows may have more steps than any row.
                found = [side[f"positions.{name}"] for side, name in ((user, stream.user), (item, stream.item)) if name is not None]
                inputs[f"positions.{stream.whole.name}"] = max(found, key=len)
            if stream.jagged and stream.user is not None:
                inputs[f"places.{stream.user}"] = step_places(user[f"lengths.{stream.user}"], rows)
        return inputs


def step_places(lengths: Tensor, rows: Tensor) -> Tensor:
    """Which of the users' steps each step of the rows is, int64 [N], row after row.

    Args:
        lengths: int64 [U], steps of each user.
        rows: int64 [B], the user of each row.
    """
    counts = lengths[rows]
    # Where a row's steps begin among the users' less where they begin among the rows', once for each of them.
    shifts = (lengths.cumsum(0) - lengths)[rows] - (counts.cumsum(0) - counts)
    return torch.arange(int(counts.sum()), device=rows.device) + torch.repeat_interleave(shifts, counts)
