// What a model answered, and how it read what it was asked.

import { h } from "./dom.js";
import { duration } from "./format.js";

const MOST_CELLS = 512;
const MOST_ROWS = 50;

const UNKNOWN = { fallback: "reads the fallback row", zeros: "reads zeros", mean: "reads the mean of the table", error: "is refused" };

/** The elements that show an answer; `model` has `name` and `schema`. */
export function showAnswer(answer, model, verb, tookMs) {
  const features = new Map(model.schema.features.map((feature) => [feature.name, feature]));
  const tables = rawTables(model.schema);
  const parts = [
    h("p", { class: "told" }, h("b", {}, `${answer.model} ${answer.version}`), ` · :${verb} · ${duration(tookMs / 1000)} to here and back`),
    ...Object.entries(answer.outputs).map(([name, rows]) => output(name, rows)),
  ];
  if (answer.explain) {
    const sides = [["user", answer.explain.users ?? []], ["row", answer.explain.rows ?? []]];
    parts.push(summary(sides, features, tables));
    for (const [what, entries] of sides) {
      entries.slice(0, MOST_ROWS).forEach((entry, number) => parts.push(reading(what, number, entry, entries.length, features, tables)));
    }
  }
  return parts;
}

/** What the server said in place of an answer. */
export function showError(error) {
  return [h("p", { class: "notice bad" }, h("b", {}, error.status ? `Refused (${error.status}): ` : "No answer: "), error.message)];
}

/** The id under which the server's log has the request. */
export const showId = (id) => (id ? [h("p", { class: "quiet", id: "request-id" }, `request ${id}`)] : []);

/** The tables with raw ids that each feature reads: an id is known where all of them have a row for it. */
function rawTables(schema) {
  const raw = new Set(schema.tables.filter((table) => table.kind !== "static").map((table) => table.name));
  const found = new Map();
  for (const { feature, table } of [...schema.lookups, ...schema.sequence_lookups]) {
    if (raw.has(table)) found.set(feature, [...new Set([...(found.get(feature) ?? []), table])]);
  }
  return found;
}

function output(name, rows) {
  const shown = rows.slice(0, MOST_ROWS);
  const body = shown.map((value, number) => h("tr", { "data-row": number }, h("th", { scope: "row" }, rows.length > 1 ? `${number}` : ""), h("td", {}, values(value, /prob/i.test(name)))));
  const more = rows.length > shown.length ? h("p", { class: "quiet" }, `and ${rows.length - shown.length} more`) : null;
  return h("div", { class: "output", "data-output": name }, h("h3", {}, name), h("table", {}, h("tbody", {}, ...body)), rows.length === 0 ? h("p", { class: "quiet" }, "none") : more);
}

/** A number with a bar where it is a probability, a vector as a strip of colours, or several of them. */
function values(value, isProbability) {
  if (!Array.isArray(value)) {
    const bar = isProbability && value >= 0 && value <= 1 ? h("meter", { min: 0, max: 1, value, "aria-hidden": "true" }) : null;
    return h("span", { class: "scalar" }, h("span", { class: "number" }, text(value)), bar);
  }
  if (value.length > 0 && Array.isArray(value[0])) return h("div", {}, ...value.slice(0, MOST_ROWS).map((step) => values(step, false)));
  return h("div", {}, strip(value), h("details", {}, h("summary", {}, `${value.length} numbers`), h("p", { class: "numbers" }, value.map(text).join(", "))));
}

const text = (value) => (value === null ? "not finite" : String(value));

function strip(vector) {
  const largest = Math.max(1e-12, ...vector.map((value) => Math.abs(Number(value))));
  const cells = vector.slice(0, MOST_CELLS).map((value, place) => {
    const cell = h("i", { title: `${place}: ${text(value)}` });
    const share = Math.abs(Number(value)) / largest;
    // Styles are set by script: the page's policy allows no others.
    cell.style.setProperty("--share", `${Math.round(share * 100)}%`);
    cell.className = Number(value) < 0 ? "low" : "high";
    return cell;
  });
  return h("div", { class: "strip", role: "img", "aria-label": `${vector.length} numbers, ${text(Math.min(...vector))} to ${text(Math.max(...vector))}` }, ...cells);
}

/** Ids of an entry's features, each with whether it has a row of its own. */
function* ids(entry, tables) {
  for (const [feature, told] of Object.entries(entry)) {
    if (!tables.has(feature) || told.ids === undefined) continue;
    const known = told.known.flat();
    for (const [place, id] of told.ids.flat().entries()) yield { feature, id, known: known[place] };
  }
}

function summary(sides, features, tables) {
  const all = sides.flatMap(([, entries]) => entries.flatMap((entry) => [...ids(entry, tables)]));
  const unknown = all.filter(({ known }) => !known);
  if (all.length === 0) return h("p", { class: "quiet" }, "No id of this request is looked up in a table of raw ids.");
  if (unknown.length === 0) return h("p", { class: "notice good", id: "unknown" }, `All ${all.length} raw ids have rows of their own.`);
  const by = new Map();
  for (const { feature, id } of unknown) by.set(feature, [...(by.get(feature) ?? []), id]);
  const lines = [...by].map(([feature, found]) => {
    const fate = UNKNOWN[features.get(feature)?.unknown_ids] ?? "";
    return h("li", {}, `${feature}: ${found.slice(0, 10).join(", ")}${found.length > 10 ? ", …" : ""} – unknown to ${tables.get(feature).join(" or ")}; such an id ${fate}`);
  });
  return h("div", { class: "notice warn", id: "unknown" }, `${unknown.length} of ${all.length} raw ids have no row of their own:`, h("ul", {}, ...lines));
}

function reading(what, number, entry, count, features, tables) {
  const rows = Object.entries(entry).map(([name, told]) =>
    h("tr", { "data-feature": name }, h("th", { scope: "row" }, name), h("td", {}, ...became(told, tables.get(name)), told.given === undefined ? h("span", { class: "quiet" }, " · nothing given") : null)),
  );
  const title = `How ${count > 1 ? `${what} ${number}` : `the ${what}`} was read`;
  return h("details", { class: "reading", open: number === 0 }, h("summary", {}, title), h("table", {}, h("tbody", {}, ...rows)));
}

function became(told, tables) {
  if (told.numbers !== undefined) return [h("span", { class: "numbers" }, told.numbers.flat().map(text).join(", ") || "none")];
  if (told.ids.length > 0 && Array.isArray(told.ids[0])) {
    return told.ids.map((step, place) => h("span", { class: "step" }, ...chips(step, told.known[place], told.weights?.[place], tables)));
  }
  return told.ids.length === 0 ? [h("span", { class: "quiet" }, "no ids")] : chips(told.ids, told.known, told.weights, tables);
}

function chips(found, known, weights, tables) {
  return found.map((id, place) => {
    const kind = tables === undefined ? "" : known[place] ? "known" : "unknown";
    const label = { known: "known", unknown: `unknown to ${tables?.join(" or ")}` }[kind];
    const weight = weights === undefined ? "" : ` × ${text(weights[place])}`;
    return h("span", { class: `chip ${kind}`, title: label }, `${id}${weight}`, kind === "unknown" ? h("small", {}, ` ${label}`) : null);
  });
}
