"""The embedding system: tables and groups as data (`registry`), reads of tables (`pooled`, `sequence`), vectors for numbers (`dense`), how it is
all laid out (`layout`, `assembly`; `spread` takes users to their rows), and the whole (`group`).
"""

from emberline.train.embedding.columns import Columns, GroupColumns, SequenceColumns
from emberline.train.embedding.dense import AutoDisEmbedding, DenseEmbeddingCollection, MLPDenseEmbedding
from emberline.train.embedding.group import EmbeddingGroup
from emberline.train.embedding.layout import EmbeddingGroupImpl, SequenceEmbeddingGroupImpl, SequenceParts
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.registry import TableEntry, TableRegistry
from emberline.train.embedding.sequence import SequenceTables
from emberline.train.embedding.sides import SideColumns, Sides
from emberline.train.embedding.tile import SideParts, TiledParts

__all__ = [
    "AutoDisEmbedding",
    "Columns",
    "DenseEmbeddingCollection",
    "EmbeddingGroup",
    "EmbeddingGroupImpl",
    "GroupColumns",
    "MLPDenseEmbedding",
    "PooledTables",
    "SequenceColumns",
    "SequenceEmbeddingGroupImpl",
    "SequenceParts",
    "SequenceTables",
    "SideColumns",
    "SideParts",
    "Sides",
    "TableEntry",
    "TableRegistry",
    "TiledParts",
]
