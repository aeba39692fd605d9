"""The embedding system: tables (`registry`), pooled reads (`pooled`), vectors for numbers (`dense`), and groups (`group`)."""

from emberline.train.embedding.dense import AutoDisEmbedding, DenseEmbeddingCollection, MLPDenseEmbedding
from emberline.train.embedding.group import EmbeddingGroup, EmbeddingGroupImpl
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.registry import GroupColumns, TableEntry, TableRegistry

__all__ = [
    "AutoDisEmbedding",
    "DenseEmbeddingCollection",
    "EmbeddingGroup",
    "EmbeddingGroupImpl",
    "GroupColumns",
    "MLPDenseEmbedding",
    "PooledTables",
    "TableEntry",
    "TableRegistry",
]
