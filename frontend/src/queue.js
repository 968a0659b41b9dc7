// Who waits for a GPU, below the GPUs: one quiet line each, the first in line first.

import { element, mark, write } from "./dom.js";
import { since } from "./format.js";

const SHOWN = 5;

export class Queue {
  constructor(id) {
    this.title = element("h3", "gl-queue-title", { id });
    this.list = element("ol", "gl-queue-list", { "aria-labelledby": id });
    this.rest = element("p", "gl-queue-rest");
    this.node = element("div", "gl-queue", {}, [this.title, this.list, this.rest]);
  }

  /** `waiting`: entries of who waits, and perhaps a last one that only counts those left out. */
  update(waiting) {
    const named = waiting.filter((entry) => entry.more === undefined);
    const shown = named.slice(0, SHOWN);
    const total = named.length + (waiting.find((entry) => entry.more !== undefined)?.more ?? 0);
    this.node.hidden = !total;
    write(this.title, `Waiting: ${total}`);
    while (this.list.children.length > shown.length) this.list.lastChild.remove();
    while (this.list.children.length < shown.length) this.list.append(newLine());
    shown.forEach((entry, i) => fill(this.list.children[i], entry));
    const left = total - shown.length;
    this.rest.hidden = !left;
    write(this.rest, left ? `and ${left} more` : "");
  }
}

function newLine() {
  return element("li", "gl-queue-line", {}, ["gl-queue-place", "gl-queue-who", "gl-queue-what"].map((name) => element("span", name)));
}

function fill(line, entry) {
  const [place, who, what] = line.children;
  write(place, `${entry.place}`);
  write(who, [entry.who, entry.notebook].filter(Boolean).join(" · "));
  const time = since(entry.since);
  const words = [
    `waits for ${entry.for}`,
    time && `since ${time}`,
    entry.priority !== "normal" && `${entry.priority} priority`,
    !entry.answers && "does not answer now",
  ];
  write(what, words.filter(Boolean).join(", "));
  mark(line, "title", `${who.textContent} ${what.textContent}`);
}
