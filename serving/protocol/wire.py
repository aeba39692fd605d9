"""The tensors of a model on the wire: which inputs and outputs there are, of which datatype and shape.

A leading 1 (Triton's batch dimension) comes before each shape: a request is one batch item, whatever its number of rows.
"""

from dataclasses import dataclass

from emberline.schema import GroupSpec, ModelSchema
from emberline.serving.engine import KNOWN, LOOKUP_PREFIX
from emberline.serving.request_steps import may_be_left_out
from emberline.serving.request_tile import tile_refusal

TILE_INPUTS = ("rows_per_user", "user_dense")
"""The inputs that only tiled requests have."""


@dataclass(frozen=True)
class WireTensor:
    """A name, the datatypes it may have (the first is the declared one), and its shape after the leading 1; -1 is any size."""

    name: str
    datatypes: tuple[str, ...]
    dims: tuple[int, ...]
    optional: bool = False


def wire_inputs(schema: ModelSchema) -> tuple[WireTensor, ...]:
    """The inputs that a model has, under the names of `PackedRequest`'s fields.

    `ids` and `lengths` for sparse features, `weights` where a feature is weighted, `dense` for dense ones; `steps` for sequences, `step_lengths` for
    sparse and `dense_steps` for dense ones. Models whose features have sides take tiled requests too: `rows_per_user`, and `user_dense` where a dense
    feature is the user's.
    """
    tiled = tile_refusal(schema) is None
    found: list[WireTensor] = []
    if schema.sparse_features:
        found.append(WireTensor("ids", ("INT64", "INT32"), (-1,)))
        found.append(WireTensor("lengths", ("INT32", "INT64"), (-1,)))
    if schema.has_weights:
        found.append(WireTensor("weights", ("FP32",), (-1,), optional=True))
    if schema.dense_dim:
        found.append(WireTensor("dense", ("FP32",), (-1,), optional=tiled and schema.part(per_user=False).dense_dim == 0))
    if schema.sequences:
        found.append(WireTensor("steps", ("INT32", "INT64"), (-1,), optional=may_be_left_out(schema.sequences)))
    if schema.sparse_sequences:
        found.append(WireTensor("step_lengths", ("INT32", "INT64"), (-1,), optional=may_be_left_out(schema.sparse_sequences)))
    if schema.dense_sequences:
        found.append(WireTensor("dense_steps", ("FP32",), (-1,)))
    if tiled:
        found.append(WireTensor("rows_per_user", ("INT32", "INT64"), (-1,), optional=True))
        if schema.part(per_user=True).dense_dim:
            found.append(WireTensor("user_dense", ("FP32",), (-1,), optional=True))
    return tuple(found)


def wire_outputs(schema: ModelSchema) -> tuple[WireTensor, ...]:
    """The model's outputs ([B] or [B, width]), `lookup.<group>` as `GroupSpec` says for each group, and `known` ([N]) where there are ids."""
    found = [WireTensor(output.name, ("FP32",), (-1, output.width) if output.width else (-1,)) for output in schema.outputs]
    found += [_group(group) for group in schema.groups]
    if schema.sparse_features:
        found.append(WireTensor(KNOWN, ("BOOL",), (-1,)))
    return tuple(found)


def _group(group: GroupSpec) -> WireTensor:
    if group.is_lengths:
        return WireTensor(LOOKUP_PREFIX + group.name, ("INT64",), (-1,))
    return WireTensor(LOOKUP_PREFIX + group.name, ("FP32",), (-1, -1, group.dim) if group.is_padded else (-1, group.dim))
