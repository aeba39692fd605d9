// Numbers as people read them.

/** About three digits, and k, M or G from a thousand on. */
export function amount(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return short(value / size) + unit;
  }
  return short(value);
}

function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  return size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(size >= 1 ? 3 : 2)));
}

/** Seconds, in the unit that fits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return `${short(seconds * 1e6)} µs`;
  return seconds < 1 ? `${short(seconds * 1e3)} ms` : `${short(seconds)} s`;
}

/** How long ago, in two units. */
export function age(seconds) {
  if (seconds === null || seconds === undefined || seconds < 0) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [size, unit] = units[first];
  const rest = units[first + 1];
  const left = rest ? Math.floor((seconds % size) / rest[0]) : 0;
  return `${Math.floor(seconds / size)} ${unit}${left > 0 ? ` ${left} ${rest[1]}` : ""}`;
}

/** Bytes, in binary units. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${short(value / 1024 ** power)} ${units[power]}`;
}

/** A share as a percentage. */
export const percent = (share) => (share === null || share === undefined ? "–" : `${short(share * 100)} %`);
