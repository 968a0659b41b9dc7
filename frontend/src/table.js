// The text alternative: the same figures as a table, for screen readers and for whoever prefers it.

import { element, write } from "./dom.js";
import { celsius, megahertz, memory, percent, plain, watts } from "./format.js";
import { deviceName, useInFull } from "./words.js";

const COLUMNS = ["GPU", "Name", "Use", "Utilization", "Memory", "Power", "Temperature", "SM clock", "Held back by"];

export class Table {
  constructor(id) {
    this.body = element("tbody");
    const head = COLUMNS.map((title) => element("th", "", { scope: "col" }, [title]));
    this.node = element("table", "gl-table", { id }, [
      element("caption", "gl-hidden", {}, ["What every shown GPU is doing now"]),
      element("thead", "", {}, [element("tr", "", {}, head)]),
      this.body,
    ]);
  }

  update(devices, state) {
    while (this.body.rows.length > devices.length) this.body.deleteRow(-1);
    while (this.body.rows.length < devices.length) this.body.append(newRow());
    devices.forEach(({ device, position }, i) => {
      const figures = device.state === "ok" ? state.history.figures(position) : null;
      const cells = [
        `${deviceName(device)}${device.mine ? " (yours)" : ""}`,
        device.name ?? "unnamed GPU",
        useInFull(device, state.machine.mode === "team").replaceAll("\n", "; "),
        plain(percent(figures?.gpu)),
        plain(memory(figures?.memory, device.memory_total_bytes)),
        plain(watts(figures?.power)),
        plain(celsius(figures?.temperature)),
        plain(megahertz(figures && device.sm_clock_mhz)),
        device.brake?.[0] ?? "",
      ];
      cells.forEach((text, column) => write(this.body.rows[i].cells[column], text));
    });
  }
}

function newRow() {
  const cells = COLUMNS.map((_, i) => (i === 0 ? element("th", "", { scope: "row" }) : element("td")));
  return element("tr", "", {}, cells);
}
