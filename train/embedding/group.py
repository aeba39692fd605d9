"""The embedding system as a model sees it: a batch in, one tensor a feature group out.

    batch ── lookup ──► pooled [B, P] ─┐
      └──── dense ────► dense [B, D] ──┴─ assemble ──► {group: [B, width]}

`lookup` holds the tables and is what serving does by itself; `assemble` is plain tensor code, which can be traced and exported.

Letters: B rows, P summed width of all lookups, D summed width of all dense features.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError, DataError
from emberline.schema import GroupKind, GroupSpec, LookupSpec, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.dense import DenseEmbeddingCollection
from emberline.train.embedding.jagged import check_jagged, pick, side_by_side
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.registry import GroupColumns, TableRegistry
from emberline.train.features import Feature
from emberline.train.zch import RowResetCallback

if TYPE_CHECKING:
    from emberline.train.data import Batch

Part = TypeVar("Part")


class EmbeddingGroupImpl(nn.Module):
    """The DEEP and WIDE groups of one data group, from looked-up vectors and numbers on.

    Args:
        groups: how each group is put together.
        features: every feature, by name.
        device: where the dense embeddings live.
    """

    def __init__(self, groups: Sequence[GroupColumns], features: Mapping[str, Feature], device: torch.device | None = None) -> None:
        super().__init__()
        self.groups = tuple(groups)
        names = dict.fromkeys(name for group in groups for name in group.dense_features)
        self.dense_names = tuple(names)
        embedded = [features[name] for name in names if features[name].dense_embedding is not None]
        self.dense_ec = DenseEmbeddingCollection(embedded, device) if embedded else None

    def forward(self, pooled: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put the groups together.

        Args:
            pooled: each lookup's vectors [B, d] by key.
            dense: each dense feature's numbers [B, value_dim] by name.

        Returns:
            each group's tensor [B, width], its features side by side in the order of its config.
        """
        numbers = {name: dense[name] for name in self.dense_names}
        if self.dense_ec is not None:
            numbers = self.dense_ec(numbers)
        result = {}
        for group in self.groups:
            parts = [numbers[name] if key is None else pooled[key] for name, key in zip(group.features, group.lookups, strict=True)]
            result[group.name] = torch.cat(parts, dim=1)
        return result


class EmbeddingGroup(nn.Module):
    """Embeds a batch's features and lays them out by group.

    Args:
        features: all features, in config order.
        feature_groups: the groups, in config order; DEEP and WIDE.
        wide_embedding_dim: width of every table of WIDE groups; None means 4.
        wide_init_fn: how those tables begin, as text (`nn.init.zeros_`) or spec; None: as the features say.
        device: where the parameters live; None means torch's default.

    Raises:
        ConfigError: with every problem found in features and groups.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        feature_groups: Sequence[FeatureGroupConfig],
        wide_embedding_dim: int | None = None,
        wide_init_fn: InitSpec | str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        device = torch.device(device) if isinstance(device, str) else device
        self.registry = TableRegistry(
            features, feature_groups, wide_embedding_dim=wide_embedding_dim, wide_init=_init_spec(wide_init_fn, "wide_init_fn")
        )
        self.pooled = PooledTables(self.registry, device)
        data_groups = dict.fromkeys(group.data_group for group in self.registry.groups)
        by_data_group = {name: [group for group in self.registry.groups if group.data_group == name] for name in data_groups}
        self.emb_impls = nn.ModuleDict({name: EmbeddingGroupImpl(groups, self.registry.features, device) for name, groups in by_data_group.items()})
        self._dense_features = [feature for feature in features if not feature.is_sparse]
        self._weighted = {feature.name for feature in features if feature.is_weighted}
        self._sparse_names = _sparse_names(self.registry)

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features, in config order."""
        return tuple(self.registry.features.values())

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """Every table."""
        return tuple(table.spec for table in self.registry.tables)

    @property
    def lookups(self) -> tuple[LookupSpec, ...]:
        """Every pooled read, in the order of the columns of `lookup`."""
        return self.registry.lookups

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Every group's tensor, in config order."""
        return tuple(group.spec for group in self.registry.groups)

    @property
    def dense_dim(self) -> int:
        """D: numbers a row of all dense features."""
        return sum(feature.value_dim for feature in self._dense_features)

    def forward(self, batch: "Batch") -> dict[str, Tensor]:
        """Embed a batch.

        Args:
            batch: the features by data group. Data groups may have different numbers of rows.

        Returns:
            each group's tensor [rows of its data group, width] float32.

        Raises:
            DataError: a feature is missing, or has ids, lengths or weights that cannot be right; names it.
        """
        rows = self._rows(batch)
        result = self.assemble(self._lookup(batch, rows), self._dense(batch, rows))
        if len(set(rows.values())) <= 1:
            return result
        return {group.name: result[group.name][: rows[group.data_group]] for group in self.registry.groups}

    def lookup(self, batch: "Batch") -> Tensor:
        """The pooled vectors of all lookups, [B, P] float32; data groups with fewer rows than others end with zeros."""
        return self._lookup(batch, self._rows(batch))

    def dense(self, batch: "Batch") -> Tensor:
        """The numbers of all dense features, [B, D] float32 in config order; zeros for features that no group reads."""
        return self._dense(batch, self._rows(batch))

    def assemble(self, pooled: Tensor, dense: Tensor) -> dict[str, Tensor]:
        """From looked-up vectors and numbers to group tensors; traceable, for any B.

        Args:
            pooled: [B, P], columns as `lookups` says.
            dense: [B, D], columns as the dense features in config order.

        Returns:
            each group's tensor [B, width], groups in config order.
        """
        vectors = _columns(pooled, [(lookup.key, lookup.dim) for lookup in self.lookups])
        numbers = _columns(dense, [(feature.name, feature.value_dim) for feature in self._dense_features])
        result: dict[str, Tensor] = {}
        for impl in self.emb_impls.values():
            result.update(impl(vectors, numbers))
        return {group.name: result[group.name] for group in self.registry.groups}

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called when rows of an unsharded ZCH table change owner, after they got new vectors."""
        self.pooled.on_row_reset(callback)

    def group_names(self) -> list[str]:
        """The groups' names, in config order."""
        return [group.name for group in self.registry.groups]

    def grouped_features_keys(self) -> list[str]:
        """The keys that `forward` returns, sorted."""
        return sorted(self.group_names())

    def has_group(self, name: str) -> bool:
        """Whether there is a group called like the part of `name` before the first dot."""
        return name.split(".")[0] in self.group_names()

    def group_type(self, name: str) -> GroupKind:
        """The kind of a group."""
        return self._group(name).kind

    def group_dims(self, name: str) -> list[int]:
        """The width of each feature's part of a group, in order."""
        return list(self._group(name).dims)

    def group_total_dim(self, name: str) -> int:
        """The width of a group's tensor."""
        return sum(self._group(name).dims)

    def group_feature_dims(self, name: str) -> dict[str, int]:
        """The width of each feature's part of a group, by feature, in order."""
        group = self._group(name)
        return dict(zip(group.features, group.dims, strict=True))

    def _group(self, name: str) -> GroupColumns:
        for group in self.registry.groups:
            if group.name == name.split(".")[0]:
                return group
        raise ConfigError(f"there is no feature group {name!r}; the groups are {', '.join(self.group_names()) or 'none'}")

    def _rows(self, batch: "Batch") -> dict[str, int]:
        """The number of rows of each data group that a group reads."""
        rows = {}
        for data_group, impl in self.emb_impls.items():
            assert isinstance(impl, EmbeddingGroupImpl)
            found = {}
            if self._sparse_names.get(data_group):
                kjt = _part(batch.sparse_features, data_group, "sparse")
                check_jagged(kjt, data_group, self._weighted)
                found["sparse"] = kjt.stride()
            if impl.dense_names:
                found["dense"] = _part(batch.dense_features, data_group, "dense").values().shape[0]
            if len(set(found.values())) > 1:
                raise DataError(f"{data_group} has {found['sparse']} rows of sparse features but {found['dense']} of dense ones")
            rows[data_group] = next(iter(found.values()))
        return rows

    def _lookup(self, batch: "Batch", rows: Mapping[str, int]) -> Tensor:
        parts = {}
        for data_group, names in self._sparse_names.items():
            kjt = batch.sparse_features[data_group]
            _check_present(names, list(kjt.keys()), f"sparse features of {data_group}")
            parts[data_group] = kjt if len(self._sparse_names) == 1 else pick(kjt, names, names)
        num_rows = max(rows.values(), default=0)
        if not parts:
            return torch.zeros(num_rows, 0, device=_device_of(batch))
        pooled: Tensor = self.pooled(side_by_side(parts, num_rows))
        return pooled

    def _dense(self, batch: "Batch", rows: Mapping[str, int]) -> Tensor:
        num_rows = max(rows.values(), default=0)
        read = {name for group in self.registry.groups for name in group.dense_features}
        parts = []
        for feature in self._dense_features:
            if feature.name in read:
                values = _dense_values(batch, feature)
                parts.append(nn.functional.pad(values, (0, 0, 0, num_rows - values.shape[0])) if values.shape[0] < num_rows else values)
            else:
                parts.append(torch.zeros(num_rows, feature.value_dim, device=_device_of(batch)))
        return torch.cat(parts, dim=1).float() if parts else torch.zeros(num_rows, 0, device=_device_of(batch))


def _init_spec(init: InitSpec | str | None, where: str) -> InitSpec | None:
    if not isinstance(init, str):
        return init
    try:
        return InitSpec.parse(init)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _sparse_names(registry: TableRegistry) -> dict[str, list[str]]:
    """The sparse features that some group reads, by data group."""
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(lookup.feature for lookup in registry.lookups):
        names.setdefault(registry.features[name].data_group, []).append(name)
    return names


def _part(parts: Mapping[str, Part], data_group: str, what: str) -> Part:
    if data_group not in parts:
        raise DataError(f"the batch has no {what} features of {data_group}; it has {', '.join(parts) or 'none'}")
    return parts[data_group]


def _check_present(names: Sequence[str], found: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{where}: {', '.join(missing)} missing; the batch has {', '.join(found) or 'none'}")


def _dense_values(batch: "Batch", feature: Feature) -> Tensor:
    """A dense feature's numbers, [rows, value_dim]."""
    keyed = batch.dense_features[feature.data_group]
    _check_present([feature.name], list(keyed.keys()), f"dense features of {feature.data_group}")
    values: Tensor = keyed[feature.name]
    if values.shape[1] != feature.value_dim:
        raise DataError(f"feature {feature.name!r} has {values.shape[1]} numbers a row, but value_dim {feature.value_dim}")
    return values


def _columns(matrix: Tensor, parts: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """A matrix [B, sum of widths] cut into named parts."""
    if not parts:
        return {}
    return dict(zip([name for name, _ in parts], torch.split(matrix, [width for _, width in parts], dim=1), strict=True))


def _device_of(batch: "Batch") -> torch.device:
    for parts in (batch.sparse_features, batch.dense_features):
        for part in parts.values():
            device: torch.device = part.values().device
            return device
    return torch.device("cpu")
