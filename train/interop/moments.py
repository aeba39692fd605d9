"""The moments of the tables' fused optimiser, out of a TorchEasyRec checkpoint.

Their names are TorchRec's: `...embedding_bags.<table>.weight.<table>.momentum1`. They are taken over where the checkpoint was trained with the
sparse optimiser that the config now has, and all moments of a table are there; else the table's moments begin anew.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from emberline.train.config.protos import pipeline_pb2
from emberline.train.config.text import parse_text
from emberline.train.interop.parts import infos
from emberline.train.interop.stored import StoredTensors

_MOMENT = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.(?P<table>[^.]+)\.weight\.(?P=table)\.(?P<moment>[^.]+)")

Moments = dict[str, dict[str, str]]
"""Table -> moment -> the name that it has in a checkpoint."""


def trained_with(config: Path | None) -> str:
    """The name of the sparse optimiser in a config, whether this release knows it or not; empty where the config says none."""
    if config is None:
        return ""
    message, _ = parse_text(config.read_text(encoding="utf-8-sig"), pipeline_pb2.Pipeline)
    return message.train_config.sparse_optimizer.WhichOneof("optimizer") or ""


def select_moments(stored: StoredTensors, needed: Mapping[str, Mapping[str, Tensor]]) -> tuple[Moments, dict[str, str]]:
    """Decide where each table's moments come from.

    Args:
        stored: the optimisers' tensors.
        needed: table -> moment -> the live tensor.

    Returns:
        the moments to take; and table -> why its moments begin anew.
    """
    there: dict[str, dict[str, list[str]]] = {}
    for name in stored.tensors:
        if found := _MOMENT.fullmatch(name):
            there.setdefault(found["table"], {}).setdefault(found["moment"], []).append(name)
    chosen: Moments = {}
    anew: dict[str, str] = {}
    for table, moments in needed.items():
        names = there.get(table, {})
        if not names:
            anew[table] = "the checkpoint has none"
        elif any(len(copies) > 1 for copies in names.values()):
            anew[table] = "its copies have one each"
        elif names.keys() != moments.keys():
            anew[table] = f"the checkpoint has {', '.join(sorted(names))}, training needs {', '.join(sorted(moments))}"
        elif any(stored.infos[names[moment][0]] != info for moment, info in infos(moments).items()):
            anew[table] = "they have another shape or type"
        elif problems := stored.problems(copies[0] for copies in names.values()):
            anew[table] = problems[0]
        else:
            chosen[table] = {moment: copies[0] for moment, copies in names.items()}
    return chosen, anew
