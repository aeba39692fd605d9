"""Models: an embedding system and a head on top of it, and the programs that export cuts out of them.

A head (`DlrmHead`, `DeepFmHead`, or a user's own module) turns group tensors into logits; `RecModel` joins it with the embedding group.
"""

from emberline.train.models.build import build_model, features_of
from emberline.train.models.model import RecModel
from emberline.train.models.programs import DenseProgram, GroupsProgram

__all__ = ["DenseProgram", "GroupsProgram", "RecModel", "build_model", "features_of"]
