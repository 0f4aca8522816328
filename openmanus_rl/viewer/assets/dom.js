// Elements from plain values. Text only ever becomes text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, number] of Object.entries(value)) node.style.setProperty(key, number);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(node, child);
    else node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// An HTML element: el("p", {class: "quiet"}, "text", el("b", {}, 3)). `on…` are listeners, `vars` CSS variables.
export function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

// A labelled control of a form.
export function field(label, control) {
  return el("label", { class: "field" }, el("span", {}, label), control);
}

export function replace(node, ...children) {
  node.replaceChildren();
  add(node, children);
  return node;
}

// Tells those who cannot see it what has changed.
export function say(text) {
  document.getElementById("said").textContent = text;
}

// Left and right (or up and down) go through buttons of a group that is one stop of the tab key.
export function rove(group, selector) {
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...group.querySelectorAll(selector)];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    next.click();
  });
}
