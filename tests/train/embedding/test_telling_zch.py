"""Id maps inside of groups: when an id gets its row, what is read until then, and features of several tables."""

from typing import Any

import pytest
import torch

from emberline.schema import GroupKind
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import LfuPolicy, ZchConfig
from emberline.train.zch import zch_modules
from tests.train.embedding.telling import FORMS, in_form


def zch(rows: int, interval: int) -> ZchConfig:
    return ZchConfig(zch_size=rows, eviction_interval=interval, eviction_policy=LfuPolicy())


@pytest.mark.parametrize("kind", [GroupKind.DEEP, GroupKind.SEQUENCE])
def test_ids_read_the_fallback_until_the_call_that_admits_them(make: Any, kind: GroupKind) -> None:
    feature = make.sparse if kind is GroupKind.DEEP else make.sequence
    group = EmbeddingGroup([feature("f", zch=zch(8, 5))], [make.group("g", "f", group_type=kind)])
    make.counted(group, f_emb=0)
    for weight in group.table_weights().values():
        weight.requires_grad_(False)
    key = "g" if kind is GroupKind.DEEP else "g.sequence"
    for call in range(1, 11):
        ids = [[100], [200]] if call < 6 else [[100], [300]]
        found = group.train()(make.batch({"f": ids}))[key].reshape(2, -1)[:, 0].tolist()
        if call < 5:
            assert found == [7, 7], call  # the last row is everyone's who owns none
        elif call < 10:
            assert found[0] != 7, call
            assert (found[1] == 7) == (call > 5), call
        else:
            assert len({*found, 7.0}) == 3
    maps: list[Any] = list(zch_modules(group).values())
    (module,) = maps
    assert module.rows_in_use == 3
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    asked = group.eval()(make.batch({"f": [[100], [999], []]}))
    rows = asked[key].reshape(3, -1)[:, 0].tolist()
    assert (rows[0] != 7, rows[1:]) == (True, [7, 0])
    assert all(torch.equal(before[name], buffer) for name, buffer in module.named_buffers())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
def test_a_feature_of_two_tables_reads_each_by_its_own_map(make: Any, form: str) -> None:
    """One table is shared with another feature, so that the same id has another row in each."""
    some = [make.sparse("a", embedding_name="t", zch=zch(8, 1)), make.sparse("b", embedding_name="t", zch=zch(8, 1))]
    groups = [make.group("wide", "a", group_type=GroupKind.WIDE), make.group("deep", "b", "a")]
    group = EmbeddingGroup(some, groups)
    make.counted(group, t=0, t_wide=100)
    group.train()(make.batch({"a": [[5, 6], [7]], "b": [[10, 20], [30]]}))
    group.eval()
    batch = make.batch({"a": [[5], [7, 7], []], "b": [[20], [99], []]})
    maps = {table: {one: int(module.rows_of(torch.tensor([one]))[0]) for one in (5, 7, 20, 99)} for table, module in zch_modules(group).items()}
    assert maps["t"][5] != maps["t_wide"][5]
    assert maps["t"][99] == 7
    with torch.no_grad():
        found = in_form(group, batch, form)(batch)
    assert found["wide"][:, 0].tolist() == [100 + maps["t_wide"][5], 2 * (100 + maps["t_wide"][7]), 0]
    assert found["deep"][:, 0].tolist() == [maps["t"][20], 7, 0]
    assert found["deep"][:, 4].tolist() == [maps["t"][5], 2 * maps["t"][7], 0]
