// Sentences about devices and holders; whatever comes from users is only ever put in as text.

import { capacity, duration, since } from "./format.js";

const FRESH_SECONDS = 3.5;

/** [model, remark]: less the maker, which every row would repeat; the remark is shown where there is room. */
export function nameParts(device) {
  const [, model, remark] = /^(?:NVIDIA\s+)?(.*?)(\s*\(simulated\))?$/s.exec(device.name ?? "");
  return [model || "unnamed GPU", remark?.trim() ?? ""];
}

export function deviceName(device) {
  return device.kind === "mig" ? `MIG ${device.label}` : `GPU ${device.label}`;
}

/** "ada 8 GiB": with the share, if it is one. */
function who(holder) {
  return holder.share_bytes ? `${holder.who} ${capacity(holder.share_bytes)} GiB` : holder.who;
}

function holderWords(holder) {
  const time = since(holder.since);
  const named = [who(holder), holder.notebook].filter(Boolean).join(" · ");
  return { who: named, since: [time && `since ${time}`, rest(holder)].filter(Boolean).join(", ") };
}

/** "idle since 15:10" of a holder that does nothing on its GPU. */
function rest(holder) {
  const time = since(holder.idle_since);
  return time ? `idle since ${time}` : "";
}

/** "ada 8 GiB, 14:02, train.ipynb": what is cut off first stands last. */
function briefly(holder) {
  return [who(holder), rest(holder) || since(holder.since), holder.notebook].filter(Boolean).join(", ");
}

/** Two with notebooks have a line each; more of them, who and how much. A line breaks between holders only. */
function together(holders, team) {
  if (holders.length === 2 && holders.some((holder) => holder.notebook)) return holders.map(briefly).join("\n");
  const entries = holders.map(holders.length > 2 ? who : briefly).map((entry) => entry.replaceAll(" ", "\u00a0"));
  return `${team ? "" : "shared by "}${entries.join(" · ")}`;
}

/** Everything there is to say, a line for each holder. */
export function useInFull(device, team) {
  if (device.state !== "ok" || device.holders.length < 2) return use(device, team);
  const lines = device.holders.map((holder) => {
    const words = holderWords(holder);
    return [words.who, words.since, holder.mine ? "(yours)" : ""].filter(Boolean).join(" ");
  });
  return lines.join("\n");
}

/** Who has the device: one line. In the team's view the holder stands first, elsewhere the fact. */
export function use(device, team) {
  if (device.state !== "ok") return device.message || device.state;
  if (device.mine && !team) return yours(device);
  if (device.holders.length === 1) {
    const one = holderWords(device.holders[0]);
    if (team) return [one.who, one.since].filter(Boolean).join(" · ");
    return ["leased by", one.who, one.since].filter(Boolean).join(" ");
  }
  if (device.holders.length > 1) return together(device.holders, team);
  if (device.use === "free") return "free";
  if (device.use === "unseen") return "in use by what is not listed, no lease";
  if (device.use === "drained") return "taken out of service";
  if (device.use === "split") return "split into MIG slices";
  if (device.use === "busy") {
    return device.users.length ? `in use by ${device.users.join(", ")}, no lease` : "in use by others, no lease";
  }
  return "use not known";
}

function yours(device) {
  const own = device.holders.find((holder) => holder.mine);
  const time = own && since(own.since) ? ` since ${since(own.since)}` : "";
  const others = device.holders.filter((holder) => !holder.mine).map(who);
  const company = others.length ? `, shared with ${others.join(", ")}` : "";
  const share = device.share_bytes ? `share ${capacity(device.share_bytes)} GiB` : "whole GPU";
  return `${share}${time}${company}`;
}

/** The state of the stream, for the corner of the header. */
export function liveness(state) {
  const { history, connecting } = state;
  if (state.machine.state === "paused") return { kind: "waiting", text: "paused" };
  if (state.machine.trouble) return { kind: "stale", text: "no data" };
  if (history.age === null) return { kind: "waiting", text: connecting ? "connecting" : "no data yet" };
  if (history.age <= FRESH_SECONDS) return { kind: "live", text: "live" };
  if (connecting) return { kind: "waiting", text: "connecting" };
  return { kind: "stale", text: `no data for ${duration(history.age)}` };
}
