// What is shown, as plain values: no document and no transport in here.

/** Figures of one device in one row, in this order. Memory is in MiB: a float32 holds that exactly enough. */
export const FIGURES = 4;
const HEADER_BYTES = 16;
/** A sample is due each second: with one missing the line breaks, rather than to tell what nobody saw. */
const GAP_SECONDS = 1.9;
const MIB = 2 ** 20;

/** Rows of a message: 16 bytes of header (float64 base time, uint32 layout, uint32 devices), then float32. */
export function decode(view) {
  if (!view || view.byteLength < HEADER_BYTES) return null;
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength).slice();
  const header = new DataView(bytes.buffer);
  const base = header.getFloat64(0, true);
  const layout = header.getUint32(8, true);
  const devices = header.getUint32(12, true);
  const width = 1 + FIGURES * devices;
  const floats = new Float32Array(bytes.buffer, HEADER_BYTES);
  const rows = [];
  for (let start = 0; start + width <= floats.length; start += width) {
    rows.push({ time: base + floats[start], figures: floats.subarray(start + 1, start + width) });
  }
  return { layout, rows };
}

/** The rows of the last `span` seconds, and how old the newest one is. */
export class History {
  constructor(span, clock = () => performance.now() / 1000) {
    this.span = span;
    this.clock = clock;
    this.layout = null;
    this.rows = [];
    this.receivedAt = null;
    this.ageWhenReceived = 0;
  }

  replace(message, age) {
    if (!message) return;
    this.layout = message.layout;
    this.rows = message.rows;
    this.#received(age);
  }

  append(message, age) {
    if (!message || message.layout !== this.layout) return; // the window of the new layout is on its way
    const newest = this.newest?.time ?? -Infinity;
    for (const row of message.rows) if (row.time > newest) this.rows.push(row);
    const oldest = (this.newest?.time ?? 0) - this.span - 5;
    while (this.rows.length && this.rows[0].time < oldest) this.rows.shift();
    this.#received(age);
  }

  #received(age) {
    if (!this.rows.length) return;
    this.receivedAt = this.clock();
    this.ageWhenReceived = Math.max(0, age ?? 0);
  }

  get newest() {
    return this.rows[this.rows.length - 1] ?? null;
  }

  /** Seconds since the newest sample was taken, by this page's own clock; null before the first. */
  get age() {
    return this.receivedAt === null ? null : this.ageWhenReceived + this.clock() - this.receivedAt;
  }

  /** The newest sample's clock, carried on: the right edge of every chart. */
  get now() {
    return this.newest ? this.newest.time + (this.age ?? 0) : 0;
  }

  /** The newest figures of a device; NaN where unknown, null before the first sample. */
  figures(position) {
    const row = this.newest;
    if (!row) return null;
    const [gpu, memory, power, temperature] = row.figures.subarray(position * FIGURES, (position + 1) * FIGURES);
    return { gpu, memory: memory * MIB, power, temperature };
  }

  /** [times, values] of one figure (0: utilization, 1: memory in MiB); a hole where samples are missing. */
  series(position, figure) {
    const times = [];
    const values = [];
    let before = null;
    for (const { time, figures } of this.rows) {
      if (before !== null && time - before > GAP_SECONDS) {
        times.push(before + 1);
        values.push(null);
      }
      const value = figures[position * FIGURES + figure];
      times.push(time);
      values.push(Number.isNaN(value) ? null : value);
      before = time;
    }
    return [times, values];
  }
}
