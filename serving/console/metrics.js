// What /metrics says, and what two looks at it tell of the time between them.

/** The samples of Prometheus text, by name: a list of `{labels, value}`. */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const sample = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (sample === null) continue;
    const labels = {};
    for (const [, name, value] of (sample[2] ?? "").matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
    }
    if (!found.has(sample[1])) found.set(sample[1], []);
    found.get(sample[1]).push({ labels, value: numberOf(sample[3]) });
  }
  return found;
}

const numberOf = (text) => ({ "+Inf": Infinity, "-Inf": -Infinity })[text] ?? Number(text);

/** One look: when, and sums by model of what the page shows. */
export class Look {
  constructor(text, atMs) {
    this.atMs = atMs;
    this.samples = parseMetrics(text);
  }

  /** The sum of a metric's samples whose labels have some values; null where there is none. */
  sum(name, wanted = {}) {
    const found = this.select(name, wanted);
    return found.length === 0 ? null : found.reduce((total, sample) => total + sample.value, 0);
  }

  /** The samples of a metric whose labels have some values; a value that is undefined is any. */
  select(name, wanted = {}) {
    const entries = Object.entries(wanted).filter(([, value]) => value !== undefined);
    return (this.samples.get(name) ?? []).filter(({ labels }) => entries.every(([label, value]) => labels[label] === value));
  }

  /** Sums of a metric by one of its labels. */
  by(name, label, wanted = {}) {
    const sums = new Map();
    for (const { labels, value } of this.select(name, wanted)) sums.set(labels[label], (sums.get(labels[label]) ?? 0) + value);
    return sums;
  }
}

/** How much each sum grew; a counter that fell began again at 0. */
export function growth(before, after) {
  const grown = new Map();
  for (const [key, value] of after) {
    const more = value - (before.get(key) ?? 0);
    grown.set(key, more < 0 ? value : more);
  }
  return grown;
}

/** Requests a second by status: a Map; null in place of a rate that cannot be told. */
export function requestRates(before, after, model) {
  const seconds = (after.atMs - before.atMs) / 1000;
  const name = "emberline_requests_total";
  const grown = growth(before.by(name, "status", { model }), after.by(name, "status", { model }));
  return new Map([...grown].map(([status, count]) => [status, count / seconds]));
}

/** Quantiles of a histogram between two looks, each read off within its bucket; null where nothing was counted. */
export function quantiles(before, after, name, wanted, shares) {
  const grown = [...growth(before.by(`${name}_bucket`, "le", wanted), after.by(`${name}_bucket`, "le", wanted))]
    .map(([le, count]) => [numberOf(le), count])
    .sort(([a], [b]) => a - b);
  const total = grown.length === 0 ? 0 : grown[grown.length - 1][1];
  return shares.map((share) => (total > 0 ? quantile(grown, share * total) : null));
}

function quantile(buckets, rank) {
  let [low, below] = [0, 0];
  for (const [bound, upTo] of buckets) {
    if (upTo >= rank) return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / Math.max(upTo - below, 1e-12);
    [low, below] = [bound, upTo];
  }
  return low;
}

/** The mean of what a histogram counted between two looks; null where that is nothing. */
export function mean(before, after, name, wanted) {
  // No sample has this label: all are one.
  return means(before, after, name, "", wanted).get(undefined) ?? null;
}

/** As `mean`, of a histogram by one of its labels: a Map of those that counted something. */
export function means(before, after, name, label, wanted) {
  const grown = (part) => growth(before.by(`${name}_${part}`, label, wanted), after.by(`${name}_${part}`, label, wanted));
  const [sums, counts] = [grown("sum"), grown("count")];
  return new Map([...counts].filter(([, count]) => count > 0).map(([value, count]) => [value, (sums.get(value) ?? 0) / count]));
}

/** The share of ids without a row of their own by table, of those asked between two looks; without a first look of all that were. */
export function unknownShares(before, after, model) {
  const read = (name) => {
    const now = after.by(name, "table", { model });
    return before === null ? now : growth(before.by(name, "table", { model }), now);
  };
  const [asked, unknown] = [read("emberline_table_ids_total"), read("emberline_table_unknown_ids_total")];
  return new Map([...asked].map(([table, count]) => [table, { asked: count, share: count > 0 ? (unknown.get(table) ?? 0) / count : null }]));
}
