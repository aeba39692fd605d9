"""Data files -> batches: parquet and CSV are streamed, encoded by `emberline.encoding`, shuffled and cut, on a thread of their own."""

from emberline.train.data.batch import Batch, Tile, batch_from_encoded
from emberline.train.data.position import DataPosition
from emberline.train.data.reader import DataReader
from emberline.train.data.tile import tile_batch, tiled_from_encoded, untile_batch

__all__ = ["Batch", "DataPosition", "DataReader", "Tile", "batch_from_encoded", "tile_batch", "tiled_from_encoded", "untile_batch"]
