// Line and area charts over time, drawn as SVG. A point is `{atMs, values}`, its values by the series' names; null breaks a line.

import { h, s, setText } from "./dom.js";

const HEIGHT = 150;
const MARGIN = { top: 8, right: 8, bottom: 18, left: 46 };
const COLOURS = 8;
const MINUTE_MS = 60000;

export class Chart {
  /**
   * `format` makes text of a value; with `stacked`, series are areas, one on top of the other; `spanMs` is how much time is shown at most, and `gapMs` how far
   * two points may lie apart with a line between them.
   */
  constructor(title, { format, stacked = false, spanMs, gapMs, colours = {} }) {
    this.title = title;
    this.format = format;
    this.stacked = stacked;
    this.spanMs = spanMs;
    this.gapMs = gapMs;
    this.colours = colours;
    this.points = [];
    this.names = [];
    this.at = null;
    this.svg = s("svg", { height: HEIGHT, role: "img", tabindex: 0 });
    this.legend = h("ul", { class: "legend" });
    this.when = h("span", { class: "quiet" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, title), " ", this.when), this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.#point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.#show(null));
    this.svg.addEventListener("blur", () => this.#show(null));
    this.svg.addEventListener("keydown", (event) => this.#step(event));
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** Draws these points. */
  update(points, names) {
    this.points = points;
    this.names = names;
    if (this.at !== null) this.at = Math.min(this.at, points.length - 1);
    this.#draw();
  }

  /** How much time is shown: from a minute on, as much as there is. */
  get #shownMs() {
    const [first, last] = [this.points.at(0)?.atMs ?? 0, this.points.at(-1)?.atMs ?? 0];
    return Math.min(this.spanMs, Math.max(MINUTE_MS, Math.ceil((last - first) / MINUTE_MS) * MINUTE_MS));
  }

  get #scale() {
    const width = Math.max(160, this.element.clientWidth);
    const [end, shownMs] = [this.points.at(-1)?.atMs ?? 0, this.#shownMs];
    const totals = this.points.map(({ values }) => {
      const own = this.names.map((name) => values[name] ?? 0);
      return this.stacked ? own.reduce((total, value) => total + value, 0) : Math.max(0, ...own);
    });
    const top = roundUp(Math.max(0, ...totals));
    const [wide, high] = [width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom];
    return {
      width,
      top,
      x: (atMs) => MARGIN.left + wide * (1 - (end - atMs) / shownMs),
      y: (value) => MARGIN.top + high * (1 - value / top),
    };
  }

  #draw() {
    const scale = this.#scale;
    this.svg.setAttribute("width", scale.width);
    this.svg.setAttribute("viewBox", `0 0 ${scale.width} ${HEIGHT}`);
    const parts = [...this.#grid(scale), ...(this.stacked ? this.#areas(scale) : this.#lines(scale))];
    if (this.at !== null && this.points[this.at] !== undefined) {
      const x = scale.x(this.points[this.at].atMs);
      parts.push(s("line", { class: "cross", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    }
    this.svg.replaceChildren(...parts);
    this.#tell();
  }

  #grid({ width, top, x, y }) {
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      parts.push(s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
      parts.push(s("text", { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, this.format(top * share)));
    }
    const [end, shownMs] = [this.points.at(-1)?.atMs ?? 0, this.#shownMs];
    const stepMs = shownMs > MINUTE_MS ? MINUTE_MS : MINUTE_MS / 4;
    for (let backMs = 0; backMs <= shownMs; backMs += stepMs) {
      const text = backMs === 0 ? "now" : backMs < MINUTE_MS ? `−${backMs / 1000} s` : `−${backMs / MINUTE_MS} min`;
      const anchor = backMs === 0 ? "end" : backMs === shownMs ? "start" : "middle";
      parts.push(s("text", { x: x(end - backMs), y: HEIGHT - 4, "text-anchor": anchor }, text));
    }
    return parts;
  }

  #lines({ x, y }) {
    return this.names.map((name, place) => {
      const path = this.#runs((values) => values[name] !== null && values[name] !== undefined)
        .map((run) => "M" + run.map(({ atMs, values }) => `${x(atMs).toFixed(1)} ${y(values[name]).toFixed(1)}`).join("L") + (run.length === 1 ? "h1" : ""))
        .join("");
      return s("path", { class: `line ${this.#colour(name, place)}`, d: path });
    });
  }

  #areas({ x, y }) {
    const runs = this.#runs(() => true);
    return this.names.map((name, place) => {
      const upTo = (values, last) => this.names.slice(0, last).reduce((total, other) => total + (values[other] ?? 0), 0);
      const path = runs.map((run) => {
        const edge = (last) => run.map(({ atMs, values }) => `${x(atMs).toFixed(1)} ${y(upTo(values, last)).toFixed(1)}`);
        return `M${edge(place + 1).join("L")}L${edge(place).reverse().join("L")}Z`;
      });
      return s("path", { class: `area ${this.#colour(name, place)}`, d: path.join("") });
    });
  }

  /** Points that follow each other without a gap. */
  #runs(has) {
    const runs = [];
    let last = null;
    for (const point of this.points) {
      if (has(point.values)) {
        if (last === null || point.atMs - last > this.gapMs) runs.push([]);
        runs[runs.length - 1].push(point);
        last = point.atMs;
      } else last = null;
    }
    return runs;
  }

  #colour(name, place) {
    return this.colours[name] ?? `c${place % COLOURS}`;
  }

  /** The values at the crosshair, or the newest ones. */
  #tell() {
    const point = this.points[this.at ?? this.points.length - 1];
    const end = this.points.at(-1)?.atMs ?? 0;
    const back = this.at === null || point === undefined ? 0 : Math.round((end - point.atMs) / 1000);
    setText(this.when, back > 0 ? `${back} s ago` : "");
    const shown = this.names.map((name) => [name, this.format(point?.values[name])]);
    this.svg.setAttribute("aria-label", `${this.title}: ${shown.map(([name, text]) => `${name} ${text}`).join(", ") || "nothing yet"}`);
    this.legend.replaceChildren(
      ...shown.map(([name, text], place) => h("li", {}, h("i", { class: this.#colour(name, place) }), `${name} `, h("b", {}, text))),
    );
  }

  #point(clientX) {
    if (this.points.length === 0) return;
    const { x } = this.#scale;
    const at = clientX - this.svg.getBoundingClientRect().left;
    const distances = this.points.map(({ atMs }) => Math.abs(x(atMs) - at));
    this.#show(distances.indexOf(Math.min(...distances)));
  }

  #step(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || this.points.length === 0) return;
    event.preventDefault();
    const last = this.points.length - 1;
    this.#show(Math.max(0, Math.min(last, (this.at ?? last) + by)));
  }

  #show(at) {
    if (at === this.at) return;
    this.at = at;
    this.#draw();
  }
}

/** The next of 1, 2, 5, 10, ... at or above a value; of nothing, 1. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= value * 0.9999);
}
