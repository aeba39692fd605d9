"""The odd requests of a trained model, and what it answers to them: the oracle of artifacts."""

import torch
from torch import Tensor

from emberline.export.cases import Case, odd_cases_of
from emberline.export.remap import split_remaps
from emberline.train.checkpoint import Trained
from emberline.train.data import batch_from_encoded


def cases_of(trained: Trained) -> list[Case]:
    """The requests, the same ones for the same checkpoint."""
    return odd_cases_of(trained.model.schema(), split_remaps(trained.model), seed=11)


def wanted_of(trained: Trained, case: Case) -> dict[str, Tensor]:
    """The outputs by name of the model in one piece, which is in eval mode."""
    assert not trained.model.training
    with torch.no_grad():
        answers: dict[str, Tensor] = trained.model(batch_from_encoded(trained.features, case.encoded))
    return answers
