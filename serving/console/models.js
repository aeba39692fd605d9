// The tables of models and of their embedding tables, and loading and unloading.

import { call } from "./api.js";
import { confirmed, h } from "./dom.js";
import * as format from "./format.js";
import { requestRates, unknownShares } from "./metrics.js";

// A large model takes its time to open.
const LONGEST_MS = 60 * 60 * 1000;
const MODEL_COLUMNS = ["Model", "Version", "State", "Age", "Delta", "Requests/s", "Unknown ids", "Table memory", ""];
const TABLE_COLUMNS = ["Table", "Kind", "Rows", "Width", "Type", "Ids/s", "Unknown, now", "Unknown, ever", "Read by"];

/** Whether this server takes load and unload. */
export const mayControl = () => document.body.dataset.modelControl === "yes";

/** The rows of the table of models: `index` as the server gives it, two looks at its metrics, either null. */
export function showModels(table, index, before, now, changed) {
  const rows = index.map((model) => modelRow(model, before, now, changed));
  if (rows.length === 0) rows.push(h("tr", {}, h("td", { colspan: MODEL_COLUMNS.length }, "No models are here.")));
  redraw(table, MODEL_COLUMNS, rows);
}

function modelRow({ name, version, state, reason }, before, now, changed) {
  const one = (metric) => now?.sum(metric, { model: name }) ?? null;
  const failing = one("emberline_model_update_failing") === 1;
  const rates = before && now ? [...requestRates(before, now, name).values()] : null;
  const worst = now === null ? [] : [...unknownShares(null, now, name).values()].map(({ share }) => share).filter((share) => share !== null);
  const [kind, text] = state !== "READY" ? ["bad", "not served"] : failing ? ["warn", "update fails"] : ["good", "ready"];
  const cells = [
    h("b", {}, name),
    version || "–",
    h("span", {}, h("span", { class: `pill ${kind}` }, text), reason ? h("span", { class: "reason" }, reason) : null),
    format.age(one("emberline_model_version_age_seconds")),
    version === "" ? "–" : String(one("emberline_model_delta") || "none"),
    rates === null ? "–" : format.amount(rates.reduce((total, rate) => total + rate, 0)),
    worst.length === 0 ? "–" : `${worst.length > 1 ? "≤ " : ""}${format.percent(Math.max(...worst))}`,
    format.bytes(one("emberline_table_bytes")),
    mayControl() ? buttons(name, state === "READY", changed) : "",
  ];
  return h("tr", { "data-model": name }, ...cells.map((cell, place) => h("td", { "data-label": MODEL_COLUMNS[place] }, cell)));
}

function buttons(name, served, changed) {
  const button = (verb, text, question) => {
    const press = async () => {
      if (!(await confirmed(question, text))) return;
      await changed(call("POST", `v2/repository/models/${encodeURIComponent(name)}/${verb}`, "{}", LONGEST_MS), `${text} ${name}`);
    };
    return h("button", { type: "button", "aria-label": `${text} ${name}`, onclick: press }, text);
  };
  const load = served
    ? button("load", "Reload", `Load ${name} again, in the version that is to be served now? The present one answers until then.`)
    : button("load", "Load", `Load ${name} and serve it?`);
  return h("span", { class: "buttons" }, load, served ? button("unload", "Unload", `Serve ${name} no more? Requests for it will be refused.`) : null);
}

/** The rows of the table of a model's embedding tables. */
export function showTables(table, model, before, now) {
  if (model === null) {
    redraw(table, TABLE_COLUMNS, []);
    return;
  }
  const { schema, name } = model;
  const ever = now === null ? new Map() : unknownShares(null, now, name);
  const lately = before && now ? unknownShares(before, now, name) : new Map();
  const seconds = before && now ? (now.atMs - before.atMs) / 1000 : null;
  // Those with raw ids come first: of the others no id is unknown.
  const order = [...schema.tables].sort((a, b) => Number(a.kind === "static") - Number(b.kind === "static"));
  const rows = order.map((spec) => {
    const readers = new Set([...schema.lookups, ...schema.sequence_lookups].filter((one) => one.table === spec.name).map((one) => one.feature));
    const [own, recent] = [ever.get(spec.name), lately.get(spec.name)];
    const cells = [
      h("b", {}, spec.name),
      { zch: "zero-collision", dynamic: "dynamic", static: "static" }[spec.kind] ?? spec.kind,
      Number(spec.rows).toLocaleString("en"),
      String(spec.dim),
      spec.dtype,
      recent === undefined || seconds === null ? "–" : format.amount(recent.asked / seconds),
      format.percent(recent?.share),
      own === undefined ? "–" : own.asked === 0 ? "none asked" : `${format.percent(own.share)} of ${format.amount(own.asked)}`,
      [...readers].join(", "),
    ];
    return h("tr", { "data-table": spec.name }, ...cells.map((cell, place) => h("td", { "data-label": TABLE_COLUMNS[place] }, cell)));
  });
  redraw(table, TABLE_COLUMNS, rows);
}

/** New rows, unless somebody is at one of the old ones' buttons and nothing changed. */
function redraw(table, columns, rows) {
  if (table.tHead === null) {
    table.append(h("thead", {}, h("tr", {}, ...columns.map((text) => h("th", { scope: "col" }, text)))), h("tbody"));
  }
  const body = table.tBodies[0];
  const held = document.activeElement instanceof HTMLButtonElement && body.contains(document.activeElement) ? document.activeElement : null;
  const label = held?.getAttribute("aria-label");
  body.replaceChildren(...rows);
  if (label) [...body.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === label)?.focus();
}
