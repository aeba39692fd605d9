"""Engines on a CUDA device: the answers of a CPU, inputs and answers that stay where they are, and what goes wrong."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from emberline.errors import ConfigError, MissingDependencyError, ServingError
from emberline.serving import Engine, PackedRequest
from emberline.serving.device_request import DeviceMerger
from emberline.serving.lookup import Bags, RowFinder, TorchLookup, choose_finder, choose_lookup
from emberline.serving.quantized import STORED_DTYPES
from emberline.serving.request import RequestValidator
from tests.serving.conftest import Arrays, ToyModel, make_toy, random_request
from tests.serving.lookup.test_native import schema_of, stored_tables
from tests.serving.test_device_request import RAW_IDS, put

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> ToyModel:
    return make_toy()


@pytest.fixture(scope="module")
def artifact(model: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.write(tmp_path_factory.mktemp("models"))


@pytest.fixture
def watched() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings, of which torch gives one for each time that the host waits for the device."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield found
        torch.cuda.set_sync_debug_mode("default")


def requests_of(model: ToyModel) -> list[Arrays]:
    return [random_request(model.schema, num_rows=rows, seed=rows, raw_ids=RAW_IDS, weights=rows != 3) for rows in (1, 3, 40)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES))
@pytest.mark.parametrize("name", ["torch", "fused", "fbgemm"])
def test_lookups_are_those_of_a_cpu(name: str, dtype: str) -> None:
    if name != "torch":
        pytest.importorskip("triton" if name == "fused" else "fbgemm_gpu")
    schema = schema_of([4, 8, 64], weighted=True)
    tables, types = stored_tables(schema, [dtype], 2)
    checked = RequestValidator(schema).check(PackedRequest(**random_request(schema, num_rows=33, seed=1)))
    try:
        lookup = choose_lookup(schema, {table: rows.cuda() for table, rows in tables.items()}, types, CUDA, name)
    except MissingDependencyError as error:
        assert name == "fbgemm"
        pytest.skip(str(error))
    found = lookup.pooled(choose_finder(schema, {}, lookup)(Bags.cut(checked, 2, CUDA)))
    want = TorchLookup(schema, tables, types).pooled(RowFinder(schema, {})(Bags.cut(checked, 2, CPU)))
    torch.testing.assert_close(found.cpu(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("lookup", [None, "fused"])
def test_an_engine_answers_as_on_a_cpu_and_leaves_answers_on_the_device(lookup: str | None, model: ToyModel, artifact: Path) -> None:
    if lookup == "fused":
        pytest.importorskip("triton")
    there, here = Engine.open(artifact, device="cuda", lookup=lookup), Engine.open(artifact)
    arrays, names = requests_of(model), [here.answer_names] * 3
    want = here.predict_many([PackedRequest(**one) for one in arrays], names)
    for requests in ([PackedRequest(**one) for one in arrays], [put(one, CUDA) for one in arrays]):
        for mine, theirs in zip(there.predict_many(requests, names), want, strict=True):
            assert isinstance(mine, dict)
            assert isinstance(theirs, dict)
            assert all(answer.is_cuda for answer in mine.values())
            for name, answer in theirs.items():
                torch.testing.assert_close(mine[name].cpu(), answer, rtol=1e-5, atol=1e-5)
    assert there.id_counts()["user_emb"].asked == 2 * here.id_counts()["user_emb"].asked


@pytest.mark.gpu
def test_the_host_waits_once_for_the_check_of_a_batch(model: ToyModel, watched: list[warnings.WarningMessage]) -> None:
    merger, requests = DeviceMerger(model.schema, CUDA), [put(one, CUDA) for one in requests_of(model)]
    merger(requests)
    watched.clear()
    _, wrong = merger(requests)
    assert wrong == [False] * 3
    assert len([one for one in watched if "synchroniz" in str(one.message)]) == 1


@pytest.mark.gpu
def test_tensors_come_and_go_by_dlpack_in_the_same_memory(model: ToyModel, artifact: Path) -> None:
    request = put(requests_of(model)[2], CUDA)
    taken = from_dlpack(request.ids)
    assert taken.data_ptr() == request.ids.data_ptr()
    (answer,) = Engine.open(artifact, device="cuda").predict_many([request])
    assert isinstance(answer, dict)
    assert from_dlpack(answer["probs"]).data_ptr() == answer["probs"].data_ptr()


@pytest.mark.gpu
def test_a_mistake_is_told_as_on_a_cpu(model: ToyModel, artifact: Path) -> None:
    good, bad = requests_of(model)[1], requests_of(model)[2]
    bad["dense"][4] = np.nan
    found = Engine.open(artifact, device="cuda").predict_many([put(bad, CUDA), put(good, CUDA)])
    want = Engine.open(artifact).predict_many([PackedRequest(**bad), PackedRequest(**good)])
    assert isinstance(found[0], ServingError)
    assert str(found[0]) == str(want[0])
    assert isinstance(found[1], dict)


@pytest.mark.gpu
def test_two_engines_on_two_devices(model: ToyModel, artifact: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"it needs two CUDA devices; here are {torch.cuda.device_count()}")
    arrays = requests_of(model)[2]
    answers = [Engine.open(artifact, device=f"cuda:{number}").predict(PackedRequest(**arrays))["probs"] for number in range(2)]
    assert [answer.device.index for answer in answers] == [0, 1]
    torch.testing.assert_close(answers[0].cpu(), answers[1].cpu())
    (moved,) = Engine.open(artifact, device="cuda:1").predict_many([put(arrays, torch.device("cuda:0"))])
    assert isinstance(moved, dict)
    assert moved["probs"].device.index == 1


@pytest.mark.gpu
def test_without_memory_a_request_fails_and_the_next_is_answered(model: ToyModel, artifact: Path) -> None:
    engine, num_rows = Engine.open(artifact, device="cuda"), 2_000_000
    huge = PackedRequest(np.empty(0, np.int64), np.zeros(4 * num_rows, np.int32), dense=np.zeros(3 * num_rows, np.float32))
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        (failed,) = engine.predict_many([huge])
        assert isinstance(failed, ServingError)
        assert str(failed) == "the model failed on this request; the server's log tells more"
        torch.cuda.empty_cache()
        (answer,) = engine.predict_many([PackedRequest(**requests_of(model)[0])])
        assert isinstance(answer, dict)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_devices_and_memories_that_are_not_there(artifact: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"^device 'cuda:99' is not there: torch .* sees \d+ CUDA devices$"):
        Engine.open(artifact, device="cuda:99")
    if torch.cuda.is_available():
        with pytest.raises(ConfigError, match="tables are mapped for lookups on a CPU; on cuda they are in its own memory"):
            Engine.open(artifact, device="cuda", tables="mapped")
