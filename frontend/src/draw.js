// Draws a state into an element; knows nothing of kernels, comms or sockets. The same in a notebook,
// in the team's dashboard and in a page of the server.
//
// state = { machine: {mode, host, simulated, trouble, notice}, devices: [...], waiting: [...], text, history, span, connecting }

import { element, write } from "./dom.js";
import { duration } from "./format.js";
import { Queue } from "./queue.js";
import { Row } from "./row.js";
import { Table } from "./table.js";
import { deviceName, liveness } from "./words.js";

const SAY_SECONDS = 5;
let views = 0;

export class Drawing {
  constructor(root, state) {
    this.id = `gpulab-${++views}`;
    this.state = state;
    this.rows = new Map();
    this.all = false;
    this.said = { text: "", at: -Infinity };
    this.#build(root);
    this.update();
  }

  #build(root) {
    this.simulated = element("span", "gl-simulated", {}, ["simulated"]);
    this.heading = element("span", "gl-heading");
    this.live = element("span", "gl-live");
    this.every = this.#button("gl-every", () => (this.all = !this.all));
    this.tabular = this.#button("gl-tabular", () => (this.table.node.hidden = !this.table.node.hidden));
    this.tabular.setAttribute("aria-controls", `${this.id}-table`);
    this.notice = element("p", "gl-notice");
    this.list = element("ul", "gl-rows", { role: "list" });
    this.table = new Table(`${this.id}-table`);
    this.table.node.hidden = true;
    this.queue = new Queue(`${this.id}-queue`);
    const past = `last ${duration(this.state.span)}`;
    this.columns = element("div", "gl-columns", { "aria-hidden": "true" }, [
      element("span", "gl-first", {}, ["GPU"]),
      element("span", "", {}, [`Utilization, ${past}`]),
      element("span", "", {}, [`Memory, ${past}`]),
      element("span", "gl-last", {}, ["Power"]),
      element("span", "gl-last", {}, ["Temp."]),
    ]);
    this.summary = element("p", "gl-hidden", { id: `${this.id}-text` });
    this.voice = element("p", "gl-hidden", { "aria-live": "polite" });
    const tools = element("div", "gl-tools", {}, [this.live, this.every, this.tabular]);
    this.node = element("section", "gpulab", { "aria-label": "GPU monitor", "aria-describedby": this.summary.id }, [
      element("header", "gl-head", {}, [this.heading, this.simulated, tools]),
      this.notice,
      this.columns,
      this.list,
      this.queue.node,
      this.table.node,
      this.summary,
      this.voice,
    ]);
    root.append(this.node);
  }

  #button(className, press) {
    const button = element("button", `gl-button ${className}`, { type: "button" });
    button.addEventListener("click", () => {
      press();
      this.update();
    });
    return button;
  }

  /** Bring the picture up to date with the state. */
  update() {
    const { machine, devices } = this.state;
    const placed = devices.map((device, position) => ({ device, position }));
    const visible = placed.filter(({ device }) => device.visible);
    const shown = this.all ? placed : visible;
    this.#head(machine, placed.length, visible.length, shown.length);
    write(this.notice, machine.trouble || machine.notice || (shown.length ? "" : this.#emptiness(placed.length)));
    this.notice.hidden = !this.notice.textContent;
    this.#list(machine.trouble ? [] : shown);
    this.queue.update(this.state.waiting);
    this.table.update(shown, this.state);
    write(this.summary, this.state.text);
    this.#say();
  }

  #head(machine, total, visible, shown) {
    const count = shown === total ? `${total} GPU${total === 1 ? "" : "s"}` : `${shown} of ${total} GPUs`;
    write(this.heading, machine.trouble || !total ? "GPUs" : count + (machine.host ? ` on ${machine.host}` : ""));
    this.simulated.hidden = !machine.simulated;
    this.every.hidden = visible === total || Boolean(machine.trouble);
    write(this.every, this.all ? "Only this kernel's" : `Show all ${total}`);
    this.every.setAttribute("aria-pressed", String(this.all));
    this.tabular.hidden = !total || Boolean(machine.trouble);
    write(this.tabular, this.table.node.hidden ? "Show table" : "Hide table");
    this.tabular.setAttribute("aria-expanded", String(!this.table.node.hidden));
    const { kind, text } = liveness(this.state);
    write(this.live, text);
    this.live.dataset.kind = kind;
    this.node.classList.toggle("gl-stale", kind === "stale");
  }

  #emptiness(total) {
    if (total) return "This kernel sees no GPU; it runs on the CPU.";
    return this.state.connecting ? "Asking for the GPUs …" : "No GPU is known yet.";
  }

  #list(shown) {
    const wanted = new Map(shown.map(({ device }) => [device.key, device]));
    for (const [key, row] of this.rows) {
      if (wanted.has(key) && row.fits(wanted.get(key))) continue;
      row.destroy();
      this.rows.delete(key);
    }
    const roomy = shown.length <= 2;
    this.list.classList.toggle("gl-roomy", roomy);
    this.list.hidden = !shown.length;
    this.columns.hidden = roomy;
    shown.forEach(({ device, position }, place) => {
      const row = this.rows.get(device.key) ?? this.#row(device);
      if (this.list.children[place] !== row.node) this.list.insertBefore(row.node, this.list.children[place] ?? null);
      row.update(device, position, this.state);
    });
  }

  #row(device) {
    const row = new Row(device, { span: this.state.span, sync: this.id });
    this.rows.set(device.key, row);
    return row;
  }

  /** Changes of state are said aloud, at most every five seconds; figures are not: they would never end. */
  #say() {
    const { machine, devices, history } = this.state;
    const { kind } = liveness(this.state);
    const broken = devices.filter((device) => device.visible && device.state !== "ok");
    const parts = broken.map((device) => `${deviceName(device)}: ${device.message || device.state}`);
    if (machine.trouble || machine.notice) parts.unshift(machine.trouble || machine.notice);
    else if (kind === "stale") parts.unshift("No new data from the GPUs.");
    const text = parts.join(" ") || (kind === "live" && this.said.text ? "GPU data is live again." : "");
    const now = history.clock();
    if (text === this.said.text || now - this.said.at < SAY_SECONDS) return;
    this.said = { text, at: now };
    write(this.voice, text);
  }

  destroy() {
    for (const row of this.rows.values()) row.destroy();
    this.node.remove();
  }
}
