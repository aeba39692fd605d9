"""Weights that TorchEasyRec trained, into an `EmbeddingGroup` of the same config.

Its state dict keeps one copy of a table for each data group and kind of group (`emb_impls.__BASE__.ebc...`, `..._user` twins under
input tiling, `seq_emb_impls...`); here a name is one table, so the copies must agree.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.interop.id_maps import IdMap, assemble_id_map
from emberline.train.interop.matching import disagreement, match_parts
from emberline.train.interop.parts import ID_MAPS, embedding_parts, infos, part_of, table_parts
from emberline.train.zch import zch_modules

if TYPE_CHECKING:
    from emberline.train.embedding import EmbeddingGroup


def load_torcheasyrec_state(group: "EmbeddingGroup", state: Mapping[str, Any]) -> None:
    """Copy a TorchEasyRec state dict into an unsharded `group`: tables, id maps, AutoDis and MLP weights, encoders.

    Args:
        group: built from the same features and groups.
        state: the state of the reference's EmbeddingGroup by its names (`emb_impls.__BASE__.ebc.embedding_bags.<table>.weight`, ...);
            tensors or arrays.

    Raises:
        CheckpointError: with every name that is missing, surplus, of another shape or type, or a copy that disagrees. Nothing is loaded then.
    """
    tensors = {name: torch.as_tensor(value) for name, value in state.items()}
    into = table_parts(group) | embedding_parts(group)
    match = match_parts(infos(into), infos(tensors), {name: part_of(name) for name in tensors})
    differing = [disagreement(name, other) for name, other in match.copies if not torch.equal(tensors[name], tensors[other])]
    if problems := match.problems + differing:
        raise CheckpointError("the TorchEasyRec state does not fit the embedding group:\n  " + "\n  ".join(problems))
    found = {part: tensors[names[0]] for part, names in match.sources.items()}
    maps = {table: _id_map(table, found) for table in zch_modules(group)}
    with torch.no_grad():
        for part, tensor in into.items():
            if not part.startswith(f"{ID_MAPS}."):
                tensor.copy_(found[part].reshape(tensor.shape))
    for table, module in zch_modules(group).items():
        module.load_state_from_checkpoint(maps[table].state)
    group.mark_untrained()


def _id_map(table: str, found: Mapping[str, Tensor]) -> IdMap:
    prefix = f"{ID_MAPS}.{table}."
    return assemble_id_map(table, {part.removeprefix(prefix): tensor for part, tensor in found.items() if part.startswith(prefix)})
