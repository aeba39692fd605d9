"""Features, groups and batches in a line each, and the slow and plain oracle for pooled reads."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, NumericEncoder, Pooling, RawIdEncoder
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import BASE_DATA_GROUP, Feature, ZchConfig
from emberline.train.sharding import process_group

Bags = Sequence[Sequence[int]]


@dataclass
class Make:
    """Short ways to what the tests need."""

    weights: dict[str, list[list[float]]] = field(default_factory=dict)

    @staticmethod
    def sparse(name: str, *, rows: int = 10, dim: int = 4, zch: ZchConfig | None = None, weighted: bool = False, **other: object) -> Feature:
        rows = zch.zch_size if zch is not None else rows
        encoder = RawIdEncoder() if zch is not None else BucketEncoder(rows=rows)
        spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=encoder, weighted=weighted)
        fields = {"embedding_name": f"{name}_emb", "embedding_dim": dim, "rows": rows, "zch": zch} | other
        return Feature(name=name, spec=spec, **fields)  # type: ignore[arg-type]

    @staticmethod
    def dense(name: str, value_dim: int = 1, **other: object) -> Feature:
        spec = FeatureSpec(name=name, kind=FeatureKind.DENSE, columns=(name,), encoder=NumericEncoder(), value_dim=value_dim)
        return Feature(name=name, spec=spec, **other)  # type: ignore[arg-type]

    @staticmethod
    def sequence(name: str, *, value_dim: int = 1, rows: int = 10, dim: int = 4, weighted: bool = False, **other: object) -> Feature:
        """A sequence of ids; `value_dim` 0 for steps of any number of ids."""
        feature = Make.sparse(name, rows=rows, dim=dim, weighted=weighted, **other)  # type: ignore[arg-type]
        return replace(feature, spec=replace(feature.spec, sequence=True, value_dim=value_dim))

    @staticmethod
    def numbers(name: str, value_dim: int = 1, **other: object) -> Feature:
        """A sequence of numbers."""
        feature = Make.dense(name, value_dim, **other)
        return replace(feature, spec=replace(feature.spec, sequence=True))

    @staticmethod
    def group(name: str, *features: str, **other: object) -> FeatureGroupConfig:
        return FeatureGroupConfig(group_name=name, feature_names=features, **other)  # type: ignore[arg-type]

    @staticmethod
    def kjt(bags: Mapping[str, Bags], weights: Mapping[str, Sequence[Sequence[float]]] | None = None) -> KeyedJaggedTensor:
        """Bags by feature; where `weights` names some features, the others' ids get 1.0."""
        ids = [one for rows in bags.values() for row in rows for one in row]
        lengths = [len(row) for rows in bags.values() for row in rows]
        flat = None
        if weights is not None:
            flat = [weight for key, rows in bags.items() for row in weights.get(key, [[1.0] * len(row) for row in rows]) for weight in row]
        return KeyedJaggedTensor(
            keys=list(bags),
            values=torch.tensor(ids, dtype=torch.int64),
            lengths=torch.tensor(lengths, dtype=torch.int32),
            weights=torch.tensor(flat, dtype=torch.float32) if flat is not None else None,
        )

    @staticmethod
    def batch(
        bags: Mapping[str, Bags] | None = None,
        numbers: Mapping[str, Sequence[Sequence[float]]] | None = None,
        *,
        weights: Mapping[str, Sequence[Sequence[float]]] | None = None,
        data_group: str = BASE_DATA_GROUP,
    ) -> Batch:
        sparse = {data_group: Make.kjt(bags, weights)} if bags is not None else {}
        dense = {}
        if numbers is not None:
            parts = {name: torch.tensor(rows, dtype=torch.float32).view(len(rows), -1 if len(rows) else 1) for name, rows in numbers.items()}
            widths = [part.shape[1] for part in parts.values()]
            dense = {data_group: KeyedTensor(keys=list(parts), length_per_key=widths, values=torch.cat(list(parts.values()), dim=1))}
        return Batch(sparse_features=sparse, dense_features=dense)

    @staticmethod
    def steps(
        ids: Mapping[str, Bags] | None = None,
        *,
        multi: Mapping[str, Sequence[Bags]] | None = None,
        numbers: Mapping[str, Sequence[Sequence[Sequence[float]]]] | None = None,
        dense: Mapping[str, Sequence[Sequence[float]]] | None = None,
        weights: Mapping[str, Sequence[Sequence[float]]] | None = None,
        data_group: str = BASE_DATA_GROUP,
    ) -> Batch:
        """A batch with sequences: `ids` has rows of ids (bags, or steps of one id), `multi` rows of steps of ids, `numbers` rows of steps of floats.

        `weights` has a list a row, the steps of a row one after the other.
        """
        flat = {name: [[one for step in row for one in step] for row in rows] for name, rows in (multi or {}).items()}
        bags = {**(ids or {}), **flat}
        batch = Make.batch(bags if bags else None, dense, weights=weights, data_group=data_group)
        sizes = {name: [[len(step) for step in row] for row in rows] for name, rows in (multi or {}).items()}
        steps = {name: Make.jagged(rows) for name, rows in (numbers or {}).items()}
        return replace(batch, sequence_dense_features=steps, sequence_mulval_lengths={data_group: Make.kjt(sizes)} if sizes else {})

    @staticmethod
    def jagged(rows: Sequence[Sequence[Sequence[float]]], width: int = 1) -> JaggedTensor:
        """Rows of steps of numbers."""
        items = [step for row in rows for step in row]
        values = torch.tensor(items, dtype=torch.float32).view(len(items), len(items[0]) if items else width)
        return JaggedTensor(values=values, lengths=torch.tensor([len(row) for row in rows], dtype=torch.int32))

    @staticmethod
    def counted(group: EmbeddingGroup, **starts: float) -> None:
        """Give each named table rows of constants: row i of table t is starts[t] + i everywhere."""
        for table, start in starts.items():
            weight = group.table_weights()[table]
            with torch.no_grad():
                weight.copy_((start + torch.arange(weight.shape[0]))[:, None].expand_as(weight))
        group.mark_untrained()


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture(scope="module")
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


Oracle = Callable[..., Tensor]


@pytest.fixture(scope="session")
def pooled_by_hand() -> Oracle:
    """Pooling as the definition says it, bag by bag in float64: sum of w*e, or that over the sum of w, and zeros where that is 0."""

    def pooled(table: Tensor, bags: Bags, weights: Sequence[Sequence[float]] | None = None, pooling: Pooling = Pooling.SUM) -> Tensor:
        result = torch.zeros(len(bags), table.shape[1], dtype=torch.float64)
        for row, bag in enumerate(bags):
            bag_weights = [float(torch.tensor(weight)) for weight in weights[row]] if weights is not None else [1.0] * len(bag)
            for one, weight in zip(bag, bag_weights, strict=True):
                result[row] += weight * table[one].double()
            if pooling is Pooling.MEAN:
                total = math.fsum(bag_weights)
                result[row] = result[row] / total if total != 0 else 0
        return result

    return pooled
