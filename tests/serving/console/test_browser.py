"""The console in a real browser, against what the engine itself answers."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Route
from prometheus_client.parser import text_string_to_metric_families

from emberline.schema import FeatureSpec, GroupSpec, LookupSpec
from emberline.serving import Engine
from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import Remap, ToyModel, make_lookup_model, make_steps_toy
from tests.serving.console.conftest import Watched, watched
from tests.serving.tiles import tiled_toy
from tests.serving.ways import same

HOSTILE = 'z"><img src=x onerror=window.hacked=1><b>'
LARGEST = 2**63 - 1
ROW: dict[str, Any] = {"user": [2**62, LARGEST], "item": [1, 2], "city": [77], "price": 1.5, "vector": [1, -2.25], "tags": {"a": 0.5, "b:c": 2.0}}


def hostile_model() -> ToyModel:
    """A model whose every name is markup."""
    toy = tiled_toy()
    feature: FeatureSpec = replace(toy.schema.features[0], name=HOSTILE, columns=(HOSTILE,), side="")
    lookup: LookupSpec = replace(toy.schema.lookups[0], key=HOSTILE, feature=HOSTILE, table="t")
    model = make_lookup_model((lookup,), (feature,), {"t": toy.tables["user_emb"]}, {"t": Remap({100: 2})})
    groups: tuple[GroupSpec, ...] = (replace(model.schema.groups[0], name=HOSTILE),)
    return replace(model, schema=replace(model.schema, groups=groups), name=HOSTILE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model in (tiled_toy(name="a-toy"), make_steps_toy(), hostile_model()):
        model.write(folder)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(models, settings=ServerSettings(num_threads=1)) as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: Browser, server: EmbeddedServer) -> Iterator[Watched]:
    """One tab for all tests that leave it as it was but for the form."""
    with watched(browser, server.http_url) as found:
        found.expected += ["status of 400"]
        yield found


def choose(tab: Watched, model: str) -> None:
    tab.page.select_option("#try-model", model)
    tab.page.wait_for_function(
        "(model) => document.getElementById('tables-model').textContent === `of ${model} 1` && document.querySelector('#form .fields')", arg=model
    )
    tab.page.get_by_role("tab", name="Form").click()
    tab.page.get_by_role("button", name="Clear").click()


def fill_row(tab: Watched) -> None:
    choose(tab, "a-toy")
    tab.fill("user", str(2**62), str(LARGEST))
    tab.fill("item", "1", "2")
    tab.fill("city", "77")
    tab.fill("price", "1.5")
    tab.fill("vector", "1, -2.25")
    tab.fill("tags", "a:0.5", "b:c:2.0")


def post(server: EmbeddedServer, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", path, json.dumps(body).encode())
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_form_predicts_the_engines_own_values(tab: Watched, models: Path) -> None:
    engine = Engine.open(models / "a-toy", num_threads=1)
    request = engine.encode_rows([ROW])
    fill_row(tab)
    tab.ask()
    for name, want in engine.predict(request).items():
        same(np.array(tab.output(name), np.float32), want.numpy())
    tab.ask("Look up")
    for name, want in engine.lookup(request).items():
        same(np.array(tab.output(name), np.float32), want.numpy())


def test_unknown_ids_are_shown_as_such_and_ids_stay_exact(tab: Watched) -> None:
    fill_row(tab)
    tab.ask()
    assert tab.chips("user", "known") == [str(2**62)]
    assert tab.chips("user", "unknown") == [str(LARGEST)]
    assert tab.chips("item", "known") == tab.chips("item", "unknown") == []
    said = tab.page.inner_text("#unknown")
    assert "1 of 2 raw ids have no row of their own" in said
    assert f"user: {LARGEST} – unknown to user_emb; such an id reads the fallback row" in said
    bodies = [body for _, url, body in tab.asked if url.endswith("a-toy:predict")]
    assert json.loads(bodies[-1] or "") == {"rows": [ROW], "explain": True}


def test_what_is_empty_takes_the_defaults(tab: Watched, models: Path) -> None:
    engine = Engine.open(models / "a-toy", num_threads=1)
    choose(tab, "a-toy")
    tab.ask()
    same(np.array(tab.output("probs"), np.float32), engine.predict(engine.encode_rows([{}]))["probs"].numpy())


@pytest.mark.parametrize(("column", "value"), [("item", "ten"), ("item", "99"), ("price", "dear"), ("user", "<b>1.5e400</b>")])
def test_what_the_server_says_of_a_bad_value_is_shown(tab: Watched, server: EmbeddedServer, column: str, value: str) -> None:
    sent: Any = [int(value) if value.isdigit() else value] if column in ("item", "user") else value
    status, answer = post(server, "/v1/models/a-toy:predict", {"rows": [{column: sent}]})
    choose(tab, "a-toy")
    tab.fill(column, value)
    tab.ask()
    if status == 200:
        assert tab.output("probs") == pytest.approx(answer["outputs"]["probs"])
    else:
        assert tab.page.inner_text("#answer .notice") == f"Refused ({status}): {answer['error']}"
    assert re.fullmatch(r"request [\x21-\x7e]+", tab.page.inner_text("#request-id"))
    assert column != "item" or status == 400


def test_users_and_candidates_are_asked_as_json(tab: Watched, models: Path) -> None:
    engine = Engine.open(models / "a-toy", num_threads=1)
    fill_row(tab)
    tab.page.get_by_role("tab", name="JSON").click()
    tab.page.get_by_role("button", name="One user, two candidates").click()
    tab.ask()
    user = {name: ROW[name] for name in ("user", "tags", "vector")}
    row = {name: ROW[name] for name in ("item", "city", "price")}
    assert json.loads(tab.page.input_value("#json")) == {"users": [user], "rows": [[row, row]], "explain": True}
    same(np.array(tab.output("probs"), np.float32), engine.predict(engine.encode_tiled([user], [[row, row]]))["probs"].numpy())
    assert tab.page.locator(".reading summary").all_inner_texts() == [
        "How the user was read",
        "How row 0 was read",
        "How row 1 was read",
    ]


def test_steps_are_filled_in_one_by_one(tab: Watched, models: Path) -> None:
    row = {"user": [-7], "clicks": [100, LARGEST], "age": 3, "words": [{"a": 2.0, "b": 1}, {"c": 0.5}], "prices": [[1, 2], [3, 4.5]]}
    engine = Engine.open(models / "steps", num_threads=1)
    choose(tab, "steps")
    tab.fill("user", "-7")
    tab.fill("clicks", "100", str(LARGEST))
    tab.fill("age", "3")
    tab.fill("words", "a:2.0, b", "c:0.5")
    tab.fill("prices", "1, 2", "3, 4.5")
    tab.ask()
    same(np.array(tab.output("score"), np.float32), engine.predict(engine.encode_rows([row]))["score"].numpy())
    assert (tab.chips("clicks", "known"), tab.chips("clicks", "unknown")) == (["100"], [str(LARGEST)])


def test_names_that_are_markup_are_text(tab: Watched, server: EmbeddedServer) -> None:
    choose(tab, HOSTILE)
    tab.fill(HOSTILE, "<script>window.hacked=1</script>", HOSTILE, "100")
    tab.ask("Look up")
    assert HOSTILE in tab.answer()
    assert tab.page.locator("img[src=x], #answer script, main b b").count() == 0
    assert tab.page.evaluate("window.hacked") is None
    assert HOSTILE in tab.page.inner_text("#models")


def test_samples_of_every_model_are_answered(tab: Watched) -> None:
    for model, button in (("a-toy", "Predict"), ("steps", "Predict"), (HOSTILE, "Look up")):
        choose(tab, model)
        tab.page.get_by_role("button", name="Samples").click()
        tab.ask(button)
        assert tab.page.locator("[data-output]").count() > 0, tab.answer()


@contextmanager
def load(server: EmbeddedServer) -> Iterator[None]:
    """Requests of 4 rows, one after the other."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            post(server, "/v1/models/steps:predict", {"rows": [{"user": 100}] * 4})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_charts_move_while_requests_come(tab: Watched, server: EmbeddedServer, tmp_path: Path) -> None:
    with load(server):
        drawn = "(document.querySelector('.chart path.area')?.getAttribute('d') ?? '')"
        for _ in range(3):
            before = tab.page.evaluate(drawn)
            tab.wait(2000)
            tab.page.wait_for_function(f"(before) => {drawn} !== before && /rows 4/.test(document.getElementById('charts').innerHTML)", arg=before)
        charts = tab.page.evaluate("[...document.querySelectorAll('.chart svg')].map((chart) => chart.ariaLabel)")
        cells = tab.page.locator('#models tr[data-model="steps"] td').all_inner_texts()
        tab.page.screenshot(path=tmp_path / "console.png", full_page=True)
    rate = re.fullmatch(r"Requests a second: ok ([\d.k]+)(, .*)?", charts[0])
    assert rate is not None, charts
    assert float(rate[1].replace("k", "e3")) > 1
    assert re.fullmatch(r"Latency: p50 [\d.]+ (µs|ms|s), p99 [\d.]+ (µs|ms|s)", charts[1])
    assert charts[2] == "Batch size: rows 4, requests 1"
    assert charts[3] in ("Waiting requests: waiting 0", "Waiting requests: waiting 1")
    assert (cells[:3], float(cells[5].replace("k", "e3")) > 1) == (["steps", "1", "ready"], True)
    assert (tmp_path / "console.png").stat().st_size > 20_000


def test_nobody_is_asked_while_the_page_is_hidden(tab: Watched) -> None:
    show = "(state) => {Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});" + (
        "document.dispatchEvent(new Event('visibilitychange'))}"
    )
    tab.page.evaluate(show, "hidden")
    tab.page.wait_for_timeout(100)
    before = len(tab.asked)
    tab.wait(10_000)
    tab.page.wait_for_timeout(100)
    assert len(tab.asked) == before
    with tab.page.expect_request("**/metrics"):
        tab.page.evaluate(show, "visible")


def test_models_are_unloaded_and_loaded_after_a_question(tab: Watched, server: EmbeddedServer) -> None:
    state = tab.page.locator('#models tr[data-model="steps"] td').nth(2)
    tab.page.get_by_role("button", name="Unload steps").click()
    tab.page.locator("#confirm-no").click()
    assert post(server, "/v1/models/steps:predict", {"rows": [{}]})[0] == 200
    tab.page.get_by_role("button", name="Unload steps").click()
    assert "steps" in tab.page.inner_text("#confirm-text")
    tab.page.locator("#confirm-yes").click()
    tab.page.wait_for_selector('#models tr[data-model="steps"] .pill.bad')
    assert state.inner_text().startswith("not served")
    assert post(server, "/v1/models/steps:predict", {"rows": [{}]})[0] == 404
    tab.page.get_by_role("button", name="Load steps").click()
    tab.page.locator("#confirm-yes").click()
    tab.page.wait_for_selector('#models tr[data-model="steps"] .pill.good')
    assert tab.page.inner_text("#acted") == "Load steps: done."
    assert post(server, "/v1/models/steps:predict", {"rows": [{}]})[0] == 200


def test_a_token_is_asked_for_kept_in_the_tab_and_sent(browser: Browser, server: EmbeddedServer) -> None:
    def guard(route: Route) -> None:
        """What a server with tokens does."""
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "no token"}, headers={"www-authenticate": "Bearer"})

    context = browser.new_context()
    page = context.new_page()
    page.route(lambda url: "/v1/" in url or ("/v2" in url and "/health/" not in url) or url.endswith("/metrics"), guard)
    page.goto(server.http_url)
    for token in ("wrong", "right"):
        page.wait_for_selector("#token-dialog[open]")
        page.fill("#token", token)
        page.get_by_role("button", name="Use it").click()
        page.wait_for_selector("#token-refused:visible" if token == "wrong" else "#form .fields")
    page.get_by_role("button", name="Predict", exact=True).click()
    page.wait_for_selector("[data-output]")
    assert page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [["right"], 0, ""]
    page.reload()
    page.wait_for_selector("#form .fields")
    assert page.locator("#token-dialog[open]").count() == 0
    context.close()


def test_control_is_not_offered_where_it_is_refused(browser: Browser, server: EmbeddedServer) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/", lambda route: route.fulfill(response=(answer := route.fetch()), body=answer.text().replace('control="yes"', 'control="no"')))
    page.goto(server.http_url)
    page.wait_for_selector("#form .fields")
    assert page.get_by_role("button", name="Unload").count() == 0
    context.close()


def test_small_screens_and_both_colour_schemes(tab: Watched) -> None:
    choose(tab, "a-toy")
    tab.page.set_viewport_size({"width": 360, "height": 700})
    tab.ask()
    assert tab.page.evaluate("document.scrollingElement.scrollWidth") <= 360
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    grounds = []
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        found = re.findall(r"\d+", tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        grounds.append(sum(map(int, found)) / 3)
    assert grounds[0] > 200
    assert grounds[1] < 50


def test_the_keyboard_alone_is_enough(tab: Watched) -> None:
    choose(tab, "a-toy")
    keys = tab.page.keyboard
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.get_by_label("user", exact=True).focus()
    keys.type("100")
    keys.press("Enter")
    keys.type("6")
    keys.press("Enter")
    assert tab.page.locator(".chips li span").all_inner_texts() == ["100", "6"]
    keys.press("Backspace")
    assert tab.page.locator(".chips li span").all_inner_texts() == ["100"]
    tab.page.evaluate("document.getElementById('answer').replaceChildren()")
    keys.press("Enter")
    tab.page.wait_for_selector("[data-output]")
    assert tab.chips("user", "known") == ["100"]
    tab.page.wait_for_function("() => document.querySelector('.chart path.line[d^=M]')")
    tab.page.locator(".chart svg").nth(3).focus()
    keys.press("ArrowLeft")
    assert tab.page.locator(".chart").nth(3).locator(".cross").count() == 1
    keys.press("Tab")
    assert tab.page.locator(".cross").count() == 0


TEXTS = ['{"a": [9223372036854775807, -9223372036854775808, 1.5, "12345678901234567890", 123456789012345]}', '["\\"1234567890123456789\\\\", 1e3]']


STAGES = """
emberline_stage_seconds_sum{model="steps",stage="lookup"} %f
emberline_stage_seconds_count{model="steps",stage="lookup"} %d
emberline_stage_seconds_sum{model="steps",stage="program"} %f
emberline_stage_seconds_count{model="steps",stage="program"} %d
"""


def test_times_of_stages_are_means_of_their_own(tab: Watched) -> None:
    texts = [STAGES % (0.0, 0, 0.0, 0), STAGES % (0.008, 4, 0.002, 2)]
    found = tab.page.evaluate(
        """async ([before, after]) => {
            const {Look, means} = await import('/console/metrics.js');
            return Object.fromEntries(means(new Look(before, 0), new Look(after, 2000), 'emberline_stage_seconds', 'stage', {model: 'steps'}));
        }""",
        texts,
    )
    assert found == pytest.approx({"lookup": 0.002, "program": 0.001})


@pytest.mark.parametrize("text", TEXTS)
def test_long_integers_of_answers_stay_exact(tab: Watched, text: str) -> None:
    def exact(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: exact(part) for name, part in value.items()}
        if isinstance(value, list):
            return [exact(part) for part in value]
        return str(value) if isinstance(value, int) and abs(value) >= 10**15 else value

    found = tab.page.evaluate("async (text) => (await import('/console/api.js')).parseExact(text)", text)
    assert found == exact(json.loads(text))


BUCKETS = (0.001, 0.01, 0.1, float("inf"))
BEFORE, AFTER = (5, 10, 10, 10), (5, 110, 160, 210)


def metrics_text(counts: tuple[int, ...], label: str) -> str:
    lines = [
        f'h_bucket{{le="{"+Inf" if bound == float("inf") else bound}",model="{label}"}} {count}' for bound, count in zip(BUCKETS, counts, strict=True)
    ]
    return "\n".join(["# TYPE h histogram", *lines, f'h_sum{{model="{label}"}} {counts[-1] * 2.5}', f'h_count{{model="{label}"}} {counts[-1]}', ""])


def oracle(share: float) -> float:
    """A quantile as Prometheus's histogram_quantile has it: within a bucket by a straight line; of the last one its lower bound."""
    grown = [after - before for before, after in zip(BEFORE, AFTER, strict=True)]
    rank, low, below = share * grown[-1], 0.0, 0
    for bound, upto in zip(BUCKETS, grown, strict=True):
        if upto >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (upto - below)
        low, below = bound, upto
    raise AssertionError


def test_quantiles_and_means_are_those_of_the_histogram(tab: Watched) -> None:
    label = 'a\\"b\\\\c}\\n,d'
    before, after = (metrics_text(counts, label) for counts in (BEFORE, AFTER))
    (family,) = text_string_to_metric_families(after)
    labels = family.samples[0].labels["model"]
    shares = [0.1, 0.5, 0.6, 0.75, 0.99]
    found = tab.page.evaluate(
        """async ([before, after, model, shares]) => {
            const {Look, mean, quantiles} = await import('/console/metrics.js');
            const [first, second] = [new Look(before, 0), new Look(after, 2000)];
            return [quantiles(first, second, 'h', {model}, shares), mean(first, second, 'h', {model}), mean(second, second, 'h', {model}),
                    quantiles(second, second, 'h', {model}, [0.5]), mean(second, first, 'h', {model})];
        }""",
        [before, after, labels, shares],
    )
    assert found[0] == pytest.approx([oracle(share) for share in shares])
    assert found[1:] == [2.5, None, [None], 2.5]


def test_the_page_goes_on_after_the_server_was_away(tab: Watched) -> None:
    tab.expected.append("net::ERR")
    tab.page.route("**/metrics", lambda route: route.abort())
    tab.wait(2000)
    tab.page.wait_for_selector("#trouble:visible")
    assert tab.page.inner_text("#trouble") == "Looking again every 2 s: the server cannot be reached."
    tab.page.unroute("**/metrics")
    tab.wait(2000)
    tab.page.wait_for_selector("#trouble", state="hidden")
