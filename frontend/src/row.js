// One device: who has it, its figures now, two lines over the last minutes.

import { Chart } from "./chart.js";
import { element, mark, write } from "./dom.js";
import { capacity, celsius, duration, gibibytes, known, megahertz, memory, percent, plain, watts } from "./format.js";
import { deviceName, nameParts, use, useInFull } from "./words.js";

const MIB = 2 ** 20;

class Figure {
  constructor(className, title) {
    this.number = element("span", "gl-number");
    this.unit = element("span", "gl-unit");
    this.title = element("span", "gl-caption", {}, [title]);
    this.node = element("div", `gl-figure ${className}`, {}, [this.title, this.number, " ", this.unit]);
  }

  show({ number, unit }) {
    write(this.number, number);
    write(this.unit, unit);
    this.node.classList.toggle("gl-unknown", number === "n/a");
  }
}

export class Row {
  constructor(device, { span, sync }) {
    this.device = device;
    this.name = element("span", "gl-name");
    this.index = element("span", "gl-index");
    this.remark = element("span", "gl-remark");
    this.badge = element("span", "gl-yours", {}, ["yours"]);
    this.brake = element("span", "gl-brake");
    this.use = element("div", "gl-use");
    this.gpu = new Figure("gl-gpu", "Utilization");
    this.memory = new Figure("gl-memory", "Memory");
    this.power = new Figure("gl-power", "Power");
    this.temperature = new Figure("gl-temperature", "Temp.");
    this.share = element("span", "gl-share", { "aria-hidden": "true" });
    this.plots = [this.#plot("gl-gpu", "100 %", span), this.#plot("gl-memory", top(device), span)];
    this.plots[1].append(this.share);
    this.node = element("li", "gl-row", {}, [
      element("div", "gl-id", {}, [
        element("div", "gl-title", {}, [
          this.index,
          element("span", "gl-names", {}, [this.name, this.remark]),
          this.badge,
          this.brake,
        ]),
        this.use,
      ]),
      element("div", "gl-pair", {}, [this.gpu.node, this.plots[0]]),
      element("div", "gl-pair", {}, [this.memory.node, this.plots[1]]),
      this.power.node,
      this.temperature.node,
    ]);
    const total = device.memory_total_bytes;
    this.total = total;
    this.options = [
      { max: 100, span, sync, read: (value) => `${Math.round(value)} %` },
      { max: (total ?? 2 ** 37) / MIB, span, sync, read: (value) => `${gibibytes(value * MIB)} GiB` },
    ];
    this.charts = null;
  }

  /** Whether the scale is right for the device; one that does not answer now keeps the one it had. */
  fits(device) {
    const total = device.memory_total_bytes;
    return total === null || total === this.total;
  }

  #plot(className, top, span) {
    return element("div", `gl-plot ${className}`, { role: "img" }, [
      element("span", "gl-axis gl-top", {}, [top]),
      element("span", "gl-axis gl-past", {}, [`${duration(span)} ago`]),
      element("span", "gl-axis gl-now", {}, ["now"]),
    ]);
  }

  update(device, position, state) {
    this.device = device;
    this.charts ??= this.options.map((options, i) => new Chart(this.plots[i], options));
    const figures = device.state === "ok" ? state.history.figures(position) : null;
    this.#identity(device, state);
    this.#figures(device, figures);
    this.#lines(device, position, state);
  }

  #identity(device, state) {
    write(this.index, device.label);
    const [model, remark] = nameParts(device);
    write(this.name, model);
    write(this.remark, remark);
    const team = state.machine.mode === "team";
    const words = use(device, team);
    write(this.use, words);
    mark(this.name, "title", `${device.name ?? "unnamed GPU"}\n${device.uuid ?? ""}`);
    mark(this.use, "title", useInFull(device, team));
    this.badge.hidden = !device.mine;
    const [label, why] = device.brake ?? ["", ""];
    write(this.brake, label);
    mark(this.brake, "title", why);
    this.brake.hidden = !label;
    this.node.classList.toggle("gl-mine", device.mine);
    this.node.classList.toggle("gl-broken", device.state !== "ok");
    this.use.classList.toggle("gl-several", device.state === "ok" && device.holders.length > 1);
    this.use.classList.toggle("gl-lines", words.includes("\n"));
    this.use.classList.toggle("gl-free", device.state === "ok" && device.use === "free");
  }

  #figures(device, figures) {
    const total = device.memory_total_bytes;
    this.gpu.show(percent(figures?.gpu));
    this.memory.show(memory(figures?.memory, total));
    this.power.show(watts(figures?.power));
    this.temperature.show(celsius(figures?.temperature));
    const limit = device.power_limit_watts;
    const clock = known(device.sm_clock_mhz) ? `SM clock ${plain(megahertz(device.sm_clock_mhz))}` : "";
    mark(this.gpu.node, "title", clock);
    mark(this.power.node, "title", limit ? `of at most ${Math.round(limit)} W` : "limit not known");
    const name = deviceName(device);
    mark(this.plots[0], "aria-label", `Utilization of ${name}, last minutes; now ${plain(percent(figures?.gpu))}`);
    const share = device.share_bytes ? `; your share is ${capacity(device.share_bytes)} GiB` : "";
    const used = plain(memory(figures?.memory, total));
    mark(this.plots[1], "aria-label", `Memory of ${name}, last minutes; now ${used}${share}`);
  }

  #lines(device, position, state) {
    const { history } = state;
    const share = device.mine && device.share_bytes ? device.share_bytes / MIB : null;
    write(this.share, share === null ? "" : `your share ${capacity(device.share_bytes)} GiB`);
    // Above its line; where the chart has no room there, below it
    const height = (share ?? 0) / this.options[1].max;
    this.share.style.setProperty("--gl-height", String(height));
    this.share.classList.toggle("gl-below", height > 0.7);
    this.charts[0].draw(history.series(position, 0), history.now, null);
    this.charts[1].draw(history.series(position, 1), history.now, share);
  }

  destroy() {
    for (const chart of this.charts ?? []) chart.destroy();
    this.node.remove();
  }
}

function top(device) {
  return device.memory_total_bytes ? `${capacity(device.memory_total_bytes)} GiB` : "";
}
