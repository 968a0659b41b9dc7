// One line over the last minutes, drawn by uPlot; colours come from the stylesheet.

import uPlot from "uplot";

import { ago } from "./format.js";

const CURSOR = { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 7, width: 2 } };

/**
 * @param {HTMLElement} host filled by the chart; its size is the chart's size
 * @param {{max: number, span: number, sync: string, read: (value: number) => string}} options
 */
export class Chart {
  constructor(host, options) {
    this.host = host;
    this.options = options;
    this.now = 0;
    this.mark = null;
    this.readout = host.appendChild(Object.assign(document.createElement("span"), { className: "gl-readout" }));
    this.pointed = false;
    host.addEventListener("mouseenter", () => (this.pointed = true));
    host.addEventListener("mouseleave", () => (this.pointed = false));
    this.plot = new uPlot(this.#settings(), [[], []], host);
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(host);
  }

  draw([times, values], now, mark) {
    this.now = now;
    this.mark = mark;
    this.plot.setData([times, values]);
  }

  destroy() {
    this.observer.disconnect();
    this.plot.destroy();
  }

  #colour(name) {
    return getComputedStyle(this.host).getPropertyValue(name).trim() || "#888";
  }

  #settings() {
    const { max, span, sync } = this.options;
    return {
      width: Math.max(10, this.host.clientWidth),
      height: Math.max(10, this.host.clientHeight),
      padding: [4, 4, 4, 0],
      legend: { show: false },
      cursor: { ...CURSOR, sync: { key: sync } },
      scales: { x: { time: false, range: () => [this.now - span, this.now] }, y: { range: () => [0, max] } },
      axes: [{ show: false }, { show: false }],
      series: [
        {},
        {
          stroke: () => this.#colour("--gl-line"),
          fill: () => this.#colour("--gl-fill"),
          width: 1.5,
          points: { show: false },
        },
      ],
      hooks: {
        drawClear: [(plot) => this.#grid(plot)],
        draw: [(plot) => this.#marks(plot)],
        setCursor: [(plot) => this.#read(plot)],
      },
    };
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.host;
    if (width > 0 && height > 0) this.plot.setSize({ width, height });
  }

  #grid(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = this.#colour("--gl-grid");
    ctx.lineWidth = devicePixelRatio;
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(plot.valToPos(share * this.options.max, "y", true)) + 0.5;
      line(ctx, bbox.left, y, bbox.left + bbox.width, y);
    }
    ctx.restore();
  }

  /** The share of this kernel (a dashed line), and a dot on the newest value. */
  #marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    if (this.mark !== null && this.mark < this.options.max) {
      const y = plot.valToPos(this.mark, "y", true);
      ctx.strokeStyle = this.#colour("--gl-mark");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      line(ctx, bbox.left, y, bbox.left + bbox.width, y);
    }
    const [times, values] = plot.data;
    const last = values.length - 1;
    if (last >= 0 && values[last] !== null) {
      ctx.fillStyle = this.#colour("--gl-line");
      ctx.beginPath();
      const x = Math.min(plot.valToPos(times[last], "x", true), bbox.left + bbox.width);
      ctx.arc(x, plot.valToPos(values[last], "y", true), 2.5 * devicePixelRatio, 0, 2 * Math.PI);
      if (x >= bbox.left) ctx.fill();
    }
    ctx.restore();
  }

  #read(plot) {
    const { idx, left } = plot.cursor;
    const [times, values] = plot.data;
    const shown = left >= 0 && idx !== null && idx !== undefined && values[idx] !== null && values[idx] !== undefined;
    // All charts show their value at the same instant; the one under the pointer says which instant it is
    const instant = shown && this.pointed ? `, ${ago(this.now - times[idx])}` : "";
    this.readout.textContent = shown ? this.options.read(values[idx]) + instant : "";
    this.readout.classList.toggle("gl-readout-left", shown && left > plot.width / 2);
  }
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}
