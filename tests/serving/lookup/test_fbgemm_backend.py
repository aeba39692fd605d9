"""fbgemm's kernel against loops in float64 and torch's backend."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emberline.errors import MissingDependencyError
from emberline.schema import Pooling
from emberline.serving.lookup import Bags, TorchLookup
from emberline.serving.lookup.bags import PackedBags
from emberline.serving.lookup.fbgemm_backend import FbgemmLookup
from emberline.serving.lookup.rows import BagRows
from tests.serving.conftest import random_request
from tests.serving.lookup.test_native import CPU, DTYPES, by_loops, rows_of, schema_of, spread, stored_tables

pytest.importorskip("fbgemm_gpu")


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("dtypes", [[name] for name in DTYPES] + [DTYPES])
@pytest.mark.parametrize("num_rows", [0, 1, 20])
def test_pools_as_loops_do(dtypes: list[str], weighted: bool, told: bool, num_rows: int) -> None:
    schema = schema_of([4, 8, 6, 20, 64], weighted=weighted)
    tables, types = stored_tables(schema, dtypes, 4)
    arrays = random_request(schema, num_rows=num_rows, seed=7, most=4, weights=told)
    lookup = FbgemmLookup.of(schema, tables, types, CPU, TorchLookup(schema, tables, types))
    assert lookup.name == "fbgemm"
    found = lookup.pooled(rows_of(schema, arrays))
    torch.testing.assert_close(found, by_loops(schema, tables, types, arrays), rtol=1e-5, atol=1e-5)
    apart = {name: spread(table, 4) for name, table in tables.items()}
    assert torch.equal(FbgemmLookup.of(schema, apart, types, CPU, lookup).pooled(rows_of(schema, arrays)), found)


def test_sums_alone_take_no_weights() -> None:
    schema = schema_of([4, 3], weighted=False)
    schema = replace(schema, lookups=tuple(lookup for lookup in schema.lookups if lookup.pooling is Pooling.SUM))
    tables, types = stored_tables(schema, ["fp32"], 4)
    rows = rows_of(schema, random_request(schema, num_rows=9, seed=7))
    plain = TorchLookup(schema, tables, types)
    torch.testing.assert_close(FbgemmLookup.of(schema, tables, types, CPU, plain).pooled(rows), plain.pooled(rows), rtol=1e-6, atol=1e-6)


def test_a_part_reads_the_same_tables() -> None:
    schema = schema_of([4, 8], weighted=True)
    tables, types = stored_tables(schema, ["fp32", "int8"], 4)
    rows = rows_of(schema, random_request(schema, num_rows=9, seed=7))
    whole = FbgemmLookup.of(schema, tables, types, CPU, TorchLookup(schema, tables, types))
    parts, weights = [], rows.bags.weights
    assert weights is not None
    for place in (0, 1):
        feature = schema.features[place]
        part = replace(schema, features=(feature,), lookups=tuple(lookup for lookup in schema.lookups if lookup.feature == feature.name))
        ids = rows.bags.ids[place]
        bags = Bags.of(PackedBags(ids, rows.bags.offsets[place][None], weights[place]), [ids.numel()])
        parts.append(whole.part(part).pooled(BagRows(bags, {})))
    assert torch.equal(torch.cat(parts, dim=1), whole.pooled(rows))
    assert whole.part(replace(schema, lookups=())).name == "torch"


def test_a_model_without_pooled_lookups_is_left_to_the_other() -> None:
    schema = replace(schema_of([4], weighted=False), lookups=())
    other = TorchLookup(schema, {}, {})
    assert FbgemmLookup.of(schema, {}, {}, CPU, other) is other


def test_what_fbgemm_does_not_take_is_refused() -> None:
    schema = schema_of([5], weighted=False)
    tables, types = stored_tables(schema, ["int4"], 4)
    with pytest.raises(MissingDependencyError, match=r"^fbgemm takes no table of int4 and 5 numbers a row, as 't0' is: look up by native or torch$"):
        FbgemmLookup.of(schema, tables, types, CPU, TorchLookup(schema, tables, types))


def test_a_row_that_the_table_lacks_is_refused() -> None:
    schema = schema_of([4], weighted=False)
    tables, types = stored_tables(schema, ["fp32"], 0)
    rows = rows_of(schema, {"ids": np.array([1, 2]), "lengths": np.array([0, 2])})
    broken = BagRows(rows.bags, {(1, "t0"): (torch.tensor([3, 10]), torch.tensor([True, True]))})
    with pytest.raises(RuntimeError):
        FbgemmLookup.of(schema, tables, types, CPU, TorchLookup(schema, tables, types)).pooled(broken)
