"""Small steps on jagged batches: check them, pick features, put data groups side by side, turn weights into sums.

Letters: B rows, F features, N ids.

    #        row 0   row 1   row 2
    # "a"    [7]     []      [5, 6]     values 7 5 6 1 2, lengths 1 0 2 | 0 1 1
    # "b"    []      [1]     [2]
"""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.errors import DataError
from emberline.train.data.batch import check_total_ids
from emberline.train.data.rows import joined_features, weights_or_ones

KEY_SEPARATOR = "\x1f"


def feature_of_key(key: str) -> str:
    """The feature that a key inside a collection reads: the key itself, or its part before KEY_SEPARATOR and the table's name."""
    return key.split(KEY_SEPARATOR)[0]


def check_jagged(kjt: KeyedJaggedTensor, data_group: str, weighted: Collection[str]) -> None:
    """Refuse what would read past a buffer, or be silently repaired, further on.

    Args:
        kjt: the sparse features of one data group.
        data_group: for messages.
        weighted: the features whose ids may have weights other than 1.

    Raises:
        DataError: repeated keys, features of different batch sizes, ids that are no integers or too many, lengths that do not add up,
            weights of a wrong count, not finite, or on a feature that is not declared weighted. It names data group and feature.
    """
    keys, where = kjt.keys(), f"sparse features of {data_group}"
    repeated = sorted(key for key, count in Counter(keys).items() if count > 1)
    if repeated:
        raise DataError(f"{where}: {', '.join(repeated)} come more than once; send each feature once")
    if kjt.variable_stride_per_key():
        raise DataError(f"{where}: features have different numbers of rows; a data group has one batch size")
    values, lengths = kjt.values(), kjt.lengths()
    if values.dtype not in (torch.int64, torch.int32) or values.dim() != 1:
        raise DataError(f"{where}: ids must be a flat int64 or int32 tensor, not {values.dtype} of shape {tuple(values.shape)}")
    check_total_ids(values.numel())
    if keys and lengths.numel() % len(keys):
        raise DataError(f"{where}: {lengths.numel()} lengths do not make whole rows of {len(keys)} features")
    smallest, total = smallest_and_sum(lengths)
    if smallest < 0:
        raise DataError(f"{where}: a length is negative ({smallest})")
    if total != values.numel():
        raise DataError(f"{where}: lengths add up to {total}, but there are {values.numel()} ids")
    _check_weights(kjt, where, weighted)


def smallest_and_sum(lengths: Tensor) -> tuple[int, int]:
    """Both by one look at the device; 0 and 0 of nothing."""
    if not lengths.numel():
        return 0, 0
    smallest, total = torch.stack([lengths.min().long(), lengths.sum()]).tolist()
    return smallest, total


def _check_weights(kjt: KeyedJaggedTensor, where: str, weighted: Collection[str]) -> None:
    weights = kjt.weights_or_none()
    if weights is None:
        return
    if weights.shape != kjt.values().shape:
        raise DataError(f"{where}: {weights.numel()} weights for {kjt.values().numel()} ids; each id has one weight")
    keys: list[str] = kjt.keys()
    declared = torch.tensor([key in weighted for key in keys], device=weights.device)
    allowed = torch.repeat_interleave(declared, _ids_per_key(kjt)) & weights.isfinite()
    bad = ~allowed & (weights != 1)
    if bool(bad.any()):
        key = _key_of(kjt, int(bad.int().argmax()))
        if key in weighted:
            raise DataError(f"feature {key!r} has weights that are not finite")
        raise DataError(f"feature {key!r} has weights, but is not declared weighted; set weighted: true, or leave the weights out")


def _ids_per_key(kjt: KeyedJaggedTensor) -> Tensor:
    return torch.tensor(kjt.length_per_key(), device=kjt.values().device)


def _key_of(kjt: KeyedJaggedTensor, place: int) -> str:
    """The key that the id at `place` belongs to."""
    return str(next(key for key, end in zip(kjt.keys(), kjt.offset_per_key()[1:], strict=True) if place < end))


def check_rows(kjt: KeyedJaggedTensor, rows: Sequence[int | None]) -> None:
    """Refuse ids outside [0, rows) of the table that each key reads.

    Args:
        kjt: one key for each lookup: the feature's name, and KEY_SEPARATOR and the table's where it reads several.
        rows: of each key's table; None where any id is right.

    Raises:
        DataError: names the feature, the id and the range.
    """
    ids_by_key = kjt.values().split(kjt.length_per_key())
    parts = [(key, ids, limit) for key, ids, limit in zip(kjt.keys(), ids_by_key, rows, strict=True) if limit is not None and ids.numel()]
    if not parts:
        return
    # Neighbours with the same limit at once, and one look at the device for all.
    runs = [(list(run), limit) for limit, run in itertools.groupby(parts, key=lambda part: part[2])]
    bounds = torch.stack([bound for run, _ in runs for bound in torch.aminmax(concatenated([ids for _, ids, _ in run]))]).tolist()
    for (run, limit), smallest, greatest in zip(runs, bounds[::2], bounds[1::2], strict=True):
        if smallest < 0 or greatest >= limit:
            key, bad = next((key, int(outside[0])) for key, ids, _ in run if (outside := ids[(ids < 0) | (ids >= limit)]).numel())
            raise DataError(f"feature {feature_of_key(key)!r} has id {bad}, but its table holds rows 0 to {limit - 1}")


class Bags(NamedTuple):
    """The bags of one key.

    Args:
        ids: [N].
        lengths: ids of each row, [B].
        weights: [N], or None.
    """

    ids: Tensor
    lengths: Tensor
    weights: Tensor | None


def split_bags(kjt: KeyedJaggedTensor) -> dict[str, Bags]:
    """Each key's bags, as views."""
    keys, counts, weights = kjt.keys(), kjt.length_per_key(), kjt.weights_or_none()
    lengths = kjt.lengths().view(len(keys), kjt.stride()).unbind(0)
    own_weights = [None] * len(keys) if weights is None else weights.split(counts)
    return {key: Bags(*parts) for key, *parts in zip(keys, kjt.values().split(counts), lengths, own_weights, strict=True)}


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Flat tensors that get no gradient, one after the other: a view where they lie in memory so, else a copy."""
    first, storage = parts[0], parts[0].untyped_storage().data_ptr()
    end = first.storage_offset()
    for part in parts:
        if part.dtype != first.dtype or part.untyped_storage().data_ptr() != storage or part.storage_offset() != end or not part.is_contiguous():
            return torch.cat(list(parts))
        end += part.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))


def pick(kjt: KeyedJaggedTensor, features: Sequence[str], keys: Sequence[str]) -> KeyedJaggedTensor:
    """The bags of `features`, in that order and repeated as often as named, under new `keys`; ids as int64."""
    ids, lengths, weights, counts = kjt.values(), kjt.lengths(), kjt.weights_or_none(), kjt.length_per_key()
    if list(features) != kjt.keys():
        found = split_bags(kjt)
        bags = [found[feature] for feature in features]  # copied run by run, several times as fast as a permutation by index
        ids, lengths, counts = concatenated([bag.ids for bag in bags]), concatenated([bag.lengths for bag in bags]), [bag.ids.numel() for bag in bags]
        weights = None if weights is None else concatenated([bag.weights for bag in bags if bag.weights is not None])
    return KeyedJaggedTensor(
        keys=list(keys), values=ids.to(torch.int64), lengths=lengths, weights=weights, stride=kjt.stride(), length_per_key=counts
    )


def side_by_side(parts: Sequence[KeyedJaggedTensor], num_rows: int) -> KeyedJaggedTensor:
    """The features of several data groups in one batch of `num_rows`; groups with fewer rows end with empty bags."""
    if len(parts) == 1 and parts[0].stride() == num_rows:
        return parts[0]
    padded = [torch.nn.functional.pad(kjt.lengths().view(len(kjt.keys()), -1), (0, num_rows - kjt.stride())) for kjt in parts]
    return joined_features(parts, num_rows, [lengths.flatten() for lengths in padded])


def with_sum_weights(kjt: KeyedJaggedTensor, means: Sequence[bool]) -> KeyedJaggedTensor:
    """The same bags with weights under which a plain weighted sum gives each key its pooling.

    A key with a mean gets w / Σ w of its bag, and 0 where Σ w is 0; Σ w is taken in float64. Ids without weights count 1.

    Args:
        kjt: the bags.
        means: for each key, whether it is pooled by the mean.
    """
    weights = weights_or_ones(kjt)
    if any(means):
        runs = [(mean, len(list(run)) * kjt.stride()) for mean, run in itertools.groupby(means)]
        is_mean = torch.cat([torch.full((bags,), mean, device=weights.device) for mean, bags in runs])  # filled there: a copy would be waited for
        weights = mean_weights(weights, kjt.lengths(), is_mean)
    return KeyedJaggedTensor(
        keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths(), weights=weights, stride=kjt.stride(), length_per_key=kjt.length_per_key_or_none()
    )


def mean_weights(weights: Tensor, sizes: Tensor, is_mean: Tensor | None = None) -> Tensor:
    """Weights under which a plain weighted sum is the mean: w / Σ w of the bag, and 0 where Σ w is 0; Σ w is taken in float64.

    Args:
        weights: float32 [N].
        sizes: ids of each bag, [bags].
        is_mean: which bags are pooled by the mean, [bags]; the others' weights stay. None: all.
    """
    bags = torch.repeat_interleave(sizes, output_size=weights.numel())
    sums = torch.zeros(sizes.numel(), dtype=torch.float64, device=weights.device).index_add(0, bags, weights.double())
    factors = torch.where(sums == 0, torch.zeros_like(sums), 1 / sums)
    if is_mean is not None:
        factors = torch.where(is_mean, factors, torch.ones_like(factors))
    return (weights.double() * factors[bags]).float()


def at_least_one_row(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same bags, or one row with nothing in it in place of no rows."""
    if kjt.stride():
        return kjt
    lengths, counts = kjt.lengths().new_zeros(len(kjt.keys())), [0] * len(kjt.keys())
    weights = kjt.weights_or_none()
    return KeyedJaggedTensor(keys=kjt.keys(), values=kjt.values(), lengths=lengths, weights=weights, stride=1, length_per_key=counts)


def without_weights(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same bags; sharded kernels apply weights wherever they find them, so plain tables must see none."""
    if kjt.weights_or_none() is None:
        return kjt
    return KeyedJaggedTensor(
        keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths(), stride=kjt.stride(), length_per_key=kjt.length_per_key_or_none()
    )
