from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from emberline.schema import TableSpec
from emberline.train.sharding.summary import plan_lines


def placed(sharding_type: str, ranks: list[int], kernel: str = "fused") -> ParameterSharding:
    return ParameterSharding(sharding_type=sharding_type, compute_kernel=kernel, ranks=ranks)


def test_a_line_for_all_tables_and_one_for_each() -> None:
    tables = [
        TableSpec(name="user", rows=100_000, dim=16),
        TableSpec(name="item", rows=1024, dim=8, dtype="bf16"),
        TableSpec(name="c", rows=1, dim=1),
    ]
    plan = ShardingPlan(
        {
            "pooled.ebc": EmbeddingModuleShardingPlan(
                {"user": placed("row_wise", [0, 1, 2, 3]), "c": placed("data_parallel", [0, 1, 2, 3], "dense")}
            ),
            "steps.8": EmbeddingModuleShardingPlan({"item": placed("column_wise", [3, 1, 3])}),
        }
    )
    assert plan_lines(plan, tables) == [
        "plan: 3 tables, 6.12 MiB without moments: 1 row_wise fused, 1 column_wise fused, 1 data_parallel dense",
        "table  rows     dim  size     sharding       kernel  ranks",
        "user   100,000  16   6.1 MiB  row_wise       fused   0-3",
        "item   1,024    8    16 KiB   column_wise    fused   1, 3",
        "c      1        1    4 B      data_parallel  dense   0-3",
    ]


def test_of_many_tables_the_largest_are_shown() -> None:
    tables = [TableSpec(name=f"t{place}", rows=256 * (place + 1), dim=4) for place in range(40)]
    kinds = {table.name: placed("table_wise" if place % 4 else "row_wise", [0]) for place, table in enumerate(tables)}
    lines = plan_lines(ShardingPlan({"ebc": EmbeddingModuleShardingPlan(kinds)}), tables)
    assert lines[0] == "plan: 40 tables, 3.2 MiB without moments: 30 table_wise fused, 10 row_wise fused"
    assert [line.split()[0] for line in lines[2:14]] == [f"t{place}" for place in range(39, 27, -1)]
    assert lines[14:] == ["and 28 smaller tables, 1.59 MiB: `emberline plan` shows all"]


def test_no_table_and_one() -> None:
    assert plan_lines(ShardingPlan({}), []) == ["plan: there are no tables"]
    one = ShardingPlan({"ebc": EmbeddingModuleShardingPlan({"a": placed("table_wise", [0])})})
    assert plan_lines(one, [TableSpec(name="a", rows=3, dim=2)])[0] == "plan: 1 table, 24 B without moments: 1 table_wise fused"
