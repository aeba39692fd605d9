// Trying a model by hand: a form made from its schema, or a request as JSON, and the answer.

import { showAnswer, showError, showId } from "./answer.js";
import { callWhole, parseExact } from "./api.js";
import { byId, h } from "./dom.js";
import { makeFields, rowBody, tiledBody } from "./fields.js";

/** Shows the form of a model: `{name, version, schema}`. */
export function showForm(model) {
  const fields = makeFields(model.schema);
  const form = byId("form");
  const editor = h("textarea", { id: "json", rows: 12, spellcheck: "false", "aria-label": "The request as JSON" });
  const [plain, asJson] = [h("div", { class: "fields" }, ...fields.map((field) => field.element)), h("div", { class: "json", hidden: true }, editor)];
  const tiled = model.schema.features.some((feature) => feature.side === "user") && model.schema.features.every((feature) => feature.side !== "");
  let written = false;

  const tab = (text, show) => h("button", { type: "button", role: "tab", "aria-selected": "false", onclick: () => open(show) }, text);
  const tabs = [tab("Form", false), tab("JSON", true)];
  const open = (json) => {
    written = json;
    [plain.hidden, asJson.hidden] = [json, !json];
    tabs.forEach((button, place) => button.setAttribute("aria-selected", String(json === (place === 1))));
    if (json) editor.value = rowBody(fields);
  };
  const users = h("button", { type: "button", onclick: () => (editor.value = tiledBody(fields)) }, "One user, two candidates");
  if (tiled) asJson.append(h("p", { class: "buttons" }, users));

  const ask = (verb) => h("button", { type: "submit", class: verb === "predict" ? "main" : null, value: verb }, verb === "predict" ? "Predict" : "Look up");
  const verbs = model.schema.outputs.length > 0 ? ["predict", "lookup"] : ["lookup"];
  form.replaceChildren(
    h("div", { class: "tabs", role: "tablist", "aria-label": "How the request is written" }, ...tabs),
    plain,
    asJson,
    h(
      "p",
      { class: "buttons" },
      ...verbs.map(ask),
      h("button", { type: "button", onclick: () => (fields.forEach((field) => field.sample()), written && open(true)) }, "Samples"),
      h("button", { type: "button", onclick: () => (fields.forEach((field) => field.clear()), written && open(true)) }, "Clear"),
    ),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    void answer(model, event.submitter?.value || verbs[0], written ? editor.value : rowBody(fields));
  };
  fields.forEach((field) => field.sample());
  open(false);
}

let newest = 0;

async function answer(model, verb, body) {
  const number = (newest += 1);
  const place = byId("answer");
  place.setAttribute("aria-busy", "true");
  const began = performance.now();
  let shown;
  try {
    const { text, id } = await callWhole("POST", `v1/models/${encodeURIComponent(model.name)}:${verb}`, body);
    shown = [...showAnswer(parseExact(text), model, verb, performance.now() - began), ...showId(id)];
  } catch (error) {
    shown = [...showError(error), ...showId(error.id)];
  }
  // The answer to an older question does not take the place of a newer one's.
  if (number !== newest) return;
  place.replaceChildren(...shown);
  place.removeAttribute("aria-busy");
}
