"""What an artifact answers for ids that own no row: each policy against sums worked out here from the trained tables, in float64."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from emberline.cli import main
from emberline.errors import ArtifactError, ExportError, ParityError, RequestError, ServingError
from emberline.export.export import export_model
from emberline.export.unknown import UnknownPlan
from emberline.manifest import read_manifest, write_manifest
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.artifact import load_manifest
from emberline.serving.engine import Engine
from emberline.serving.protocol.describe import model_config
from emberline.serving.triton.config import config_text
from emberline.train.zch import remap_entries, zch_modules
from tests.export.conftest import SmallRun

UNKNOWN = (499, 995, -6, 2**63 - 1)
Vector = npt.NDArray[np.float64]


class Oracle:
    """The trained tables and maps as dictionaries of float64 rows."""

    def __init__(self, run: SmallRun) -> None:
        model = run.load().model
        weights = {name: weight.detach().double().numpy() for name, weight in model.embedding_group.table_weights().items()}
        self.rows: dict[str, dict[int, Vector]] = {}
        self.fallback: dict[str, Vector] = {}
        for table, module in zch_modules(model).items():
            ids, rows, _, fallbacks = (part.tolist() for part in remap_entries(module))
            assert len(fallbacks) == 1
            self.rows[table] = {one: weights[table][row] for one, row in zip(ids, rows, strict=True)}
            self.fallback[table] = weights[table][fallbacks[0]]

    def vector(self, table: str, one: int, policy: str) -> Vector:
        mean = np.mean(list(self.rows[table].values()), axis=0)
        instead = {"fallback": self.fallback[table], "zeros": np.zeros_like(mean), "mean": mean}
        return self.rows[table][one] if one in self.rows[table] else instead[policy]

    def pooled(self, table: str, bag: Mapping[int, float], policy: str) -> Vector:
        """A weighted sum."""
        return sum((weight * self.vector(table, one, policy) for one, weight in bag.items()), np.zeros_like(self.fallback[table]))


@pytest.fixture(scope="module")
def oracle(small_run: SmallRun) -> Oracle:
    return Oracle(small_run)


@pytest.fixture(scope="module")
def artifacts(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By what `--unknown` says."""
    models = tmp_path_factory.mktemp("models")
    told = {"zeros": ["zeros"], "mean": ["mean"], "error": ["uid=error"], "mixed": ["mean", "buys=zeros"], "fallback": []}
    return {name: export_model(small_run.path, models, name, unknown=unknown) for name, unknown in told.items()}


def columns_of(engine: Engine, found: Tensor, feature: str) -> Tensor:
    """A feature's columns of the group `deep`, whose features are in the order of the config."""
    widths = {"uid": 4, "tags": 8, "city": 4, "color": 4, "clicks": 4, "buys": 4}
    start = sum(width for place, width in enumerate(widths.values()) if place < list(widths).index(feature))
    return found[:, start : start + widths[feature]]


def row_with(run: SmallRun, **values: object) -> dict[str, object]:
    return dict(run.rows[0], **values)


@pytest.mark.parametrize(("name", "uid", "buys"), [("zeros",) * 3, ("mean",) * 3, ("mixed", "mean", "zeros"), ("fallback",) * 3])
def test_unknown_ids_read_what_was_said_and_known_ids_their_own_rows(
    artifacts: Mapping[str, Path], oracle: Oracle, small_run: SmallRun, name: str, uid: str, buys: str
) -> None:
    engine = Engine.open(artifacts[name])
    own = next(iter(oracle.rows["buys_emb"]))
    bags: list[dict[int, float]] = [{}, {own: 0.5}, {499: 2.0}, {own: 0.25, 499: -1.5, 995: 0.5}]
    ids = [*UNKNOWN, 5, -5, 100]
    rows = [row_with(small_run, uid=one, buys=bags[place % 4]) for place, one in enumerate(ids)]
    request = engine.encode_rows(rows)
    found = engine.lookup(request)["deep"]
    want_uid = [oracle.vector("uid_emb", one, uid) for one in ids]
    want_buys = [oracle.pooled("buys_emb", bags[place % 4], buys) for place in range(len(ids))]
    np.testing.assert_allclose(columns_of(engine, found, "uid"), np.array(want_uid), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(columns_of(engine, found, "buys"), np.array(want_buys), rtol=1e-6, atol=1e-7)
    known = engine.known(request)[: len(ids)].tolist()
    assert known == [one in oracle.rows["uid_emb"] for one in ids]
    assert not any(known[: len(UNKNOWN)])


def test_zeros_are_zeros_bit_by_bit(artifacts: Mapping[str, Path], small_run: SmallRun) -> None:
    engine = Engine.open(artifacts["zeros"])
    found = engine.lookup(engine.encode_rows([row_with(small_run, uid=one, buys={499: 3.0}) for one in UNKNOWN]))
    assert not columns_of(engine, found["deep"], "uid").any()
    assert not columns_of(engine, found["deep"], "buys").any()
    assert not found["wide"][:, :4].any()  # the wide table of uid has a row of zeros too


def test_a_request_with_a_refused_id_fails_alone(artifacts: Mapping[str, Path], small_run: SmallRun) -> None:
    engine, plain = Engine.open(artifacts["error"]), Engine.open(artifacts["fallback"])
    good = [row_with(small_run, uid=100), row_with(small_run, uid=5, buys={499: 1.0})]
    bad = [row_with(small_run, uid=100), row_with(small_run, uid=995), row_with(small_run, uid=499)]
    message = "feature 'uid': row 1: id 995 has no row of its own, and this model was exported to refuse such ids"
    for ask in (engine.predict, engine.lookup):
        with pytest.raises(RequestError, match=message):
            ask(engine.encode_rows(bad))
    first, second, third, fourth = engine.predict_many(
        [engine.encode_rows(rows) for rows in (good, bad, good[:1], bad)], [None, None, ["logits", "known"], ["known"]]
    )
    assert isinstance(second, RequestError)
    assert (str(second), second.feature, second.row) == (message, "uid", 1)
    for found, rows in ((first, good), (third, good[:1])):
        assert not isinstance(found, ServingError)
        torch.testing.assert_close(found["logits"], plain.predict(plain.encode_rows(rows))["logits"], rtol=0, atol=1e-6)
    assert not isinstance(fourth, ServingError)
    assert fourth["known"][:3].tolist() == [True, False, False]
    assert engine.known(engine.encode_rows(bad))[:3].tolist() == [True, False, False]
    assert all(isinstance(one, RequestError) for one in engine.predict_many([engine.encode_rows(bad)] * 2))


def test_ids_are_counted_once_by_table(artifacts: Mapping[str, Path], small_run: SmallRun, oracle: Oracle) -> None:
    engine = Engine.open(artifacts["error"])
    tables = [table.name for table in engine.schema.tables if table.kind != "static"]
    assert {table: (counts.asked, counts.unknown) for table, counts in engine.id_counts().items()} == dict.fromkeys(tables, (0, 0))
    own = next(iter(oracle.rows["buys_emb"]))
    good = row_with(small_run, uid=100, buys={own: 1.0, 499: 1.0, 998: 1.0})
    bad = row_with(small_run, uid=995, buys={})
    results = engine.predict_many([engine.encode_rows(rows) for rows in ([good, good], [bad], [good])])
    assert [isinstance(result, ServingError) for result in results] == [False, True, False]
    counts = engine.id_counts()
    assert (counts["uid_emb"].asked, counts["uid_emb"].unknown) == (4, 1)
    assert (counts["uid_emb_wide"].asked, counts["uid_emb_wide"].unknown) == (4, 1)
    assert (counts["buys_emb"].asked, counts["buys_emb"].unknown) == (9, 6)


def test_the_policy_is_told_wherever_a_model_is_described(artifacts: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    manifest = load_manifest(artifacts["mixed"])
    told = {feature.name: feature.unknown_ids.value for feature in manifest.schema.features if feature.unknown_ids != "fallback"}
    assert told == {"uid": "mean", "buys": "zeros"}
    served = json.loads(model_config("mixed", 1, manifest.schema)["parameters"]["emberline_schema"]["string_value"])
    assert {feature["name"]: feature["unknown_ids"] for feature in served["features"]} == dict.fromkeys(
        [feature.name for feature in manifest.schema.features], "fallback"
    ) | {"uid": "mean", "buys": "zeros"}
    assert ModelSchema.from_dict(served) == manifest.schema
    assert '\\"unknown_ids\\":\\"mean\\"' in config_text(manifest, Path("/models/mixed"))
    assert main(["inspect", str(artifacts["mixed"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("uid  ")).endswith("unknown ids: mean")
    assert next(line for line in lines if line.startswith("buys  ")).endswith("unknown ids: zeros")
    assert not next(line for line in lines if line.startswith("city  ")).endswith("fallback")


def test_an_artifact_that_says_nothing_is_fallback(artifacts: Mapping[str, Path], small_run: SmallRun) -> None:
    """As those before there were policies."""
    root = artifacts["fallback"]
    manifest, engine = read_manifest(root), Engine.open(root)
    try:
        old = json.loads(json.dumps(manifest))
        for feature in old["schema"]["features"]:
            del feature["unknown_ids"]
        for lookup in old["schema"]["lookups"]:
            del lookup["unknown_row"]
        write_manifest(root, old)
        again = Engine.open(root)
        assert again.schema == engine.schema
        request = engine.encode_rows(small_run.rows)
        assert torch.equal(again.lookup(again.encode_rows(small_run.rows))["deep"], engine.lookup(request)["deep"])
    finally:
        write_manifest(root, manifest)


def test_an_artifact_whose_policy_and_rows_disagree_does_not_open(artifacts: Mapping[str, Path]) -> None:
    root = artifacts["zeros"]
    manifest = read_manifest(root)
    try:
        for row in (None, 42, -1):
            changed = json.loads(json.dumps(manifest))
            next(lookup for lookup in changed["schema"]["lookups"] if lookup["key"].startswith("uid"))["unknown_row"] = row
            write_manifest(root, changed)
            with pytest.raises(ArtifactError, match=r"unknown ids are to be answered by zeros, but it has .*row"):
                Engine.open(root)
    finally:
        write_manifest(root, manifest)


@pytest.mark.parametrize("policy", ["zeros", "mean"])
@pytest.mark.parametrize("wrong", ["row", "vector"])
def test_the_gate_sees_another_vector_for_unknown_ids(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, wrong: str
) -> None:
    """An engine that goes on reading fallback rows, or an artifact that holds another vector, is not published."""
    if wrong == "row":
        monkeypatch.setattr("emberline.serving.remap.HashedRemap.reading", lambda self, row: self)
    else:
        rows_of = UnknownPlan.rows_of
        monkeypatch.setattr(UnknownPlan, "rows_of", lambda self, table: [row + 1e-4 for row in rows_of(self, table)])
    with pytest.raises(ParityError, match="differs in"):
        export_model(small_run.path, tmp_path, "wrong", unknown=[policy])
    assert not list(tmp_path.rglob("[!.]*/manifest.json"))


def test_the_gate_sees_an_answer_to_what_is_to_be_refused(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberline.serving.unknown.UnknownRefuser.__call__", lambda *_: {})
    with pytest.raises(ParityError, match="feature 'buys': the artifact answers an unknown id, though it is to refuse them"):
        export_model(small_run.path, tmp_path, "wrong", unknown=["error"])
    assert not list(tmp_path.rglob("[!.]*/manifest.json"))


def test_the_report_tells_of_requests_that_were_refused(artifacts: Mapping[str, Path]) -> None:
    refused = {name: load_manifest(path).parity["refused_unknown"] for name, path in artifacts.items()}
    assert refused["error"] > 3
    assert {value for name, value in refused.items() if name != "error"} == {0}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (["zeroes"], "--unknown zeroes: unknown policy 'zeroes'; did you mean 'zeros'"),
        (["uid=", "mean"], "--unknown uid=: unknown policy ''; known: fallback, zeros, mean, error"),
        (["zeros", "mean"], "zeros and mean are given for all features"),
        (["uid=zeros", "uid=zeros"], "feature 'uid' has the policy zeros already"),
        (["udi=zeros"], "unknown feature 'udi'; did you mean 'uid'"),
        (["city=zeros"], "feature 'city' reads no zero-collision or dynamic table, so it has no unknown ids; features that have some: uid, buys"),
        (["price=error"], "feature 'price' reads no zero-collision or dynamic table"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(small_run: SmallRun, tmp_path: Path, told: Sequence[str], message: str) -> None:
    with pytest.raises(ExportError) as error:
        export_model(small_run.path, tmp_path / "models", "small", unknown=told)
    assert message in str(error.value)
    assert not (tmp_path / "models").exists()


def test_the_command_line_says_it_too(small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--checkpoint", str(small_run.path), "--output", str(tmp_path), "--name", "small"]
    assert main([*arguments, "--unknown", "zeros", "--unknown", "uid=mean"]) == 0
    assert "table uid_emb: 40 x 4 fp32, 25 raw ids, 1 more row for unknown ids" in capsys.readouterr().out
    schema = Engine.open(tmp_path / "small").schema
    assert {feature.name: feature.unknown_ids for feature in schema.features if feature.name in ("uid", "buys", "city")} == {
        "uid": UnknownIds.MEAN,
        "buys": UnknownIds.ZEROS,
        "city": UnknownIds.FALLBACK,
    }
