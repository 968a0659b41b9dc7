// Elements in one line each. Text goes in as text: names of users, GPUs and notebooks are not ours.

export function element(tag, className = "", attributes = {}, children = []) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Set text only where it differs, so that nothing is announced or laid out again for nothing. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
