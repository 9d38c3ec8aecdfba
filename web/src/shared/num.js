/** Bytes in units of 1000: `98.3 MB`. */
export function size(n) {
  if (n === null || n === undefined) return "?";
  let v = n;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (v < 999.95 || unit === "TB") return unit === "B" ? `${n} B` : `${v.toFixed(1)} ${unit}`;
    v /= 1000;
  }
}

/** A whole number with separators. */
export const whole = (n) => n === null || n === undefined ? "?" : n.toLocaleString("en");

/** One number as a share of another. */
export const percent = (a, b) => b > 0 ? `${(100 * a / b).toFixed(a / b < .1 ? 1 : 0)} %` : "-";

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "\u00b5"]];

/** A value with three digits and an SI prefix: `18.1 GB/s`. */
export function quantity(value, unit) {
  const [power, prefix] = PREFIXES.find(([p]) => value >= .9995 * p) ?? [1e-9, "n"];
  const scaled = value / power;
  return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${prefix}${unit}`.trimEnd();
}

/** A number of weights: `134.5 M`. */
export function parameters(n) {
  if (n < 1e3) return String(n);
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} k`;
  if (n < 1e9) return `${(n / 1e6).toFixed(1)} M`;
  return `${(n / 1e9).toFixed(2)} B`;
}

/** A count with its noun: `1 layer`, `2 layers`. */
export const counted = (n, noun) => `${whole(n)} ${noun}${n === 1 ? "" : "s"}`;
