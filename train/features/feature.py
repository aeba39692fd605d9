"""One feature as the rest of training sees it: what is read, how it becomes ids or floats, and which table it reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from emberline.schema import FeatureKind, FeatureSpec, Keep, Pooling
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.features.configs import DenseEmbeddingConfig, EmbeddingConstraints, ZchConfig

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints

    from emberline.train.config.functions import InitSpec

BASE_DATA_GROUP = "__BASE__"
NEG_DATA_GROUP = "__NEG__"
CROSS_NEG_DATA_GROUP = "__CNEG__"


class Side(StrEnum):
    """Whose rows a feature has: one a user, or one a pair of user and item."""

    USER = "user"
    ITEM = "item"


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature, checked and complete.

    Args:
        name: unique in a model.
        spec: columns and encoder, as the core and serving know them.
        data_group: features of one data group share a batch size: `__BASE__`, `__NEG__` (reads a sampled field), `__CNEG__` (crosses one
            with the user's side).
        embedding_dim: width of the table or of the dense embedding; 0 for numbers that pass through.
        embedding_name: the table's name before a group adds to it; empty for dense features.
        rows: rows of the table; 0 for dense features.
        pooling: how the vectors of one row's ids become one.
        init: how the table starts; None means uniform in +-sqrt(1 / rows).
        dtype: the table's type: fp32, fp16 or bf16.
        trainable: False freezes the table.
        zch: settings of the zero-collision hash table, if it is one; its `eviction_policy` is set.
        dense_embedding: how a dense feature's numbers become vectors; None passes them through.
        constraints: what the planner may choose for the table, without `pooling_factor`; None: everything.
        pooling_factor: mean ids a row, as the config says; None where it does not.
        dynamicemb: how the table grows with its ids, if it does; `rows` is then its capacity.
        sequence_name: the grouped sequence that it belongs to, whose features have one number of steps in each row; empty for a sequence of its
            own, and for what is no sequence.
    """

    name: str
    spec: FeatureSpec
    data_group: str = BASE_DATA_GROUP
    embedding_dim: int = 0
    embedding_name: str = ""
    rows: int = 0
    pooling: Pooling = Pooling.SUM
    init: "InitSpec | None" = None
    dtype: str = "fp32"
    trainable: bool = True
    zch: ZchConfig | None = None
    dense_embedding: DenseEmbeddingConfig | None = None
    constraints: EmbeddingConstraints | None = None
    pooling_factor: float | None = None
    dynamicemb: DynamicEmbOptions | None = None
    sequence_name: str = ""

    @property
    def side(self) -> Side | None:
        """Whose rows it has in a tiled batch: the user's where all its raw columns are the user's; None where the config does not say."""
        if not self.spec.side:
            return None
        return Side.USER if self.spec.is_per_user else Side.ITEM

    @property
    def is_sparse(self) -> bool:
        """Whether the feature reads a table."""
        return self.spec.kind is FeatureKind.SPARSE

    @property
    def is_weighted(self) -> bool:
        """Whether each id has a weight."""
        return self.spec.weighted

    @property
    def value_dim(self) -> int:
        """Dense: floats a row. Sparse: most ids a row, 0 for any number. In a sequence: of each step."""
        return self.spec.value_dim

    @property
    def use_dynamicemb(self) -> bool:
        """Whether its table grows with its ids."""
        return self.dynamicemb is not None

    @property
    def raw_ids(self) -> bool:
        """Whether its ids are any int64 when they come to its table, which is no block of rows but finds a row for each by itself."""
        return self.use_dynamicemb

    @property
    def table_marks(self) -> Mapping[str, object]:
        """Attributes that TorchRec's config of its table gets beside its fields: `use_dynamicemb`."""
        return {"use_dynamicemb": self.use_dynamicemb}

    @property
    def table_problems(self) -> list[str]:
        """What can't be of a table that grows, in a feature that was put together by hand."""
        if self.dynamicemb is None:
            return []
        found = ["zch and dynamicemb exclude each other"] if self.zch is not None else []
        if self.rows != self.dynamicemb.max_capacity:
            found.append(f"its table has {self.rows} rows, but max_capacity {self.dynamicemb.max_capacity}")
        return found

    def parameter_constraints(self) -> "ParameterConstraints | None":
        """What a planner may choose for the feature's table.

        Returns:
            `DynamicEmbParameterConstraints` of a table that grows; of others `TableConstraints`, or None where nothing is asked for.
        """
        from emberline.train.features.placement import asked_of, dynamic_constraints  # late: a config is read without TorchRec

        if self.dynamicemb is not None:
            return dynamic_constraints(self.dynamicemb, self.constraints)
        return None if self.constraints is None else asked_of(self.constraints)

    @property
    def is_sequence(self) -> bool:
        """Whether each row has a list of steps."""
        return self.spec.sequence

    @property
    def sequence_length(self) -> int:
        """Most steps a row; 0 for any number."""
        return self.spec.sequence_length

    @property
    def keep(self) -> Keep:
        """Which steps of a longer row are kept."""
        return self.spec.keep

    @property
    def output_dim(self) -> int:
        """Width of what a group gets of a row or step: `embedding_dim`, or `value_dim` for numbers that pass through."""
        return self.embedding_dim if self.is_sparse or self.dense_embedding is not None else self.value_dim
