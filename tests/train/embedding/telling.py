"""Two systems that tests of groups share, what they must give, in float64 loops over the tables, and the forms in which they are asked.

F has ids and a number: `cat_a` (16 wide, 100 rows), `cat_b` (8 wide, 1000 rows), `cat_c` (12 wide, 1000 rows), `int_a`. S has the sequences
`click_seq` (cat_a, cat_b, int_a) and `buy_seq` (cat_a, int_a) beside them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from emberline.train.config import parse_config
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup, SequenceParts
from emberline.train.features import Feature, create_features
from emberline.train.zch import zch_modules
from tests.train.embedding.by_hand import ByHand

FORMS = ("eager", "traced", "scripted")
TABLES = ("plain", "zch")
SEQUENCES = ("click_seq", "buy_seq")
CLICK = ("cat_a", "cat_b", "int_a", "click_seq__cat_a", "click_seq__cat_b", "click_seq__int_a")
BUY = ("cat_a", "int_a", "buy_seq__cat_a", "buy_seq__int_a")
SHAPES = {
    "click.query": (2, 25),
    "click.sequence": (2, 3, 25),
    "click.sequence_length": (2,),
    "buy.query": (2, 17),
    "buy.sequence": (2, 2, 17),
    "buy.sequence_length": (2,),
}
"""The tensors of SEQUENCE groups `click` of CLICK and `buy` of BUY, for the two rows of `sequence_rows()` or `several_ids()`."""
Steps = Sequence[Sequence[int]]


def features(tables: str = "plain", *, multi: str = "", sequences: bool = True) -> list[Feature]:
    """The features of S, or without sequences of F, as a config makes them.

    Args:
        tables: plain, or zch: `cat_a` then has an LFU map and `cat_b` an LRU map.
        multi: sum or mean, for every `cat_a` to have any number of ids and this pooling.
        sequences: whether the sequences are among them.
    """
    zch = tables == "zch"
    rows_a = "zch { zch_size: 100 eviction_interval: 1 lfu {} }" if zch else "num_buckets: 100"
    rows_b = "zch { zch_size: 1000 eviction_interval: 1 lru {} }" if zch else "num_buckets: 1000"
    bags = f'value_dim: 0 pooling: "{multi}"' if multi else ""
    cat_a = f'id_feature {{ feature_name: "cat_a" embedding_dim: 16 {rows_a} {bags} }}'
    cat_b = f'id_feature {{ feature_name: "cat_b" embedding_dim: 8 {rows_b} }}'
    cat_c = 'id_feature { feature_name: "cat_c" embedding_dim: 12 num_buckets: 1000 }'
    int_a = 'raw_feature { feature_name: "int_a" }'
    texts = [cat_a, cat_b, cat_c, int_a]
    if sequences:
        parts = {"click_seq": (cat_a, cat_b, int_a), "buy_seq": (cat_a, int_a)}
        for name, some in parts.items():
            texts.append(f'sequence_feature {{ sequence_name: "{name}" {" ".join(f"features {{ {part} }}" for part in some)} }}')
    config = parse_config("\n".join(f"feature_configs {{ {text} }}" for text in texts))
    return create_features(config.feature_configs)


@dataclass(frozen=True)
class Rows:
    """A batch as lists: ids of each row (of a sequence: one a step), ids of each step of each row, numbers of each row, and of each step."""

    ids: Mapping[str, Steps]
    multi: Mapping[str, Sequence[Steps]] = field(default_factory=dict)
    numbers: Mapping[str, Sequence[Sequence[Sequence[float]]]] = field(default_factory=dict)
    dense: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)

    def batch(self, make: Any) -> Batch:
        """The same as tensors."""
        batch: Batch = make.steps(self.ids, multi=self.multi, numbers=self.numbers, dense=self.dense)
        for name, rows in self.numbers.items():
            batch.sequence_dense_features[name] = make.jagged(rows, 1)
        return batch


def sequence_rows(click: Sequence[int] = (3, 3), buy: Sequence[int] = (2, 2)) -> Rows:
    """Rows of S with these numbers of steps; `buy_seq__cat_b` is no feature and must not matter."""
    lengths = {"click_seq": click, "buy_seq": buy}
    ids: dict[str, list[list[int]]] = {"cat_a": [[7 + row] for row in range(len(click))], "cat_b": [[100 + row] for row in range(len(click))]}
    for place, (name, counts) in enumerate(lengths.items()):
        ids[f"{name}__cat_a"] = [[(11 * place + 5 * row + 3 * step) % 97 for step in range(count)] for row, count in enumerate(counts)]
        ids[f"{name}__cat_b"] = [[(400 * place + 50 * row + 7 * step) % 999 for step in range(count)] for row, count in enumerate(counts)]
    numbers = {
        f"{name}__int_a": [[[row - 0.25 * step] for step in range(count)] for row, count in enumerate(counts)] for name, counts in lengths.items()
    }
    return Rows(ids, numbers=numbers, dense={"int_a": [[0.5 + row] for row in range(len(click))]})


def several_ids() -> Rows:
    """Two rows of S with steps of 1, 0, 3 and 1, 2, 2 ids of `click_seq__cat_a`, 1, 2 and 2, 2 of `buy_seq__cat_a`, and an empty bag of `cat_a`."""
    rows = sequence_rows()
    ids = {name: some for name, some in rows.ids.items() if not name.endswith("_seq__cat_a")} | {"cat_a": [[3, 5], []]}
    multi = {
        "click_seq__cat_a": [[[4], [], [6, 7, 7]], [[8], [9, 10], [11, 4]]],
        "buy_seq__cat_a": [[[12], [13, 14]], [[15, 16], [12, 12]]],
    }
    return Rows(ids, multi, rows.numbers, rows.dense)


def build(make: Any, some: list[Feature], groups: Sequence[FeatureGroupConfig], rows: Rows) -> EmbeddingGroup:
    """The groups in eval mode, with parameters drawn anew; id maps know most of the ids of `rows`."""
    torch.manual_seed(3)
    group = EmbeddingGroup(some, groups)
    if zch_modules(group):
        known = Rows(
            {name: [row[:1] for row in bags] for name, bags in rows.ids.items()},
            {name: [[step[:2] for step in row[:1]] for row in steps] for name, steps in rows.multi.items()},
            {name: [row[:1] for row in steps] for name, steps in rows.numbers.items()},
            rows.dense,
        )
        with torch.no_grad():
            group.train()(known.batch(make))
    for parameter in group.parameters():
        nn.init.normal_(parameter)
    return group.eval()


class Program(nn.Module):
    """What is behind the lookups, of dicts of tensors by name, for a batch with such parts as the example."""

    def __init__(self, group: EmbeddingGroup, example: Batch) -> None:
        super().__init__()
        self.group = group
        parts = group.sequence_lookup(example)
        self.values, self.lengths, self.positions = list(parts.values), list(parts.lengths), list(parts.positions)
        self.outputs = list(group.assemble(group.lookup(example), group.dense(example), parts))

    def forward(
        self, pooled: Tensor, dense: Tensor, values: dict[str, Tensor], lengths: dict[str, Tensor], positions: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        parts = SequenceParts(
            {name: values[name] for name in self.values},
            {name: lengths[name] for name in self.lengths},
            {name: positions[name] for name in self.positions},
        )
        found = self.group.assemble(pooled, dense, parts)
        return {key: found[key] for key in self.outputs}


Answer = Callable[[Batch], dict[str, Tensor]]


def in_form(group: EmbeddingGroup, example: Batch, form: str) -> Answer:
    """What a group gives for any batch: called as it is, as a symbolic trace made with the example, or as that trace scripted."""
    if form == "eager":
        return group
    traced = fx.symbolic_trace(Program(group, example))
    program = traced if form == "traced" else torch.jit.script(traced)

    def answer(batch: Batch) -> dict[str, Tensor]:
        parts = group.sequence_lookup(batch)
        result: dict[str, Tensor] = program(group.lookup(batch), group.dense(batch), parts.values, parts.lengths, parts.positions)
        return result

    return answer


@dataclass(frozen=True)
class System:
    """A group in one form, and what to hold it against."""

    group: EmbeddingGroup
    groups: Sequence[FeatureGroupConfig]
    answer: Answer
    make: Any

    def check(self, rows: Rows) -> dict[str, Tensor]:
        """The answers for these rows, which are those of the loops."""
        with torch.no_grad():
            found = self.answer(rows.batch(self.make))
        check(found, ByHand(self.group, self.groups, rows).results())
        return found


def system(make: Any, some: list[Feature], groups: Sequence[FeatureGroupConfig], rows: Rows, form: str = "eager") -> System:
    """A group as `build` makes it, in one form made with `rows`."""
    group = build(make, some, groups, rows)
    return System(group, groups, in_form(group, rows.batch(make), form), make)


def check(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """The same keys, shapes and numbers."""
    assert sorted(found) == sorted(expected)
    for key, tensor in found.items():
        assert tensor.shape == expected[key].shape, key
        torch.testing.assert_close(tensor.double(), expected[key].double(), rtol=1e-5, atol=1e-5)


def parts_of(name: str) -> Iterator[str]:
    """The keys of a sequence group."""
    yield from (f"{name}.{part}" for part in ("query", "sequence", "sequence_length"))


def nested(name: str, *names: str, suffix: str | None = None) -> SequenceGroupConfig:
    """A sequence group to nest."""
    return SequenceGroupConfig(group_name=name, feature_names=names, embedding_name_suffix=suffix)
