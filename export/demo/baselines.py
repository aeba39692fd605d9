"""What the demo's model is measured against: averages that need no training, and a plain PyTorch model.

Each takes training and test rows and gives a score for each test row; only their order counts. All of them see training labels only.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from emberline.export.demo.movielens import Split

Floats = npt.NDArray[np.float64]
_PRIOR_ROWS = 5.0
"""How many rows at the overall mean each user and item is given before its own."""


def score_by_mean(split: Split, key: str) -> Floats:
    """The mean training label of the row's user or item; the overall mean where there is none."""
    sums, counts = _sums_and_counts(split, key)
    overall = sums.sum() / counts.sum()
    means = np.divide(sums, counts, out=np.full_like(sums, overall), where=counts > 0)
    return np.asarray(means[_keys(split.test, key)])


def score_by_smoothed_logits(split: Split) -> Floats:
    """Log odds of the user plus log odds of the item, both drawn towards the overall mean."""
    scores = np.zeros(len(split.test))
    for key in ("user_id", "item_id"):
        sums, counts = _sums_and_counts(split, key)
        means = (sums + _PRIOR_ROWS * sums.sum() / counts.sum()) / (counts + _PRIOR_ROWS)
        scores += np.log(means / (1 - means))[_keys(split.test, key)]
    return scores


def score_by_plain_model(split: Split, *, seed: int = 0, epochs: int = 8, batch_size: int = 256) -> Floats:
    """A plain PyTorch model on the same columns: an embedding for each, side by side into one hidden layer, trained with Adam."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small: more threads only wait for each other
    try:
        return _train_plain_model(split, seed, epochs, batch_size)
    finally:
        torch.set_num_threads(threads)


def _train_plain_model(split: Split, seed: int, epochs: int, batch_size: int) -> Floats:
    torch.manual_seed(seed)
    train, test = _as_tensors(split)
    labels = torch.from_numpy(split.train["label"].to_numpy().copy())
    model = _PlainModel([int(max(a.max(), b.max())) + 1 for a, b in zip(train[0].T, test[0].T, strict=True)], train[1].shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(labels)), batch_size):
            loss = nn.functional.binary_cross_entropy_with_logits(model(train[0][rows], train[1][rows]), labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    with torch.no_grad():
        scores: Floats = model(*test).double().numpy()
    return scores


class _PlainModel(nn.Module):
    """[B, columns] codes and [B, genres] zeros and ones -> logits [B]."""

    def __init__(self, num_codes: list[int], num_genres: int, dim: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(rows, dim, _weight=torch.randn(rows, dim) * 0.01) for rows in num_codes)
        self.genres = nn.Linear(num_genres, dim)
        self.mlp = nn.Sequential(nn.Linear(dim * (len(num_codes) + 1), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, codes: Tensor, genres: Tensor) -> Tensor:
        vectors = [embedding(codes[:, column]) for column, embedding in enumerate(self.embeddings)]
        logits: Tensor = self.mlp(torch.cat([*vectors, self.genres(genres)], dim=1))
        return logits.squeeze(1)


def _as_tensors(split: Split) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Codes [B, columns] and genres [B, genres], for training and for test rows."""
    both = pa.concat_tables([split.train, split.test])
    age, year = both["age"].to_numpy() // 10, np.maximum(both["year"].to_numpy() - 1920, 0) // 5
    texts = [both[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in ("gender", "occupation", "zip_area")]
    codes = torch.from_numpy(np.stack([_keys(both, "user_id"), _keys(both, "item_id"), age, year, *texts], axis=1).astype(np.int64))
    lists = both["genres"].combine_chunks()
    names = lists.values.dictionary_encode()
    genres = torch.zeros(len(both), len(names.dictionary))
    genres[
        torch.from_numpy(np.repeat(np.arange(len(both)), lists.value_lengths().to_numpy())),
        torch.from_numpy(names.indices.to_numpy().astype(np.int64)),
    ] = 1
    cut = len(split.train)
    return (codes[:cut], genres[:cut]), (codes[cut:], genres[cut:])


def _keys(table: pa.Table, key: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = table[key].to_numpy()
    return values


def _sums_and_counts(split: Split, key: str) -> tuple[Floats, Floats]:
    """For each key of either part: the sum of its training labels, and their number."""
    train, test = _keys(split.train, key), _keys(split.test, key)
    size = int(max(train.max(), test.max())) + 1
    sums: Floats = np.bincount(train, weights=split.train["label"].to_numpy(), minlength=size).astype(np.float64)
    return sums, np.bincount(train, minlength=size).astype(np.float64)
