"""Emberline: train, export and serve the embedding system of a recommender model.

The code is in three packages (`emberline.train`, `emberline.export`, `emberline.serving`) over the small core kept here.
"""

__version__ = "0.1.0"
