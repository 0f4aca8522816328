// Charts as SVG, drawn at the width they have: letters stay as large as the page's, on a phone as well.
// Every chart reads out its values under the pointer, and with the arrow keys when it has the focus.

import { el, replace, svg } from "viewer/dom.js";
import { number, percent } from "viewer/format.js";

const LEFT = 52,
  RIGHT = 14,
  TOP = 12,
  BOTTOM = 30;

export function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k += 1)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

// Draws again when the width changes; the height is the chart's own.
function drawn(holder, draw) {
  let width = 0;
  const watcher = new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next > 0 && next !== width) {
      width = next;
      draw(width);
    }
  });
  watcher.observe(holder);
}

function limits(series, references, given) {
  const every = [];
  for (const one of series) {
    for (const p of one.points) {
      every.push(p[1]);
      if (one.band && p.length > 3) every.push(p[2], p[3]);
    }
  }
  for (const line of references) every.push(line.value);
  let low = given?.[0] ?? Math.min(...every),
    high = given?.[1] ?? Math.max(...every);
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    [low, high] = [low - room, high + room];
  } else if (!given) {
    const room = (high - low) * 0.06;
    low = low >= 0 && low - room < 0 ? 0 : low - room;
    high += room;
  }
  return [low, high];
}

// `aside` is room to the left and right of the first and the last x, for bars that stand around them.
function frame(width, height, xs, ys, format, title, small, aside = 0) {
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const right = width - RIGHT,
    bottom = height - BOTTOM,
    room = right - LEFT - 2 * aside;
  const x = (value) => (x1 === x0 ? (LEFT + right) / 2 : LEFT + aside + ((value - x0) / (x1 - x0)) * room);
  const y = (value) => bottom - ((value - ys[0]) / (ys[1] - ys[0])) * (bottom - TOP);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const value of ticks(ys[0], ys[1], small ? 4 : 5)) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(value), y2: y(value) }));
    picture.append(svg("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  const whole = ticks(x0, x1, Math.max(2, Math.floor((right - LEFT) / 80))).filter(Number.isInteger);
  for (const value of whole) {
    picture.append(svg("text", { class: "tick", x: x(value), y: bottom + 18, "text-anchor": "middle" }, value));
  }
  picture.append(svg("text", { class: "tick", x: LEFT - 8, y: bottom + 18, "text-anchor": "end" }, "step"));
  return { picture, x, y, right, bottom };
}

function mark(shape, x, y, extra) {
  if (shape === "square") return svg("rect", { ...extra, x: x - 3, y: y - 3, width: 6, height: 6 });
  if (shape === "diamond")
    return svg("path", { ...extra, d: `M${x} ${y - 4.4}L${x + 4.4} ${y}L${x} ${y + 4.4}L${x - 4.4} ${y}Z` });
  return svg("circle", { ...extra, cx: x, cy: y, r: 3.2 });
}

// The vertical line, and what stands at it.
function reading(figure, picture, xs, place, tell) {
  const line = svg("line", {
    class: "cursor",
    y1: TOP,
    y2: picture.getAttribute("height") - BOTTOM,
    visibility: "hidden",
  });
  const box = el("div", { class: "readout", hidden: true, role: "status" });
  picture.append(line);
  figure.append(box);
  let at = -1;
  const show = (index) => {
    at = index;
    const where = place(xs[index]);
    line.setAttribute("x1", where);
    line.setAttribute("x2", where);
    line.setAttribute("visibility", "visible");
    replace(box, ...tell(xs[index]));
    box.hidden = false;
    const room = figure.clientWidth - box.offsetWidth - 4;
    box.style.left = `${Math.max(4, Math.min(room, where + 12 > room ? where - box.offsetWidth - 12 : where + 12))}px`;
  };
  const hide = () => {
    line.setAttribute("visibility", "hidden");
    box.hidden = true;
  };
  picture.addEventListener("pointermove", (event) => {
    const left = event.clientX - picture.getBoundingClientRect().left;
    let best = 0;
    for (let k = 1; k < xs.length; k += 1)
      if (Math.abs(place(xs[k]) - left) < Math.abs(place(xs[best]) - left)) best = k;
    show(best);
  });
  picture.addEventListener("pointerleave", hide);
  picture.setAttribute("tabindex", "0");
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      show(Math.max(0, Math.min(xs.length - 1, at < 0 ? xs.length - 1 : at + step)));
    } else if (event.key === "Escape") hide();
  });
  picture.addEventListener("blur", hide);
}

// series: {name, points: [[x, y, low, high]], style, shape, band, thin}; references: {name, value, low, high}.
export function lineChart({
  title,
  series,
  references = [],
  format = number,
  y: given,
  height = 280,
  small = false,
  unit = "step",
  legend = true,
}) {
  const shown = series.filter((one) => one.points.length);
  const figure = el("figure", { class: small ? "chart small" : "chart" });
  if (!shown.length) return el("p", { class: "quiet" }, "Nothing to draw yet.");
  const holder = el("div", { class: "canvas" });
  if (legend && (shown.length > 1 || references.length)) figure.append(key(shown, references));
  figure.append(holder);
  const xs = [...new Set(shown.flatMap((one) => one.points.map((p) => p[0])))].sort((a, b) => a - b);
  const byX = shown.map((one) => new Map(one.points.map((p) => [p[0], p])));
  const ys = limits(shown, references, given);
  drawn(holder, (width) => {
    const { picture, x, y, right } = frame(width, height, xs, ys, format, title, small);
    for (const line of references) {
      picture.append(
        svg("line", { class: `reference ${line.name}`, x1: LEFT, x2: right, y1: y(line.value), y2: y(line.value) }),
      );
      const above = y(line.value) > TOP + 16;
      picture.append(
        svg(
          "text",
          { class: "reference-name", x: right - 4, y: y(line.value) + (above ? -5 : 14), "text-anchor": "end" },
          `${line.name} ${format(line.value)}`,
        ),
      );
    }
    shown.forEach((one) => {
      if (one.band) {
        const banded = one.points.filter((p) => p.length > 3);
        const up = banded.map((p) => `${x(p[0])},${y(p[3])}`),
          down = banded.map((p) => `${x(p[0])},${y(p[2])}`).reverse();
        if (banded.length > 1)
          picture.append(svg("polygon", { class: `band ${one.style}`, points: [...up, ...down].join(" ") }));
      }
    });
    shown.forEach((one) => {
      picture.append(
        svg("polyline", {
          class: `line ${one.style} ${one.thin ? "thin" : ""}`,
          points: one.points.map((p) => `${x(p[0])},${y(p[1])}`).join(" "),
        }),
      );
      const few = one.points.length <= 60 && !one.thin;
      if (few || one.points.length === 1) {
        one.points.forEach((p) => {
          if (one.band && p.length > 3 && one.points.length === 1)
            picture.append(
              svg("line", { class: `line ${one.style}`, x1: x(p[0]), x2: x(p[0]), y1: y(p[2]), y2: y(p[3]) }),
            );
          picture.append(mark(one.shape, x(p[0]), y(p[1]), { class: `mark ${one.style}` }));
        });
      }
    });
    replace(holder, picture);
    reading(holder, picture, xs, x, (at) => [
      el("b", {}, `${unit} ${at}`),
      ...shown.map((one, k) => {
        const p = byX[k].get(at);
        if (!p) return null;
        const between = p.length > 3 ? ` (${format(p[2])} to ${format(p[3])})` : "";
        return el(
          "div",
          {},
          el("i", { class: `dot ${one.style}` }),
          one.name ? `${one.name} ` : "",
          el("span", { class: "value" }, `${format(p[1])}${between}`),
        );
      }),
    ]);
  });
  return figure;
}

// One entry of a key: a short piece of the line, and what it is.
function keyEntry(text, ...drawn) {
  return el("li", {}, svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, ...drawn), text);
}

export function key(series, references = []) {
  const piece = (style) => svg("line", { class: style, x1: 1, x2: 25, y1: 6, y2: 6 });
  return el(
    "ul",
    { class: "key" },
    series.map((one) =>
      keyEntry(
        one.name,
        piece(`line ${one.style} ${one.thin ? "thin" : ""}`),
        one.thin ? null : mark(one.shape, 13, 6, { class: `mark ${one.style}` }),
      ),
    ),
    references.map((line) =>
      keyEntry(
        `${line.name} (${percent(line.value)}, ${line.count} of ${line.total})`,
        piece(`reference ${line.name}`),
      ),
    ),
  );
}

// names, points: [[x, v1, v2, ...]]: positive terms are stacked upwards, negative ones downwards.
export function stackedChart({ title, names, points, format = number, height = 240, unit = "step" }) {
  if (!points.length || !names.length) return el("p", { class: "quiet" }, "No reward terms yet.");
  const holder = el("div", { class: "canvas" });
  const figure = el(
    "figure",
    { class: "chart" },
    el(
      "ul",
      { class: "key" },
      names.map((name, k) => el("li", {}, el("i", { class: `swatch s${k % 6}` }), name)),
    ),
    holder,
  );
  const stacks = points.map(([at, ...values]) => {
    let up = 0,
      down = 0;
    const parts = values.map((value) => (value >= 0 ? [up, (up += value)] : [down, (down += value)]));
    return { at, values, parts, up, down };
  });
  const ys = limits(
    [
      {
        points: stacks.flatMap((s) => [
          [0, s.up],
          [0, s.down],
          [0, 0],
        ]),
      },
    ],
    [],
  );
  const xs = stacks.map((s) => s.at);
  drawn(holder, (width) => {
    const bar = Math.max(1.5, Math.min(26, ((width - RIGHT - LEFT) / xs.length) * 0.72));
    const { picture, x, y, right } = frame(width, height, xs, ys, format, title, false, bar / 2 + 4);
    for (const stack of stacks) {
      stack.parts.forEach(([from, to], k) => {
        const top = Math.min(y(from), y(to)),
          tall = Math.abs(y(from) - y(to));
        if (tall > 0)
          picture.append(
            svg("rect", { class: `part s${k % 6}`, x: x(stack.at) - bar / 2, y: top, width: bar, height: tall }),
          );
      });
    }
    picture.append(svg("line", { class: "zero", x1: LEFT, x2: right, y1: y(0), y2: y(0) }));
    replace(holder, picture);
    reading(holder, picture, xs, x, (at) => {
      const stack = stacks.find((s) => s.at === at);
      return [
        el("b", {}, `${unit} ${at}`),
        ...names.map((name, k) =>
          el(
            "div",
            {},
            el("i", { class: `swatch s${k % 6}` }),
            `${name} `,
            el("span", { class: "value" }, format(stack.values[k])),
          ),
        ),
        names.length > 1
          ? el("div", { class: "sum" }, "sum ", el("span", { class: "value" }, format(stack.up + stack.down)))
          : null,
      ];
    });
  });
  return figure;
}

// A small line without axes.
export function sparkline(points, width = 120, height = 30) {
  if (points.length < 2) return el("div", { class: "spark" });
  const values = points.map((p) => p[1]);
  const low = Math.min(...values),
    high = Math.max(...values),
    span = high - low || 1;
  const path = values.map(
    (value, k) =>
      `${(k / (values.length - 1)) * (width - 4) + 2},${height - 3 - ((value - low) / span) * (height - 6)}`,
  );
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { class: "line", points: path.join(" ") }),
  );
}
