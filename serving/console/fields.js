// The form of a model's features: one field for each raw column, with what suits the feature that reads it.
//
// A field gives the JSON text of its value, or null where it is empty: the column is then left out, and the feature's default is taken. Digits are
// never made a JavaScript number: they go to the server as they were written.

import { h } from "./dom.js";

const MOST_WORDS = 200;
let serial = 0;

const INTEGER = /^-?(?:0|[1-9]\d*)$/;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** JSON text of what was typed: an integer or number as it stands, anything else as text. */
const idText = (text) => (INTEGER.test(text) ? text : JSON.stringify(text));
const numberText = (text) => (NUMBER.test(text) ? text : JSON.stringify(text));
/** JSON as it was typed, or text where it is none. */
function anyText(text) {
  if (!/^[[{]/.test(text)) return idText(text);
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

/** The fields of a model, one for each raw column, in the order of its features. */
export function makeFields(schema) {
  const fields = new Map();
  for (const feature of schema.features) {
    for (const column of feature.columns) {
      if (!fields.has(column)) fields.set(column, makeField(column, feature, schema));
      fields.get(column).features.push(feature.name);
    }
  }
  for (const field of fields.values()) field.tell();
  return [...fields.values()];
}

function makeField(column, feature, schema) {
  const kind = kindOf(feature, column);
  const steps = feature.sequence && !feature.row_columns.includes(column);
  const many = steps || (!isPlain(kind) ? false : kind.number ? false : feature.value_dim !== 1);
  const field = many ? new ListField(column, kind, steps, feature) : new OneField(column, kind, feature);
  field.perUser = feature.side === "user";
  field.tables = tablesOf(schema, feature);
  return field;
}

const isPlain = (kind) => kind.name !== "any";

const tablesOf = (schema, feature) => [
  ...new Set([...schema.lookups, ...schema.sequence_lookups].filter((one) => one.feature === feature.name).map((one) => one.table)),
];

/** What values of a column look like: how they become JSON text, a hint, and one that may stand for others. */
function kindOf(feature, column) {
  const encoder = feature.encoder;
  if (feature.encoded && feature.kind === "sparse") return { name: "row", write: idText, hint: "row of the table", sample: () => "1" };
  switch (encoder.type) {
    case "raw_id":
      return { name: "id", write: idText, hint: "64-bit id, or text", sample: () => any(1, 900) };
    case "bucket":
      return { name: "id", write: idText, hint: `0 to ${Number(encoder.rows) - 1}`, sample: () => any(0, Number(encoder.rows) - 1) };
    case "hash":
      return { name: "text", write: idText, hint: "text or integer, hashed", sample: () => any(1, 900) };
    case "vocab":
      return { name: "word", write: idText, hint: "a word of the vocabulary", words: encoder.words, sample: () => encoder.words[any(0, encoder.words.length - 1)] ?? "" };
    case "boundary":
      return { name: "number", number: true, write: numberText, hint: "number, put into a bucket", sample: () => middle(encoder.boundaries) };
    case "numeric": {
      const width = feature.value_dim;
      return {
        name: "number",
        number: true,
        width,
        write: numberText,
        hint: width > 1 ? `${width} numbers, with commas between` : "number",
        sample: () => Array.from({ length: Math.max(1, width) }, () => (Math.random() * 2).toFixed(2)).join(", "),
      };
    }
    case "expr":
      return { name: "any", write: anyText, hint: "number", sample: () => any(1, 9) };
    case "cross":
      return { name: "any", write: anyText, hint: "a value, or a JSON array of values", sample: () => any(1, 900) };
    default:
      return feature.columns[0] === column
        ? { name: "any", write: anyText, hint: "a map, as JSON", sample: () => '{"a": 1}' }
        : { name: "any", write: anyText, hint: "a key, or a JSON array of keys", sample: () => "a" };
  }
}

const any = (low, high) => String(low + Math.floor(Math.random() * (high - low + 1)));
const middle = (bounds) => (bounds.length === 0 ? "0" : String(bounds[Math.floor(Math.random() * bounds.length)]));

class Field {
  constructor(column, kind, feature) {
    this.column = column;
    this.kind = kind;
    this.feature = feature;
    this.features = [];
    this.id = `field-${(serial += 1)}`;
    this.words = kind.words ? h("datalist", { id: `${this.id}-words` }, ...kind.words.slice(0, MOST_WORDS).map((word) => h("option", { value: word }))) : null;
    this.about = h("span", { class: "about", id: `${this.id}-about` });
    this.input = h("input", {
      id: this.id,
      name: column,
      spellcheck: "false",
      autocapitalize: "off",
      inputmode: kind.number && !(kind.width > 1) ? "decimal" : null,
      list: this.words ? this.words.id : null,
      "aria-describedby": this.about.id,
      placeholder: this.placeholder,
    });
  }

  get placeholder() {
    const { default: standard, kind, sequence } = this.feature;
    if (standard !== null) return `empty: ${standard}`;
    return kind === "dense" && !sequence ? "empty: 0" : "empty: none";
  }

  /** Tells which features and tables the column goes to. */
  tell() {
    const readers = this.features.length === 1 && this.features[0] === this.column ? "" : ` · read by ${this.features.join(", ")}`;
    const tables = this.tables.length > 0 ? ` · ${this.tables.join(", ")}` : "";
    this.about.textContent = `${this.hint}${readers}${tables}${this.perUser ? " · the user's" : ""}`;
  }

  get hint() {
    return this.kind.hint;
  }

  get label() {
    return h("label", { for: this.id }, this.column);
  }
}

/** One value, or the numbers of a vector. */
class OneField extends Field {
  get element() {
    return h("div", { class: "field" }, this.label, this.input, this.words, this.about);
  }

  get json() {
    const text = this.input.value.trim();
    if (text === "") return null;
    return this.kind.width > 1 ? `[${cut(text).map(this.kind.write).join(",")}]` : this.kind.write(text);
  }

  sample() {
    this.input.value = this.kind.sample();
  }

  clear() {
    this.input.value = "";
  }
}

/** Any number of values: ids, weighted ids, or the steps of a sequence. What is typed is added by Enter. */
class ListField extends Field {
  constructor(column, kind, steps, feature) {
    super(column, kind, feature);
    this.steps = steps;
    // A step has several values where the feature says so; those are typed with commas between.
    this.inner = steps && (feature.kind === "dense" ? feature.value_dim > 1 : feature.value_dim !== 1 || feature.weighted);
    this.entries = [];
    this.list = h(steps ? "ol" : "ul", { class: "chips" });
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.input.addEventListener("paste", (event) => this.#paste(event));
    this.add = h("button", { type: "button", "aria-label": `Add to ${column}`, onclick: () => this.#take() }, "Add");
  }

  get hint() {
    const weighted = this.feature.weighted ? ", each with :weight after it" : "";
    if (this.steps) return `steps: Enter adds one${this.inner ? "; commas between a step's values" : ""}${weighted} · ${this.kind.hint}`;
    return `any number of them, Enter adds one${weighted} · ${this.kind.hint}`;
  }

  get element() {
    return h("div", { class: "field" }, this.label, this.list, h("span", { class: "row" }, this.input, this.add), this.words, this.about);
  }

  /** What is in the field and not added yet counts too. */
  get json() {
    const typed = this.input.value.trim();
    const entries = typed === "" ? this.entries : [...this.entries, typed];
    if (entries.length === 0) return null;
    if (this.steps) return `[${entries.map((entry) => this.#step(entry)).join(",")}]`;
    return this.#bag(entries);
  }

  #step(entry) {
    return this.inner ? this.#bag(cut(entry)) : this.kind.write(entry);
  }

  #bag(values) {
    if (!this.feature.weighted) return `[${values.map(this.kind.write).join(",")}]`;
    const pairs = values.map((value) => {
      const weighted = /^(.*):([^:]*)$/s.exec(value);
      const [id, weight] = weighted !== null && NUMBER.test(weighted[2].trim()) ? [weighted[1].trim(), weighted[2].trim()] : [value, "1"];
      return `${JSON.stringify(id)}:${weight}`;
    });
    return `{${pairs.join(",")}}`;
  }

  #key(event) {
    if (event.key === "Enter" && this.input.value.trim() !== "") {
      event.preventDefault();
      this.#take();
    } else if (event.key === "Backspace" && this.input.value === "" && this.entries.length > 0) {
      this.#set(this.entries.slice(0, -1));
    }
  }

  /** Lines that are pasted are entries of their own. */
  #paste(event) {
    const lines = event.clipboardData.getData("text").split(/\r?\n/).map((line) => line.trim()).filter((line) => line !== "");
    if (lines.length < 2) return;
    event.preventDefault();
    this.#set([...this.entries, ...lines]);
  }

  #take() {
    const typed = this.input.value.trim();
    if (typed !== "") this.#set([...this.entries, typed]);
    this.input.value = "";
    this.input.focus();
  }

  #set(entries) {
    this.entries = entries;
    this.list.replaceChildren(
      ...entries.map((entry, place) => {
        const remove = () => {
          this.#set(this.entries.filter((_, other) => other !== place));
          this.input.focus();
        };
        return h("li", {}, h("span", {}, entry), h("button", { type: "button", "aria-label": `Remove ${entry}`, onclick: remove }, "×"));
      }),
    );
  }

  sample() {
    const one = () => (this.feature.weighted ? `${this.kind.sample()}:${(Math.random() + 0.5).toFixed(1)}` : this.kind.sample());
    this.input.value = "";
    this.#set([...new Set(Array.from({ length: this.steps ? 3 : this.feature.weighted ? 2 : 1 }, one))]);
  }

  clear() {
    this.input.value = "";
    this.#set([]);
  }
}

/** The parts of a text between its commas. */
const cut = (text) => text.split(",").map((part) => part.trim()).filter((part) => part !== "");

/** The body of a plain request for the fields' values, as JSON text. */
export function rowBody(fields) {
  return `{"rows": [${object(fields)}], "explain": true}`;
}

/** As `rowBody`, of one user with two candidates; what is the user's is said once. */
export function tiledBody(fields) {
  const row = object(fields.filter((field) => !field.perUser));
  return `{"users": [${object(fields.filter((field) => field.perUser))}],\n "rows": [[${row},\n           ${row}]],\n "explain": true}`;
}

function object(fields) {
  const parts = fields.map((field) => [field.column, field.json]).filter(([, json]) => json !== null);
  return `{${parts.map(([column, json]) => `${JSON.stringify(column)}: ${json}`).join(", ")}}`;
}
