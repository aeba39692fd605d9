"""Weights that TorchEasyRec trained, into an `EmbeddingGroup` of the same config.

Its state dict keeps one copy of a table for each data group and kind of group (`emb_impls.__BASE__.ebc...`, `..._user` twins under
input tiling, `seq_emb_impls...`); here a name is one table, so the copies must agree.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emberline.errors import CheckpointError
from emberline.train.embedding.dense import DenseEmbeddingCollection
from emberline.train.encoders.torcheasyrec import REDUNDANT, torcheasyrec_names
from emberline.train.zch import ZchModule, zch_modules

if TYPE_CHECKING:
    from emberline.train.embedding import EmbeddingGroup

_TABLE = re.compile(
    r"(?:seq_)?emb_impls\.[^.]+\.(?:ebc|mc_ebc|ec_dict|mc_ec_dict)(?:_user)?(?:\.\d+)?"
    r"(?:\._embedding_module)?\.(?:embedding_bags|embeddings)\.(?P<table>[^.]+)\.weight"
)
_ZCH = re.compile(
    r"(?:seq_)?emb_impls\.[^.]+\.mc_(?:ebc|ec_dict)(?:_user)?(?:\.\d+)?"
    r"\._managed_collision_collection\._managed_collision_modules\.(?P<table>[^.]+)\.(?P<buffer>\w+)"
)
_DENSE = re.compile(r"emb_impls\.(?P<data_group>[^.]+)\.dense_ec\.dense_embs\.[^.]+\.(?P<parameter>(?:meta_emb|proj_w|proj_m)_[^.]+)\.weight")
_ENCODER = re.compile(r"_group_name_to_seq_encoders\.(?P<group>[^.]+)\.(?P<number>\d+)\.(?P<name>.+)")
_ZCH_BUFFERS = ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_current_iter_tensor")
_SEGMENTS = "_output_segments_tensor"

Targets = dict[str, Tensor]


def load_torcheasyrec_state(group: "EmbeddingGroup", state: Mapping[str, Any]) -> None:
    """Copy a TorchEasyRec state dict into an unsharded `group`: tables, id maps, AutoDis and MLP weights, encoders.

    Args:
        group: built from the same features and groups.
        state: the state of the reference's EmbeddingGroup by its names (`emb_impls.__BASE__.ebc.embedding_bags.<table>.weight`, ...);
            tensors or arrays.

    Raises:
        CheckpointError: with every name that is missing, surplus, of another shape, or a copy that disagrees. Nothing is loaded then.
    """
    maps = zch_modules(group)
    targets = _tables(group) | _id_maps(maps) | _dense(group) | _encoders(group)
    sources: dict[str, tuple[str, Tensor]] = {}
    problems: list[str] = []
    for name, value in state.items():
        tensor = torch.as_tensor(value)
        target = _target(name)
        if target is not None and _is_redundant(target, targets):
            continue
        if target is None or target not in targets:
            problems.append(f"{name}: surplus, the group has nothing of that name")
        elif target in sources and not torch.equal(sources[target][1], tensor):
            problems.append(f"{name}: disagrees with {sources[target][0]}, another copy of the same; keep one of them")
        elif target in targets and not _fits(target, tensor, targets[target]):
            problems.append(f"{name}: has shape {tuple(tensor.shape)}, the group needs {tuple(targets[target].shape)}")
        else:
            sources.setdefault(target, (name, tensor))
    problems += [f"{target}: missing" for target in targets if target not in sources and not _reported(target, problems)]
    if problems:
        raise CheckpointError("the TorchEasyRec state does not fit the embedding group:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for target, tensor in targets.items():
            tensor.copy_(sources[target][1].reshape(tensor.shape))
    for module in maps.values():
        module.validate_state()
    group.mark_untrained()


def _target(name: str) -> str | None:
    """The part of the group that a name of the state stands for; the same for all copies of one table."""
    if found := _TABLE.fullmatch(name):
        return f"table {found['table']}"
    if found := _ZCH.fullmatch(name):
        return f"id map {found['table']} {found['buffer']}"
    if found := _DENSE.fullmatch(name):
        return f"dense embedding {found['data_group']} {found['parameter']}"
    if found := _ENCODER.fullmatch(name):
        return f"encoder {found['group']} {found['number']} {found['name']}"
    return None


def _tables(group: "EmbeddingGroup") -> Targets:
    return {f"table {table}": weight for table, weight in group.table_weights().items()}


def _id_maps(maps: Mapping[str, ZchModule]) -> Targets:
    targets: Targets = {}
    for table, module in maps.items():
        names = [*_ZCH_BUFFERS, *(f"_mch_{name}" for name in module._mch_metadata)]
        targets |= {f"id map {table} {name}": module.get_buffer(name) for name in names}
    return targets


def _dense(group: "EmbeddingGroup") -> Targets:
    targets: Targets = {}
    for data_group, impl in group.emb_impls.items():
        collection = impl.dense_ec
        if isinstance(collection, DenseEmbeddingCollection):
            for name, parameter in collection.named_parameters():
                targets[f"dense embedding {data_group} {name.split('.')[-1]}"] = parameter
    return targets


def _encoders(group: "EmbeddingGroup") -> Targets:
    targets: Targets = {}
    for name, encoders in group.encoders_by_group().items():
        for number, encoder in enumerate(encoders):
            state = encoder.state_dict()
            theirs = {ours: name for name, ours in torcheasyrec_names(encoder).items()}
            targets |= {f"encoder {name} {number} {theirs.get(ours, ours)}": tensor for ours, tensor in state.items()}
    return targets


def _is_redundant(target: str, targets: Targets) -> bool:
    """Whether it repeats the config, or says how the reference's id map was cut into shards, which a map in one piece does not need."""
    owner, _, name = target.rpartition(" ")
    return name in (_SEGMENTS, *REDUNDANT) and any(other.startswith(f"{owner} ") for other in targets)


def _fits(name: str, source: Tensor, target: Tensor) -> bool:
    """The same shape, or one that only lacks the leading 1 of a dense feature with one number."""
    return source.shape == target.shape or (name.startswith("dense") and target.shape == (1, *source.shape))


def _reported(target: str, problems: list[str]) -> bool:
    return any(_target(problem.split(": ")[0]) == target for problem in problems)
