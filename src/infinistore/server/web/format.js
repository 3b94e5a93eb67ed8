// Numbers as people read them; the same units as the command line's.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${Number.isInteger(value) ? value : value.toFixed(value < 10 ? 2 : 1)}${UNITS[unit]}`;
}

export const rate = (value) => `${bytes(Math.round(value))}/s`;
export const count = (value) => value.toLocaleString("en");
export const percent = (share) => ((share ?? null) === null ? "-" : `${(100 * share).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}
