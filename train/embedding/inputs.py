"""What the groups of a model read of a batch, checked: ids of all data groups side by side, numbers, and the steps of sequences.

Letters: B rows, D summed width of all dense features, N steps, v numbers of a step.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from emberline.errors import DataError
from emberline.train.embedding.columns import SequenceColumns
from emberline.train.embedding.jagged import check_jagged, smallest_and_sum
from emberline.train.embedding.registry import TableRegistry
from emberline.train.embedding.spread import side_by_side
from emberline.train.features import Feature

if TYPE_CHECKING:
    from emberline.train.data import Batch

Part = TypeVar("Part")


@dataclass(frozen=True)
class Steps:
    """The steps of all sequences that some group keeps, by feature.

    Args:
        lengths: steps of each row, [B].
        sizes: ids of each step, [N], where the batch says them; else each step has one.
        numbers: dense features' numbers, float32 [N, v].
    """

    lengths: dict[str, Tensor]
    sizes: dict[str, Tensor]
    numbers: dict[str, Tensor]


@dataclass(frozen=True)
class _Reads:
    """Names of the features of one data group that some group reads: with ids, dense; and of the sequences whose steps are kept, by the same."""

    sparse: tuple[str, ...]
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, each once."""
        return (*self.sparse, *self.dense, *self.numbers)


class BatchReader:
    """Reads batches for one model.

    Args:
        registry: which features its groups read.
        only: the features that come in its batches, of those that the groups read; None: all.
        side: whose they are, for messages; empty: everybody's.
    """

    def __init__(self, registry: TableRegistry, only: Collection[str] | None = None, side: str = "") -> None:
        self._features = registry.features
        dense = (feature for feature in registry.features.values() if not feature.is_sparse and not feature.is_sequence)
        self.dense_features = tuple(feature for feature in dense if only is None or feature.name in only)
        self._weighted = {feature.name for feature in registry.features.values() if feature.is_weighted}
        self._sequence_groups = registry.sequence_groups
        reads = {data_group: _reads(registry, data_group, only) for data_group in registry.data_groups}
        self._reads = {data_group: read for data_group, read in reads.items() if read.names}
        self._of = f" of the {side} side" if side else ""

    def rows(self, batch: "Batch", *, checked: bool = False) -> dict[str, int]:
        """The number of rows of each data group that a group reads; of a `checked` batch no value is looked at.

        Raises:
            DataError: a part of the batch is missing, has jagged features that cannot be right, or another number of rows; names it.
        """
        return {data_group: self._rows(batch, data_group, reads, checked) for data_group, reads in self._reads.items()}

    def rows_by_feature(self, rows: Mapping[str, int]) -> dict[str, int]:
        """The number of rows of each feature that is read, given those of the data groups."""
        return {name: rows[data_group] for data_group, reads in self._reads.items() for name in reads.names}

    def ids(self, batch: "Batch") -> list[tuple[tuple[str, ...], KeyedJaggedTensor]]:
        """Of each data group that has some, the names of the sparse features that are read, and the ids of these and maybe others."""
        found = []
        for data_group, reads in self._reads.items():
            if reads.sparse:
                kjt = batch.sparse_features[data_group]
                _check_present(reads.sparse, list(kjt.keys()), f"sparse features of {data_group}{self._of}")
                found.append((reads.sparse, kjt))
        return found

    def dense(self, batch: "Batch", num_rows: int) -> Tensor:
        """The numbers of all dense features that are no sequences, [B, D] float32 in config order; zeros for those that no group reads."""
        read = {name for reads in self._reads.values() for name in reads.dense}
        parts: list[Tensor] = []
        for _, run in itertools.groupby(self.dense_features, key=lambda feature: (feature.data_group, feature.name in read)):
            features = list(run)
            if features[0].name in read:
                found = _dense_values(batch, features, self._of)
                parts += [nn.functional.pad(part, (0, 0, 0, num_rows - part.shape[0])) if part.shape[0] < num_rows else part for part in found]
            else:
                parts.append(torch.zeros(num_rows, sum(feature.value_dim for feature in features), device=device_of(batch)))
        return side_by_side(parts).float() if parts else torch.zeros(num_rows, 0, device=device_of(batch))

    def steps(self, batch: "Batch", *, checked: bool = False) -> Steps:
        """The steps of the sequences that some group keeps; of a `checked` batch no value is looked at.

        Raises:
            DataError: a sequence is missing or contradicts itself, or those of one group have different numbers of steps; names feature and row.
        """
        steps = Steps({}, {}, {})
        for data_group, reads in self._reads.items():
            sizes = batch.sequence_mulval_lengths.get(data_group)
            for name in reads.ids:
                kjt = batch.sparse_features[data_group]
                ids = kjt.lengths().view(len(kjt.keys()), kjt.stride())[kjt.keys().index(name)]
                if sizes is not None and name in list(sizes.keys()):
                    found = sizes[name]
                    if not checked:
                        _check_step_sizes(name, found, ids)
                    steps.lengths[name], steps.sizes[name] = found.lengths(), found.values()
                elif self._features[name].value_dim == 1:
                    steps.lengths[name] = ids
                else:
                    where = f"sequence_mulval_lengths of {data_group}{self._of}"
                    raise DataError(f"sequence {name!r} has steps of any number of ids, but {where} does not say how many each has")
            for name in reads.numbers:
                jagged = _part(batch.sequence_dense_features, name, "sequence", self._of)
                steps.lengths[name], steps.numbers[name] = jagged.lengths(), _step_numbers(self._features[name], jagged, checked)
        if not checked:
            check_alike(self._sequence_groups, steps.lengths)
        return steps

    def _rows(self, batch: "Batch", data_group: str, reads: _Reads, checked: bool) -> int:
        found: dict[str, int] = {}
        where = data_group + self._of
        if reads.sparse:
            kjt = _part(batch.sparse_features, data_group, "sparse", self._of)
            if not checked:
                check_jagged(kjt, where, self._weighted)
            found["sparse features"] = int(kjt.stride())
        if reads.dense:
            found["dense ones"] = _part(batch.dense_features, data_group, "dense", self._of).values().shape[0]
        for name in reads.numbers:
            found[f"sequence {name}"] = _part(batch.sequence_dense_features, name, "sequence", self._of).lengths().numel()
        (first, rows), *others = found.items()
        for other, count in others:
            if count != rows:
                raise DataError(f"{where} has {rows} rows of {first} but {count} of {other}")
        return rows


def check_alike(groups: Sequence[SequenceColumns], lengths: Mapping[str, Tensor]) -> None:
    """The sequences that stand side by side in a group must have the same number of steps in each row.

    Args:
        groups: the groups of sequences.
        lengths: steps of each row [B] by feature; features without are left alone.

    Raises:
        DataError: names the group, two features and the first row where they differ.
    """
    pairs: dict[tuple[str, str], str] = {}
    for group in groups:
        first, *others = [name for name in group.sequence.features if name in lengths] or ("",)
        for other in others:
            pairs.setdefault((first, other), group.name)
    if not pairs:
        return
    differ = torch.stack([(lengths[first] != lengths[other]).any() for first, other in pairs]).tolist()  # one look at the device for all
    for (first, other), group_name in itertools.compress(pairs.items(), differ):
        row = int((lengths[first] != lengths[other]).int().argmax())
        counts = f"{int(lengths[first][row])} and {int(lengths[other][row])} steps in row {row}"
        raise DataError(f"group {group_name!r} puts features {first!r} and {other!r} side by side, but they have {counts}")


def _reads(registry: TableRegistry, data_group: str, only: Collection[str] | None) -> _Reads:
    features = registry.features
    looked_up = dict.fromkeys(lookup.feature for lookup in (*registry.lookups, *registry.sequence_lookups))
    queries = [group.query for group in registry.sequence_groups]
    kept = dict.fromkeys(name for group in registry.sequence_groups for name in group.sequence.features)
    dense = dict.fromkeys(name for columns in (*registry.groups, *queries) for name in columns.dense_features)

    def own(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if features[name].data_group == data_group and (only is None or name in only))

    return _Reads(
        sparse=own(list(looked_up)),
        dense=own(list(dense)),
        ids=own([name for name in kept if features[name].is_sparse]),
        numbers=own([name for name in kept if not features[name].is_sparse]),
    )


def _part(parts: Mapping[str, Part], name: str, what: str, side: str) -> Part:
    if name not in parts:
        of = (f"sequence {name!r}" if what == "sequence" else f"{what} features of {name}") + side
        raise DataError(f"the batch has no {of}; it has {', '.join(parts) or 'none'}")
    return parts[name]


def _check_present(names: Sequence[str], found: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{where}: {', '.join(missing)} missing; the batch has {', '.join(found) or 'none'}")


def _dense_values(batch: "Batch", features: Sequence[Feature], of: str) -> list[Tensor]:
    """The numbers of dense features of one data group, [rows, value_dim] each; all in one where the batch has these and no others, in this order."""
    keyed = batch.dense_features[features[0].data_group]
    names, sizes = [feature.name for feature in features], dict(zip(keyed.keys(), keyed.length_per_key(), strict=True))
    _check_present(names, list(sizes), f"dense features of {features[0].data_group}{of}")
    for feature in features:
        if sizes[feature.name] != feature.value_dim:
            raise DataError(f"feature {feature.name!r} has {sizes[feature.name]} numbers a row, but value_dim {feature.value_dim}")
    return [keyed.values()] if names == list(sizes) else [keyed[name] for name in names]


def _check_step_sizes(name: str, sizes: JaggedTensor, ids: Tensor) -> None:
    """The steps' ids must add up to the row's, [B]."""
    lengths, values = sizes.lengths(), sizes.values()
    if lengths.numel() != ids.numel():
        raise DataError(f"sequence {name!r} has ids for {ids.numel()} rows, but steps for {lengths.numel()}")
    _check_lengths(name, lengths, values.numel())
    if values.numel() and int(values.min()) < 0:
        raise DataError(f"sequence {name!r} has a step of {int(values.min())} ids")
    rows = torch.repeat_interleave(lengths.long())
    sums = torch.zeros(ids.numel(), dtype=torch.int64, device=ids.device).index_add(0, rows, values.long())
    if not torch.equal(sums, ids.long()):
        row = int((sums != ids).int().argmax())
        raise DataError(f"sequence {name!r} has {int(ids[row])} ids in row {row}, but its steps add up to {int(sums[row])}")


def _step_numbers(feature: Feature, jagged: JaggedTensor, checked: bool) -> Tensor:
    """A dense sequence's numbers, float32 [N, value_dim]."""
    values: Tensor = jagged.values()
    values = values.unsqueeze(1) if values.dim() == 1 else values
    if values.dim() != 2 or values.shape[1] != feature.value_dim:
        raise DataError(f"sequence {feature.name!r} has numbers of shape {list(jagged.values().shape)}, but value_dim {feature.value_dim}")
    if not checked:
        _check_lengths(feature.name, jagged.lengths(), values.shape[0])
    return values.float()


def _check_lengths(name: str, lengths: Tensor, num_steps: int) -> None:
    smallest, total = smallest_and_sum(lengths)
    if smallest < 0:
        raise DataError(f"sequence {name!r} has a row of {smallest} steps")
    if total != num_steps:
        raise DataError(f"sequence {name!r}: lengths add up to {total}, but there are {num_steps} steps")


def device_of(batch: "Batch") -> torch.device:
    """Where the batch's features lie."""
    for parts in (batch.sparse_features, batch.dense_features, batch.sequence_dense_features):
        for part in parts.values():
            device: torch.device = part.values().device
            return device
    return torch.device("cpu")
