// The page: a look at the server every two seconds while somebody can see it, and what it shows.

import { askToken, call, callText, parseExact } from "./api.js";
import { Chart } from "./charts.js";
import { byId, h, setOptions, setText } from "./dom.js";
import { showForm } from "./form.js";
import * as format from "./format.js";
import { Look, mean, means, quantiles, requestRates } from "./metrics.js";
import { showModels, showTables } from "./models.js";

const PERIOD_MS = 2000;
const SPAN_MS = 5 * 60 * 1000;
const ALL = "";
const STAGES = ["queue", "encode", "remap", "lookup", "program"];
const options = { spanMs: SPAN_MS, gapMs: 2.9 * PERIOD_MS };

const charts = {
  rate: new Chart("Requests a second", { ...options, format: format.amount, stacked: true, colours: { ok: "ok" } }),
  latency: new Chart("Latency", { ...options, format: format.duration }),
  batch: new Chart("Batch size", { ...options, format: format.amount }),
  queue: new Chart("Waiting requests", { ...options, format: format.amount }),
  stages: new Chart("Time of a batch, by stage", { ...options, format: format.duration, stacked: true }),
};
const state = { looks: [], index: [], timer: null, polling: false, tried: null, configs: new Map() };

byId("charts").append(...Object.values(charts).map((chart) => chart.element));
charts.stages.element.hidden = true;
byId("traffic-model").addEventListener("change", draw);
byId("try-model").addEventListener("change", () => void tryModel());
byId("token-button").addEventListener("click", async () => (await askToken(false)) && void poll());
document.addEventListener("visibilitychange", schedule);
schedule();

/** Looks now and then every two seconds; never while nobody can see the page. */
function schedule() {
  clearTimeout(state.timer);
  if (document.visibilityState === "visible") void poll();
}

async function poll() {
  if (state.polling) return;
  state.polling = true;
  const began = performance.now();
  try {
    await look();
    byId("trouble").hidden = true;
  } catch (error) {
    trouble(error);
  }
  state.polling = false;
  draw();
  clearTimeout(state.timer);
  if (document.visibilityState === "visible") state.timer = setTimeout(poll, Math.max(250, PERIOD_MS - (performance.now() - began)));
}

async function look() {
  const [ready, index, metrics] = await Promise.all([readiness(), call("POST", "v2/repository/index", "{}"), callText("GET", "metrics")]);
  const atMs = Date.now();
  state.looks = [...state.looks.filter((old) => atMs - old.atMs < SPAN_MS && old.atMs < atMs), new Look(metrics, atMs)];
  state.index = index;
  health([["live", "good"], ready ? ["ready", "good"] : ["not ready", "bad"]]);
  if (byId("release").textContent === "") setText(byId("release"), (await call("GET", "v2")).version);
  const names = index.map(({ name }) => name);
  setOptions(byId("traffic-model"), [[ALL, "all models"], ...names.map((name) => [name, name])]);
  setOptions(byId("try-model"), index.filter(({ state: now }) => now === "READY").map(({ name }) => [name, name]));
  await tryModel();
}

async function readiness() {
  try {
    return (await call("GET", "v2/health/ready")).ready;
  } catch (error) {
    if (error.status === 503) return false;
    throw error;
  }
}

function trouble(error) {
  if (error.status === undefined) console.error(error);
  if (error.status === 0) health([["not reached", "bad"]]);
  setText(byId("trouble"), error.status === 0 ? `Looking again every 2 s: ${error.message}.` : `${error.message}.`);
  byId("trouble").hidden = false;
}

function health(pills) {
  const place = byId("health");
  if (place.textContent === pills.map(([text]) => text).join("")) return;
  place.replaceChildren(...pills.map(([text, kind]) => h("span", { class: `pill ${kind}` }, text)));
}

/** The config of the chosen model as it is served now; the form is made anew where that changed. */
async function tryModel() {
  const name = byId("try-model").value;
  const entry = state.index.find((model) => model.name === name);
  if (entry === undefined) {
    state.tried = null;
    byId("form").replaceChildren(h("p", { class: "quiet" }, "No model is served now."));
    return;
  }
  const key = JSON.stringify([name, entry.version]);
  if (state.tried?.key === key) return;
  const config = await call("GET", `v2/models/${encodeURIComponent(name)}/config`);
  const schema = parseExact(Object.values(config.parameters).map((one) => one.string_value).find((text) => text.startsWith("{")));
  const same = state.tried?.name === name && JSON.stringify(state.tried.schema) === JSON.stringify(schema);
  state.tried = { key, name, version: entry.version, schema };
  // A new version of the same form leaves what was typed.
  if (!same) showForm(state.tried);
  draw();
}

/** Shows how a change of the models goes, until the next one. */
async function changed(request, what) {
  const tell = (text, kind) => {
    const place = byId("acted");
    place.className = `notice ${kind}`;
    setText(place, text);
    place.hidden = false;
  };
  tell(`${what}: under way …`, "warn");
  try {
    await request;
    tell(`${what}: done.`, "good");
  } catch (error) {
    tell(`${what}: ${error.message}.`, "bad");
  }
  await poll();
}

function draw() {
  const looks = state.looks;
  const now = looks.at(-1) ?? null;
  const before = looks.length > 1 ? looks.at(-2) : null;
  showModels(byId("models"), state.index, before, now, changed);
  setText(byId("tables-model"), state.tried === null ? "" : `of ${state.tried.name} ${state.tried.version}`);
  showTables(byId("tables"), state.tried, before, now);
  drawCharts(looks, byId("traffic-model").value || undefined);
}

function drawCharts(looks, model) {
  const steps = looks.slice(1).map((after, place) => [looks[place], after]);
  const points = (values) => steps.map(([before, after]) => ({ atMs: after.atMs, values: values(before, after) }));
  const rates = points((before, after) => Object.fromEntries(requestRates(before, after, model)));
  const statuses = new Set(rates.flatMap(({ values }) => Object.keys(values)));
  charts.rate.update(rates, ["ok", ...[...statuses].filter((status) => status !== "ok").sort()]);
  const latency = points((before, after) => {
    const [p50, p99] = quantiles(before, after, "emberline_request_seconds", { model }, [0.5, 0.99]);
    return { p50, p99 };
  });
  charts.latency.update(latency, ["p50", "p99"]);
  const sizes = points((before, after) => ({
    rows: mean(before, after, "emberline_batch_rows", { model }),
    requests: mean(before, after, "emberline_batch_requests", { model }),
  }));
  charts.batch.update(sizes, ["rows", "requests"]);
  charts.queue.update(
    looks.map((look) => ({ atMs: look.atMs, values: { waiting: look.sum("emberline_waiting_requests", { model }) } })),
    ["waiting"],
  );
  // Servers that do not time the stages have no such chart.
  const stages = STAGES.filter((stage) => looks.at(-1)?.sum("emberline_stage_seconds_count", { stage }) > 0);
  charts.stages.element.hidden = stages.length === 0;
  charts.stages.update(points((before, after) => Object.fromEntries(means(before, after, "emberline_stage_seconds", "stage", { model }))), stages);
}
