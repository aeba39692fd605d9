"""Whether gradients that backward brings to the tables are used at once, or kept until somebody decides.

`UpdateGate(hold=True, scale=1024.0)`, given to the tables of a model, makes them keep the gradients of as many backwards of the loss times 1024 as
come. Then `FusedTables.apply_held` updates once, with the sum of all over 1024; or `drop_held` forgets them, where some gradient is not finite.
"""

from dataclasses import dataclass


@dataclass
class UpdateGate:
    """Asked by tables in backward.

    Args:
        hold: keep gradients, for `apply_held` or `drop_held` of the tables; gradients of several backwards add up to one update.
        scale: what the loss was multiplied by: gradients are divided by it.
    """

    hold: bool = False
    scale: float = 1.0
