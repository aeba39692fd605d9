"""What of a model is sharded."""

from emberline.train.sharding import create_sharders
from emberline.train.sharding.shardable import shardable_modules, shardable_tables
from tests.train.sharding.cases import deep, group_of, id_feature, steps, steps_feature, zch_feature

TEXT = id_feature("a", 10) + zch_feature("z", 9) + steps_feature("s", 8) + deep("a", "z") + steps("s")


def test_every_collection_is_found_once() -> None:
    found = {path: sharder.module_type is type(module) for path, module, sharder in shardable_modules(group_of(TEXT), create_sharders())}
    assert found == {"pooled.ebc": True, "pooled.mc_ebc": True, "sequence_tables.ec_dict.16": True}


def test_every_table_is_found_once_by_full_path() -> None:
    found = [
        (table.path, tuple(table.weight.shape), table.sharder.module_type is table.kind)
        for table in shardable_tables(group_of(TEXT), create_sharders())
    ]
    assert found == [
        ("pooled.ebc.a_emb", (10, 16), True),
        ("pooled.mc_ebc.z_emb", (9, 16), True),
        ("sequence_tables.ec_dict.16.s_emb", (8, 16), True),
    ]
