// The transport of a notebook: an anywidget's model. Traits and messages in, heartbeats out.

import { Drawing } from "./draw.js";
import { decode, History } from "./state.js";

const BEAT_MS = 10_000;
const TICK_MS = 1_000;
const CONNECT_MS = 4_000;

function render({ model, el }) {
  const state = {
    machine: model.get("machine"),
    devices: model.get("devices"),
    waiting: model.get("waiting") ?? [],
    text: model.get("text"),
    span: model.get("span"),
    history: new History(model.get("span")),
    connecting: true,
  };
  takeWindow(state, model.get("window"), null);
  const drawing = new Drawing(el, state);
  const page = watch(el, (visible) => visible && greet());

  let connectingUntil = 0;
  function greet() {
    connectingUntil = performance.now() + CONNECT_MS;
    beat();
    redraw();
  }
  function beat() {
    if (!page.visible) return;
    try {
      model.send({ kind: "beat" });
    } catch {
      // Its kernel has been changed: the view stays, shows how old its figures are, and hears no answer
    }
  }
  function redraw() {
    state.connecting = performance.now() < connectingUntil;
    if (page.visible) drawing.update();
  }
  function onTraits() {
    state.machine = model.get("machine");
    state.devices = model.get("devices");
    state.waiting = model.get("waiting") ?? [];
    state.text = model.get("text");
    redraw();
  }
  function onWindow() {
    takeWindow(state, model.get("window"), model.get("window_age"));
    connectingUntil = 0;
    redraw();
  }
  function onMessage(message, buffers) {
    if (message?.kind !== "samples") return;
    state.history.append(decode(buffers?.[0]), message.age);
    connectingUntil = 0;
    redraw();
  }

  const traits = ["change:machine", "change:devices", "change:waiting", "change:text"];
  for (const name of traits) model.on(name, onTraits);
  model.on("change:window", onWindow);
  model.on("msg:custom", onMessage);
  const timers = [setInterval(beat, BEAT_MS), setInterval(redraw, TICK_MS)];
  greet();

  return () => {
    timers.forEach(clearInterval);
    for (const name of traits) model.off(name, onTraits);
    model.off("change:window", onWindow);
    model.off("msg:custom", onMessage);
    page.stop();
    drawing.destroy();
  };
}

/** `age` null: a saved window of who knows when, so its age goes by the clock on the wall. */
function takeWindow(state, bytes, age) {
  const message = decode(bytes);
  const newest = message?.rows.at(-1);
  if (newest) state.history.replace(message, age ?? Date.now() / 1000 - newest.time);
}

/** Whether somebody can see the element: its page is in front, and it is not scrolled away. */
function watch(el, changed) {
  const page = { inView: true, visible: document.visibilityState === "visible", stop };
  function decide() {
    const visible = page.inView && document.visibilityState === "visible";
    if (visible === page.visible) return;
    page.visible = visible;
    changed(visible);
  }
  const observer = new IntersectionObserver((entries) => {
    page.inView = entries.at(-1).isIntersecting;
    decide();
  });
  observer.observe(el);
  document.addEventListener("visibilitychange", decide);
  function stop() {
    observer.disconnect();
    document.removeEventListener("visibilitychange", decide);
  }
  return page;
}

export default { render };
