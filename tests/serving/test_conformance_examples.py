"""Every example, trained on two ranks, exported and served: each server, protocol and client gives the trained model's answers."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch

from emberline.schema import ModelSchema, TableKind
from emberline.serving import Client
from emberline.serving.client import AsyncClient
from emberline.serving.encoded import pack_encoded
from emberline.serving.protocol.wire import wire_inputs
from emberline.train.checkpoint import Trained, load_trained
from emberline.train.data import DataReader
from tests.example_runs import NAMES, exported_examples, trained_examples
from tests.export.odd_requests import cases_of, exported_schema, remaps_of, wanted_of
from tests.serving.ways import BOTH_SERVERS, Urls, Way, served

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread")]

BOUND = 1e-5
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Example:
    """What one model is asked, and what it answered where it was trained.

    Args:
        name: of the model.
        schema: the model's description.
        odd: odd requests by name: inputs, the outputs, and which of the ids have a row of their own.
        rows: a file of raw rows.
        wanted: the outputs for them.
    """

    name: str
    schema: ModelSchema
    odd: Mapping[str, tuple[Arrays, Arrays, list[bool]]]
    rows: Path
    wanted: Arrays

    @property
    def outputs(self) -> list[str]:
        return [output.name for output in self.schema.outputs]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Mapping[str, Example]:
    runs = trained_examples(tmp_path_factory, worker_id)
    return {name: read_example(name, run) for name, run in runs.items()}


def read_example(name: str, run: Path) -> Example:
    trained = load_trained(run)
    schema, odd = trained.model.schema(), {}
    for case in cases_of(trained):
        request = pack_encoded(schema, case.encoded)
        given = {tensor.name: getattr(request, tensor.name) for tensor in wire_inputs(schema)}
        inputs = {key: values for key, values in given.items() if values is not None}
        odd[case.name] = (inputs, numpy_of(wanted_of(trained, case)), known_of(trained, inputs))
    path = run.parent / "eval.parquet"
    batch = next(iter(DataReader(trained.config.data, trained.features, str(path), batch_size=1000, with_labels=False, shuffle=False)))
    with torch.no_grad():
        return Example(name, exported_schema(trained), odd, path, numpy_of(trained.model(batch)))


def numpy_of(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def known_of(trained: Trained, inputs: Arrays) -> list[bool]:
    """Whether each id has a row of its own: all ids of static tables have."""
    schema = trained.model.schema()
    if not schema.sparse_features:
        return []
    owned = {table: set(remap.raw_ids.tolist()) for table, remap in remaps_of(trained).items()}
    kinds = {table.name: table.kind for table in schema.tables}
    lengths = inputs["lengths"].reshape(len(schema.sparse_features), -1).sum(axis=1)
    parts = np.split(inputs["ids"], np.cumsum(lengths)[:-1])
    found: list[bool] = []
    for feature, ids in zip(schema.sparse_features, parts, strict=True):
        tables = [lookup.table for lookup in schema.reads if lookup.feature == feature.name and kinds[lookup.table] is not TableKind.STATIC]
        found += [all(one in owned[table] for table in tables) for one in ids.tolist()]
    return found


@pytest.fixture(scope="module", params=BOTH_SERVERS)
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Urls]:
    models = exported_examples(tmp_path_factory, worker_id)
    with served(request.param, models) as found:
        yield found


def near(found: npt.NDArray[Any], want: npt.NDArray[Any], what: str) -> None:
    assert (found.dtype, found.shape) == (want.dtype, want.shape), what
    np.testing.assert_allclose(found, want, rtol=BOUND, atol=BOUND, err_msg=what)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("client", ["http", "http-aio", "grpc", "grpc-aio"])
def test_odd_requests_are_answered_as_the_trained_model_does(urls: Urls, examples: Mapping[str, Example], client: str, name: str) -> None:
    example, way = examples[name], Way(client, urls[client[:4]].partition("://")[2])
    for case, (inputs, wanted, known) in example.odd.items():
        found = way.infer(inputs, [*example.outputs, *(["known"] if example.schema.sparse_features else [])], model=name)
        for output in example.outputs:
            near(found.as_numpy(output), wanted[output][None], f"{case}: {output}")
        if example.schema.sparse_features:
            assert found.as_numpy("known").tolist() == [known], case


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_raw_rows_are_answered_as_the_trained_model_does(urls: Urls, examples: Mapping[str, Example], protocol: str, name: str) -> None:
    example, url = examples[name], urls[protocol]
    table = pq.read_table(example.rows)

    async def ask() -> Arrays:
        async with AsyncClient(url, name) as client:
            return await client.predict(table)

    with Client(url, name, max_rows=7) as client:
        assert client.schema == example.schema
        answers = [client.predict(table), asyncio.run(ask())]
    for found in answers:
        assert list(found) == example.outputs
        for output, want in example.wanted.items():
            near(found[output], want, output)


def test_some_of_them_have_ids_that_are_known_and_ids_that_are_not(examples: Mapping[str, Example]) -> None:
    zch = [example for example in examples.values() if any(table.kind is TableKind.ZCH for table in example.schema.tables)]
    assert zch
    for example in zch:
        assert {one for _, _, known in example.odd.values() for one in known} == {True, False}
