"""The parts of a model that a TorchEasyRec state fills, and which part each of its names stands for.

tables.<table>                                   a table's vectors; its copies in several data groups and kinds of group are one part
id_maps.<table>.<buffer>                         the id map of a ZCH table, under the reference's names: _mch_sorted_raw_ids, ...
dense_embeddings.<data group>.<parameter>        AutoDis and MLP embeddings: meta_emb_<feature>, proj_w_<feature>, proj_m_<feature>
encoders.<group>.<number>.<name>                 sequence encoders, under the reference's names
head.<name>                                      everything behind the embedding group, layers of MLPs under the reference's names
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from emberline.errors import CheckpointError
from emberline.schema import TableKind
from emberline.train.checkpoint.tensors import TensorInfo
from emberline.train.embedding.dense import DenseEmbeddingCollection
from emberline.train.encoders.din import DinEncoder
from emberline.train.encoders.torcheasyrec import REDUNDANT, torcheasyrec_names
from emberline.train.models.mlp import MLP
from emberline.train.zch import ZchModule, zch_modules

if TYPE_CHECKING:
    from emberline.train.embedding import EmbeddingGroup

TABLES, ID_MAPS, DENSE_EMBEDDINGS, ENCODERS, HEAD = "tables", "id_maps", "dense_embeddings", "encoders", "head"
RAW_IDS, ROWS, ITERATION = "_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_current_iter_tensor"
METADATA_PREFIX = "_mch_"
_SEGMENTS = "_output_segments_tensor"

_TABLE = re.compile(
    r"(?:seq_)?emb_impls\.[^.]+\.(?:ebc|mc_ebc|ec_dict|ec_list|mc_ec_dict)(?:_user)?(?:\.\d+)?"
    r"(?:\._embedding_module)?\.(?:embedding_bags|embeddings)\.(?P<table>[^.]+)\.weight"
)
_ZCH = re.compile(
    r"(?:seq_)?emb_impls\.[^.]+\.mc_(?:ebc|ec_dict)(?:_user)?(?:\.\d+)?"
    r"\._managed_collision_collection\._managed_collision_modules\.(?P<table>[^.]+)\.(?P<buffer>\w+)"
)
_DENSE = re.compile(r"emb_impls\.(?P<data_group>[^.]+)\.dense_ec\.dense_embs\.[^.]+\.(?P<parameter>(?:meta_emb|proj_w|proj_m)_[^.]+)\.weight")
_ENCODER = re.compile(r"_group_name_to_seq_encoders\.(?P<group>[^.]+)\.(?P<number>\d+)\.(?P<name>.+)")

Parts = dict[str, Tensor]


def part_of(name: str) -> str | None:
    """The part that a name of the reference's embedding group stands for, the same for all copies of one table; None for other names."""
    if found := _TABLE.fullmatch(name):
        return f"{TABLES}.{found['table']}"
    if found := _ZCH.fullmatch(name):
        return f"{ID_MAPS}.{found['table']}.{found['buffer']}"
    if found := _DENSE.fullmatch(name):
        return f"{DENSE_EMBEDDINGS}.{found['data_group']}.{found['parameter']}"
    if found := _ENCODER.fullmatch(name):
        return f"{ENCODERS}.{found['group']}.{found['number']}.{found['name']}"
    return None


def is_redundant(part: str, parts: Mapping[str, object]) -> bool:
    """Whether it repeats the config, or says how the reference's id map was cut into shards, which a map in one piece does not need."""
    owner, _, name = part.rpartition(".")
    return name in (_SEGMENTS, *REDUNDANT) and any(other.startswith(f"{owner}.") for other in parts)


def embedding_parts(group: "EmbeddingGroup") -> Parts:
    """The live tensors of an embedding group's parts, all but the tables."""
    return {**_id_maps(group), **_dense_embeddings(group), **_encoders(group)}


def table_parts(group: "EmbeddingGroup") -> Parts:
    """The live tables of fixed rows of an unsharded embedding group."""
    growing = {table.name for table in group.tables if table.kind is TableKind.DYNAMIC}
    return {f"{TABLES}.{table}": weight.detach() for table, weight in group.table_weights().items() if table not in growing}


def head_parts(head: nn.Module) -> Parts:
    """The live tensors of a model's head."""
    renamed = _reference_names(head)
    return {f"{HEAD}.{_renamed(name, renamed)}": tensor for name, tensor in head.state_dict().items()}


def infos(parts: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    """Shape and dtype of each tensor."""
    return {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in parts.items()}


def fits(part: str, stored: TensorInfo, needed: TensorInfo) -> bool:
    """The same shape, or one that only lacks the leading 1 of a dense feature with one number."""
    return stored.shape == needed.shape or (part.startswith(f"{DENSE_EMBEDDINGS}.") and needed.shape == (1, *stored.shape))


def _id_maps(group: "EmbeddingGroup") -> Parts:
    parts: Parts = {}
    for table, module in zch_modules(group).items():
        if not isinstance(module, ZchModule):
            raise CheckpointError(f"table {table!r} has zch kind {module.kind}: only id maps of kind mch can be imported")
        buffers = [RAW_IDS, ROWS, ITERATION, *(METADATA_PREFIX + name for name in module._mch_metadata)]
        parts |= {f"{ID_MAPS}.{table}.{name}": module.get_buffer(name) for name in buffers}
    return parts


def _dense_embeddings(group: "EmbeddingGroup") -> Parts:
    parts: Parts = {}
    for data_group, impl in group.emb_impls.items():
        collection = impl.dense_ec
        if isinstance(collection, DenseEmbeddingCollection):
            for name, parameter in collection.named_parameters():
                parts[f"{DENSE_EMBEDDINGS}.{data_group}.{name.split('.')[-1]}"] = parameter.detach()
    return parts


def _encoders(group: "EmbeddingGroup") -> Parts:
    parts: Parts = {}
    for name, encoders in group.encoders_by_group().items():
        for number, encoder in enumerate(encoders):
            theirs = {ours: their for their, ours in torcheasyrec_names(encoder).items()}
            parts |= {f"{ENCODERS}.{name}.{number}.{theirs.get(ours, ours)}": tensor for ours, tensor in encoder.state_dict().items()}
    return parts


def _reference_names(head: nn.Module) -> dict[str, str]:
    """Prefix of names in a head -> what the reference's modules would call it: `x.layers.2` -> `x.mlp.1.perceptron.0`."""
    renamed: dict[str, str] = {}
    for path, module in head.named_modules():
        if isinstance(module, DinEncoder):
            renamed |= {f"{path}.{ours}": f"{path}.{theirs}" for theirs, ours in torcheasyrec_names(module).items()}
    for path, module in head.named_modules():
        if isinstance(module, MLP) and not any(name.startswith(f"{path}.") for name in renamed):
            block = place = -1
            for number, layer in enumerate(module.layers):
                block, place = (block + 1, 0) if isinstance(layer, nn.Linear) else (block, place + 1)
                renamed[f"{path}.layers.{number}"] = f"{path}.mlp.{block}.perceptron.{place}"
    return renamed


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    found = next((prefix for prefix in renamed if name == prefix or name.startswith(f"{prefix}.")), None)
    return name if found is None else renamed[found] + name.removeprefix(found)
