"""Data files -> batches: parquet and CSV are streamed, encoded by `emberline.encoding`, shuffled and cut, on a thread of their own."""

from emberline.train.data.batch import Batch, batch_from_encoded
from emberline.train.data.position import DataPosition

__all__ = ["Batch", "DataPosition", "batch_from_encoded"]
