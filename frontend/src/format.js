// Figures as people read them. Unknown is null or NaN and shows as "n/a", never as 0.

const GIB = 2 ** 30;

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** { number, unit } so that a figure and its unit can be set in different type. */
export function percent(value) {
  return known(value) ? { number: String(Math.round(value)), unit: "%" } : { number: "n/a", unit: "" };
}

export function watts(value) {
  return known(value) ? { number: String(Math.round(value)), unit: "W" } : { number: "n/a", unit: "" };
}

export function celsius(value) {
  return known(value) ? { number: String(Math.round(value)), unit: "°C" } : { number: "n/a", unit: "" };
}

export function megahertz(value) {
  return known(value) ? { number: String(Math.round(value)), unit: "MHz" } : { number: "n/a", unit: "" };
}

export function gibibytes(bytes) {
  if (!known(bytes)) return "n/a";
  const size = bytes / GIB;
  return size.toFixed(size >= 99.95 ? 0 : size >= 0.995 || size === 0 ? 1 : 2);
}

/** Total memory without a needless ".0": 80, not 80.0; 14.6 stays. */
export function capacity(bytes) {
  if (!known(bytes)) return "n/a";
  return String(Number((bytes / GIB).toFixed(1)));
}

export function memory(usedBytes, totalBytes) {
  if (!known(usedBytes)) return { number: "n/a", unit: known(totalBytes) ? `of ${capacity(totalBytes)} GiB` : "" };
  const unit = known(totalBytes) ? `/ ${capacity(totalBytes)} GiB` : "GiB";
  return { number: gibibytes(usedBytes), unit };
}

export function plain(figure) {
  return figure.unit ? `${figure.number} ${figure.unit}` : figure.number;
}

export function ago(seconds) {
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} ago`;
}

export function duration(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
}

/** "14:02" for today, "28 Nov 14:02" before, in the reader's own time zone. */
export function since(epochSeconds) {
  if (!known(epochSeconds)) return "";
  const then = new Date(epochSeconds * 1000);
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  if (then.toDateString() === new Date().toDateString()) return time;
  return `${then.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}
