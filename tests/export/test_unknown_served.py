"""Ids that own no row, in models that one, two and three ranks trained: one answer, from the ranks themselves to both servers' two protocols."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from emberline.encoding import columns_from_rows, encode
from emberline.export.answers import model_answers
from emberline.export.export import export_model
from emberline.serving import Engine, PackedRequest
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from emberline.serving.triton.launcher import TritonServer
from emberline.serving.triton.settings import TritonSettings
from emberline.train.checkpoint import load_trained
from emberline.train.zch import owner_of, remap_entries, zch_modules
from tests.train.jobs import Job
from tests.train.rank_runs import run_forked

IDS = (5, 499, 500, 995, -5, 2**63 - 1)
KNOWN_IDS = (10_000, 10_001, -70)
RANKS = (1, 2, 3)
NAMES = ("logits", "probs", "lookup.deep", "known")
Answers = Mapping[str, npt.NDArray[Any]]
CONFIG = """
train_input_path: "DATA"
data_config { fg_mode: FG_NORMAL label_fields: "label" batch_size: 16 }
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
  num_epochs: 1
}
feature_configs {
  id_feature {
    feature_name: "uid" expression: "uid" embedding_dim: 8 value_dim: 1 init_fn: "nn.init.normal_,std=0.1"
    zch { zch_size: 60 eviction_interval: 2 lfu {} }
  }
}
feature_configs {
  id_feature {
    feature_name: "bag" expression: "bag" embedding_dim: 8 pooling: "mean" init_fn: "nn.init.normal_,std=0.1"
    zch { zch_size: 60 eviction_interval: 2 lru {} }
  }
}
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "uid" feature_names: "bag" }
  feature_groups { group_name: "deep" group_type: DEEP feature_names: "uid" feature_names: "bag" }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "uid" feature_names: "bag" }
  deepfm { deep { hidden_units: [8] } final { hidden_units: [4] } }
}
"""
SCORE = """
import sys
from emberline.cli import main
assert main(sys.argv[1:]) == 0
"""


def asked_rows() -> list[dict[str, object]]:
    """Each id alone, and bags of known and unknown ones."""
    alone: list[dict[str, object]] = [{"uid": one, "bag": [one]} for one in (*IDS, *KNOWN_IDS)]
    return [*alone, {"uid": 5, "bag": [*KNOWN_IDS, *IDS]}, {"uid": -5, "bag": [499, 499, 10_000]}, {"uid": 500, "bag": []}]


def table_of(rows: list[dict[str, object]], labels: npt.NDArray[np.float32]) -> pa.Table:
    return pa.table(
        {
            "uid": pa.array([row["uid"] for row in rows], pa.int64()),
            "bag": pa.array([row["bag"] for row in rows], pa.list_(pa.int64())),
            "label": pa.array(labels),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run-N`, trained on N ranks, and `scores-N`, what the same N ranks score."""
    home = tmp_path_factory.mktemp("ranks")
    rng = np.random.default_rng(3)
    trained = [{"uid": int(one), "bag": [*rng.integers(10_000, 10_012, 3).tolist(), -70]} for one in rng.choice([*range(10_000, 10_012), -70], 160)]
    pq.write_table(table_of(trained, rng.integers(0, 2, 160).astype(np.float32)), home / "rows.parquet")
    asked = asked_rows()
    pq.write_table(table_of(asked, np.zeros(len(asked), np.float32)), home / "asked.parquet", row_group_size=3)
    (home / "config.pbtxt").write_text(CONFIG.replace("DATA", str(home / "rows.parquet")))
    (home / "score.py").write_text(SCORE)
    jobs = [Job(ranks, ("train", "--config", str(home / "config.pbtxt"), "--output", str(home / f"run-{ranks}"))) for ranks in RANKS]
    for ranks in RANKS:
        score = ("score", "--checkpoint", str(home / f"run-{ranks}"), "--input", str(home / "asked.parquet"))
        jobs.append(Job(ranks, (str(home / "score.py"), *score, "--output", str(home / f"scores-{ranks}"), "--keep-columns", "uid,bag")))
    run_forked(home, jobs)
    return home


@pytest.fixture(scope="module")
def models(folder: Path) -> Path:
    """One artifact for each number of ranks, and one that refuses unknown ids."""
    for ranks in RANKS:
        export_model(folder / f"run-{ranks}", folder / "models", f"on-{ranks}")
    export_model(folder / "run-2", folder / "models", "refusing", unknown=["uid=error"])
    return folder / "models"


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Mapping[int, Answers]:
    """What each trained model answers, whole, in eval mode."""
    found = {}
    for ranks in RANKS:
        model = load_trained(folder / f"run-{ranks}").model
        schema = model.schema()
        outputs, groups = model_answers(model, schema, encode(schema.features, *columns_from_rows(schema.features, asked_rows())))
        found[ranks] = {name: outputs[name].numpy() for name in ("logits", "probs")} | {"lookup.deep": groups["deep"].numpy()}
    return found


def same(found: Answers, want: Answers) -> None:
    """Vectors of single ids bit by bit, means of bags and outputs within the parity gate's bound; no unknown id is called known."""
    alone = len(IDS) + len(KNOWN_IDS)
    np.testing.assert_array_equal(found["lookup.deep"][:alone], want["lookup.deep"][:alone])
    for name in ("logits", "probs", "lookup.deep"):
        np.testing.assert_allclose(found[name], want[name], rtol=0, atol=1e-6)
    count = len(asked_rows())
    known = found["known"].tolist()
    assert known[: len(IDS)] == [False] * len(IDS)
    assert known[len(IDS) : alone] == [True] * len(KNOWN_IDS)
    assert known[count : count + len(IDS)] == [False] * len(IDS)


@pytest.mark.parametrize("ranks", RANKS)
def test_each_unknown_id_reads_the_fallback_row_of_its_part(folder: Path, wanted: Mapping[int, Answers], ranks: int) -> None:
    model = load_trained(folder / f"run-{ranks}").model
    weight, rows = model.embedding_group.table_weights()["uid_emb"].detach(), zch_modules(model)["uid_emb"].fallback_rows
    owners = owner_of(torch.tensor(IDS), ranks, "mixed").tolist()
    assert len(rows) == ranks
    assert len(set(owners)) > 1 or ranks == 1
    assert len({tuple(weight[row].tolist()) for row in rows}) == ranks
    for one, owner, vector in zip(IDS, owners, wanted[ranks]["lookup.deep"], strict=False):
        np.testing.assert_array_equal(vector[:8], weight[rows[owner]].numpy(), err_msg=str(one))


@pytest.mark.parametrize("ranks", RANKS)
def test_the_ranks_score_as_the_whole_model(folder: Path, wanted: Mapping[int, Answers], ranks: int) -> None:
    scored = pq.read_table(folder / f"scores-{ranks}").to_pylist()
    probs = {(row["uid"], tuple(row["bag"])): row["probs"] for row in scored}
    assert len(probs) == len(scored) == len(asked_rows())
    found = [probs[row["uid"], tuple(row["bag"])] for row in asked_rows()]  # type: ignore[arg-type]
    np.testing.assert_allclose(found, wanted[ranks]["probs"], rtol=0, atol=1e-6)


def packed(engine: Engine) -> PackedRequest:
    return engine.encode_rows(asked_rows())


@pytest.mark.parametrize("ranks", RANKS)
def test_the_engine(models: Path, wanted: Mapping[int, Answers], ranks: int) -> None:
    engine = Engine.open(models / f"on-{ranks}")
    (found,) = engine.predict_many([packed(engine)], [NAMES])
    assert isinstance(found, dict), found
    same({name: value.numpy() for name, value in found.items()}, wanted[ranks])


def test_vectors_for_unknown_ids_take_the_place_of_all_fallback_rows(folder: Path, models: Path, tmp_path: Path) -> None:
    engine = Engine.open(export_model(folder / "run-3", tmp_path, "other", unknown=["uid=zeros", "bag=mean"]))
    found = engine.lookup(packed(engine))["deep"][: len(IDS)]
    model = load_trained(folder / "run-3").model
    rows = remap_entries(zch_modules(model)["bag_emb"])[1]
    mean = model.embedding_group.table_weights()["bag_emb"].detach()[rows].double().mean(dim=0).float()
    assert not found[:, :8].any()
    torch.testing.assert_close(found[:, 8:], mean.expand(len(IDS), 8), rtol=1e-6, atol=0)


def check_servers(places: Mapping[Any, str], models: Path, wanted: Mapping[int, Answers]) -> None:
    """Ask every model over every protocol."""
    asked = 0
    request = packed(Engine.open(models / "on-1"))
    for library, place in places.items():
        inputs = []
        for name, datatype in (("ids", "INT64"), ("lengths", "INT32")):
            values = getattr(request, name).reshape(1, -1)
            inputs.append(library.InferInput(name, list(values.shape), datatype).set_data_from_numpy(values))
        with library.InferenceServerClient(place) as client:
            with pytest.raises(InferenceServerException, match="feature 'uid': row 0: id 5 has no row of its own") as refused:
                client.infer("refusing", inputs)
            assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
            for ranks in RANKS:
                answer = client.infer(f"on-{ranks}", inputs, outputs=[library.InferRequestedOutput(name) for name in NAMES])
                same({name: answer.as_numpy(name)[0] for name in NAMES}, wanted[ranks])
                asked += 1
    assert asked == 2 * len(RANKS)


@pytest.fixture(scope="module")
def embedded(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server


def test_the_embedded_server_over_http_and_grpc(embedded: EmbeddedServer, models: Path, wanted: Mapping[int, Answers]) -> None:
    check_servers({http: embedded.http_url.removeprefix("http://"), grpc: embedded.grpc_url.removeprefix("grpc://")}, models, wanted)


@pytest.mark.triton
def test_triton_over_http_and_grpc(models: Path, wanted: Mapping[int, Answers]) -> None:
    with TritonServer(models, settings=TritonSettings(num_threads=1)) as server:
        check_servers({http: f"127.0.0.1:{server.http_port}", grpc: f"127.0.0.1:{server.grpc_port}"}, models, wanted)
