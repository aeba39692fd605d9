"""Data files -> batches: parquet and CSV are streamed, encoded by `emberline.encoding`, shuffled and cut, on a thread of their own."""

from emberline.train.data.batch import Batch, batch_from_encoded
from emberline.train.data.position import DataPosition
from emberline.train.data.reader import DataReader

__all__ = ["Batch", "DataPosition", "DataReader", "batch_from_encoded"]
