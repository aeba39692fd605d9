"""The peers of `serving.py`: TorchRec's modules over the artifact's tables and maps, and the model that Triton's Python backend runs.

Letters: F features, B rows, N ids. Requests that come together are answered as one batch where the server hands them over together.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torchrec.fx import symbolic_trace
from torchrec.inference.modules import quantize_embeddings
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks._serving_model import ANSWER, DIM, FEATURES, NUM_STATIC, NUM_ZCH, WIDTH, ZCH_FEATURES, Data, Map, Request


class Answerer(Protocol):
    """What a server calls: one merged request in, float32 [B, 448] out."""

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Ids [N] and lengths [F * B]."""


class Eager(nn.Module):
    """The modules as they are written: one collection for the static tables, one with its remap for the ZCH tables."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.static = EmbeddingBagCollection(tables=[_config(data, name) for name in FEATURES[:NUM_STATIC]], device=torch.device("meta"))
        _set_weights(self.static, data)
        zch = EmbeddingBagCollection(tables=[_config(data, name) for name in ZCH_FEATURES], device=torch.device("meta"))
        _set_weights(zch, data)
        self.remap = ManagedCollisionCollection({f"{name}_emb": _remap(data.maps[name]) for name in ZCH_FEATURES}, zch.embedding_bag_configs())
        self.zch = ManagedCollisionEmbeddingBagCollection(zch, self.remap)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """See `Answerer`."""
        static, zch = KeyedJaggedTensor(keys=FEATURES, values=ids, lengths=lengths).split([NUM_STATIC, NUM_ZCH])
        return torch.cat([self.static(static).values(), self.zch(zch)[0].values()], dim=1)


class Remap(nn.Module):
    """A ZCH table's map as tensors: what TorchRec's module does in eval mode, in a form that can be scripted."""

    def __init__(self, known: Map) -> None:
        super().__init__()
        self.raw_ids = nn.Buffer(torch.from_numpy(known.raw_ids))
        self.rows = nn.Buffer(torch.from_numpy(known.rows))
        self.fallback = known.fallback

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of raw ids."""
        places = torch.searchsorted(self.raw_ids, ids).clamp(max=self.raw_ids.numel() - 1)
        return torch.where(self.raw_ids[places] == ids, self.rows[places], torch.full_like(ids, self.fallback))


class Quantized(nn.Module):
    """One quantised collection of all tables, behind the maps; to be traced and scripted. TorchRec's own remap module cannot be scripted."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        tables = EmbeddingBagCollection(tables=[_config(data, name) for name in FEATURES], device=torch.device("meta"))
        _set_weights(tables, data)
        self.tables = quantize_embeddings(nn.Sequential(tables), dtype=torch.qint8, inplace=True)[0]
        self.remaps = nn.ModuleList([Remap(data.maps[name]) for name in ZCH_FEATURES])

    def forward(self, ids: Tensor, ends: Tensor, lengths: Tensor) -> Tensor:
        """`ends` [F]: where each feature's ids end."""
        parts = [ids[: ends[NUM_STATIC - 1]]]
        for place, remap in enumerate(self.remaps, NUM_STATIC):
            parts.append(remap(ids[ends[place - 1] : ends[place]]))
        found: Tensor = self.tables(KeyedJaggedTensor(keys=FEATURES, values=torch.cat(parts), lengths=lengths)).values()
        return found


def eager(data: Data) -> Answerer:
    """TorchRec's modules, called as they are."""
    model = Eager(data).eval()
    return lambda ids, lengths: model(ids, lengths)


def quantized(data: Data) -> Answerer:
    """TorchRec's quantised modules, traced and scripted."""
    scripted = torch.jit.script(symbolic_trace(Quantized(data).eval(), leaf_modules=["Remap"]))

    def answer(ids: Tensor, lengths: Tensor) -> Tensor:
        found: Tensor = scripted(ids, lengths.view(len(FEATURES), -1).sum(1, dtype=torch.int64).cumsum(0), lengths)
        return found

    return answer


def nothing(data: Data) -> Answerer:
    """As many zeros as rows were asked for."""
    zeros = torch.zeros(1 << 16, WIDTH)
    return lambda ids, lengths: zeros[: lengths.numel() // len(FEATURES)]


ANSWERERS = {"eager": eager, "quantized": quantized, "nothing": nothing}


def open_answerer(kind: str, artifact: Path, threads: int) -> Answerer:
    """An answerer of the kind, with its torch set up; the do-nothing one opens no table."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return nothing(None) if kind == "nothing" else ANSWERERS[kind](Data(artifact))  # type: ignore[arg-type]


def answer_many(answerer: Answerer, requests: Sequence[Request]) -> list[npt.NDArray[np.float32]]:
    """Each request's answer; they are merged into one batch."""
    ids, lengths = merge(requests)
    found = answerer(torch.from_numpy(ids), torch.from_numpy(lengths)).numpy()
    ends = np.cumsum([lengths.size // len(FEATURES) for _, lengths in requests])
    return np.split(found, ends[:-1])


def merge(requests: Sequence[Request]) -> Request:
    """Requests as one: the ids of each feature side by side."""
    if len(requests) == 1:
        return requests[0]
    tables = [lengths.reshape(len(FEATURES), -1) for _, lengths in requests]
    pieces = [np.split(ids, table.sum(1).cumsum()[:-1]) for (ids, _), table in zip(requests, tables, strict=True)]
    ids = np.concatenate([piece[place] for place in range(len(FEATURES)) for piece in pieces])
    return ids, np.concatenate(tables, axis=1).reshape(-1)


class TritonPeer:
    """A Python backend's model."""

    def initialize(self, args: dict[str, str]) -> None:
        """See Triton."""
        config = json.loads(args["model_config"])
        given = {name: value["string_value"] for name, value in config["parameters"].items()}
        self._answerer = open_answerer(given["kind"], Path(given["artifact"]), int(given["threads"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """See Triton."""
        import triton_python_backend_utils as pb_utils

        read = [tuple(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1) for name in ("ids", "lengths")) for request in requests]
        answers = answer_many(self._answerer, read)
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(ANSWER, answer[None])]) for answer in answers]


def _config(data: Data, name: str) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(name=f"{name}_emb", embedding_dim=DIM, num_embeddings=data.tables[name].shape[0], feature_names=[name])


def _set_weights(collection: EmbeddingBagCollection, data: Data) -> None:
    """Take the artifact's rows, without a copy."""
    weights = {f"embedding_bags.{name}_emb.weight": data.tables[name] for name in FEATURES}
    collection.load_state_dict({name: weights[name] for name in collection.state_dict()}, assign=True)


def _remap(known: Map) -> MCHManagedCollisionModule:
    """TorchRec's module, with the ids as if it had learned them."""
    size = known.fallback + 1
    module = MCHManagedCollisionModule(
        zch_size=size, device=torch.device("cpu"), eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=1, output_segments=[0, size]
    )
    module._mch_sorted_raw_ids[:-1] = torch.from_numpy(known.raw_ids)
    module._mch_remapped_ids_mapping[:-1] = torch.from_numpy(known.rows)
    module._mch_remapped_ids_mapping[-1] = known.fallback
    return module
