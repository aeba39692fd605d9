"""The odd requests of a trained model, and what it answers to them: the oracle of artifacts."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from emberline.export.cases import Case, odd_cases_of
from emberline.export.remap import dynamic_remaps, split_remaps
from emberline.export.row_source import RowSource
from emberline.schema import ModelSchema, TableKind
from emberline.serving.remap import RemapParts
from emberline.train.checkpoint import Trained, store
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.data import batch_from_encoded


def row_source(trained: Trained) -> RowSource:
    """The rows of its tables, in its checkpoint."""
    return RowSource(trained.path / store.TENSORS_NAME, read_layout(trained.path).dynamic)


def remaps_of(trained: Trained) -> Mapping[str, RemapParts]:
    """The maps of its tables with raw ids."""
    return split_remaps(trained.model) | dynamic_remaps(trained.model, row_source(trained))


def exported_schema(trained: Trained) -> ModelSchema:
    """The model's, with what an artifact has of tables that grow: their ids, an eighth and 64 spare rows, and the default vector."""
    schema, remaps = trained.model.schema(), remaps_of(trained)
    ids = {table.name: remaps[table.name].raw_ids.numel() for table in schema.tables if table.kind is TableKind.DYNAMIC}
    tables = (replace(table, rows=ids[table.name] * 9 // 8 + 65) if table.name in ids else table for table in schema.tables)
    return replace(schema, tables=tuple(tables))


def cases_of(trained: Trained) -> list[Case]:
    """The requests, the same ones for the same checkpoint."""
    return odd_cases_of(trained.model.schema(), remaps_of(trained), seed=11)


def wanted_of(trained: Trained, case: Case) -> dict[str, Tensor]:
    """The outputs by name of the model in one piece, which is in eval mode."""
    assert not trained.model.training
    with torch.no_grad():
        answers: dict[str, Tensor] = trained.model(batch_from_encoded(trained.features, case.encoded))
    return answers
