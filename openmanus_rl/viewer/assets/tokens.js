// Text, token by token, coloured by what it was credited with. Blue and a solid line is more than expected, orange and a
// dashed line is less: the line says the same as the colour. The card has the numbers.

import { el, replace } from "viewer/dom.js";
import { number, signed, words } from "viewer/format.js";

const known = new WeakMap(); // block -> {detail, turn, estimator}
// What would be obeyed rather than shown: control characters, and marks that turn the direction of a text.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export function visible(text) {
  return String(text).replace(UNSEEN, (char) =>
    char === "\r" ? "" : `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function estimatorName(detail, name) {
  if (name === "logprob") return "Log-prob";
  const shown =
    { gae: "GAE", grpo: "GRPO", gigpo: "GiGPO", rloo: "RLOO", reinforce_plus_plus: "REINFORCE++" }[name] ?? words(name);
  return name === "gae" && !detail.critic ? `${shown} (values 0)` : shown;
}

// The size that counts as full colour: most tokens are below it, so that one outlier does not bleach all others.
export function scaleOf(details, estimator) {
  const sizes = [];
  for (const detail of details) {
    for (const value of column(detail, estimator) ?? []) if (value !== 0) sizes.push(Math.abs(value));
  }
  sizes.sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor((sizes.length - 1) * 0.95)] : 1;
}

export function column(detail, estimator) {
  return estimator === "logprob" ? detail.columns.logprob : detail.advantages[estimator];
}

export function tokenBlock(detail, turn) {
  const spans = turn.tokens.map((piece, k) => {
    const shown = piece === "" ? "·" : visible(piece).replaceAll("\n", "⏎\n");
    return el("span", { class: piece === "" ? "tk part" : "tk", "data-k": turn.from + k }, shown);
  });
  const block = el(
    "span",
    {
      class: "tokens",
      tabindex: spans.length ? "0" : null,
      role: "group",
      "aria-label": `what the agent wrote, ${spans.length} tokens`,
    },
    spans.length ? spans : el("span", { class: "quiet" }, turn.response ? visible(turn.response) : "(nothing)"),
  );
  known.set(block, { detail, turn, estimator: null });
  return block;
}

export function colour(root, estimator, scale) {
  for (const block of root.querySelectorAll(".tokens")) {
    const info = known.get(block);
    if (!info) continue;
    info.estimator = estimator;
    const values = column(info.detail, estimator);
    for (const span of block.children) {
      if (!span.dataset.k) continue;
      const value = values?.[Number(span.dataset.k)];
      const strength = value ? Math.max(0.12, Math.min(1, Math.abs(value) / scale)) : 0;
      span.classList.toggle("plus", estimator !== "logprob" && value > 0);
      span.classList.toggle("minus", estimator !== "logprob" && value < 0);
      span.classList.toggle("odd", estimator === "logprob" && strength > 0);
      span.style.setProperty("--strength", `${Math.round(strength * 62)}%`);
    }
  }
}

export function legend(estimator, scale) {
  if (estimator === "logprob") {
    return el(
      "div",
      { class: "scale-key", "aria-label": "colours" },
      el("span", {}, "sure"),
      el("i", { class: "ramp single" }),
      el("span", {}, `log-prob ${number(-scale)} and below`),
    );
  }
  return el(
    "div",
    { class: "scale-key", "aria-label": "colours" },
    el("span", { class: "minus-word" }, `${signed(-scale)} worse`),
    el("i", { class: "ramp" }),
    el("span", { class: "plus-word" }, `better ${signed(scale)}`),
  );
}

// --- the card -----------------------------------------------------------------------------------------------

// Rows of the card: name, value, note. Whether a token is clipped is a fact of the training, whatever is shown.
function numbers({ detail, estimator }, k) {
  const trained = detail.estimator !== null;
  const at = (name) => detail.columns[name]?.[k];
  const row = (name, value, write, note = "", missing = "not recorded") =>
    value === undefined ? [name, "–", trained ? missing : "not recorded"] : [name, write(value), note];
  const ratio = at("new") === undefined ? undefined : Math.exp(at("new") - at("logprob"));
  const advantages = Object.entries(detail.advantages).map(([name, values]) =>
    row(
      `advantage, ${estimatorName(detail, name)}`,
      values[k],
      (value) => signed(value),
      name === estimator ? "shown" : "",
    ),
  );
  return [
    ...advantages,
    row("log-prob", at("logprob"), (value) => number(value, 4), "when sampled"),
    row("reference log-prob", at("ref"), (value) => number(value, 4), "", "no reference in this run"),
    row("ratio", ratio, (value) => number(value, 4), "after the update"),
    row("clipped", clipped(detail.clip, ratio, detail.advantages[detail.estimator]?.[k]), String),
    row("value", at("value"), (value) => number(value), "", "no critic in this run"),
    row("reward", at("reward"), (value) => signed(value)),
    row("return", at("return"), (value) => signed(value)),
    ["mask", "1", trained ? "trained on" : "the agent wrote it"],
  ];
}

function clipped([low, high], ratio, advantage) {
  if (ratio === undefined || advantage === undefined) return undefined;
  if (advantage > 0 && ratio > high) return `yes, above ${number(high)}`;
  if (advantage < 0 && ratio < low) return `yes, below ${number(low)}`;
  return "no";
}

function cardOf(target) {
  const token = target.closest?.(".tk"),
    block = target.closest?.(".tokens");
  if (token && block) {
    const info = known.get(block),
      k = Number(token.dataset.k);
    const text = info.turn.tokens[k - info.turn.from];
    return [
      el("div", { class: "token-text" }, text === "" ? "(part of the next character)" : JSON.stringify(text)),
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          numbers(info, k).map(([name, value, note]) =>
            el(
              "tr",
              { class: note === "shown" ? "shown" : null },
              el("th", { scope: "row" }, name),
              el("td", {}, value),
              el("td", { class: "quiet" }, note === "shown" ? "◂ colour" : note),
            ),
          ),
        ),
      ),
    ];
  }
  const seen = target.closest?.("[data-observed]");
  if (!seen) return null;
  return [
    el("div", { class: "token-text" }, `environment and prompt, ${seen.dataset.observed} tokens`),
    el(
      "table",
      {},
      el(
        "tbody",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "row" }, "mask"),
          el("td", {}, "0"),
          el("td", { class: "quiet" }, "no reward, value or advantage"),
        ),
      ),
    ),
  ];
}

// One card for the whole page: under the pointer, or at the token that the arrow keys have reached.
const card = el("div", { class: "token-card", role: "status", hidden: true });
let here = null;
window.addEventListener("hashchange", leave);

function leave() {
  here?.classList.remove("here");
  here = null;
  card.hidden = true;
}

function show(target) {
  const content = cardOf(target);
  leave();
  if (!content) return;
  here = target.closest(".tk");
  here?.classList.add("here");
  if (!card.isConnected) document.body.append(card);
  replace(card, ...content);
  card.hidden = false;
  const box = (here ?? target.closest("[data-observed]")).getBoundingClientRect();
  const fits = box.bottom + 8 + card.offsetHeight < window.innerHeight;
  card.style.top = `${fits ? box.bottom + 8 : Math.max(8, box.top - card.offsetHeight - 8)}px`;
  card.style.left = `${Math.max(8, Math.min(window.innerWidth - card.offsetWidth - 8, box.left))}px`;
}

export function watchTokens(root) {
  root.addEventListener("pointerover", (event) => {
    if (event.target.closest?.(".tk, [data-observed]")) show(event.target);
    else if (event.pointerType === "mouse") leave();
  });
  // A finger leaves as soon as it is lifted: the card of a tap stays until the next one.
  root.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
  root.addEventListener("click", (event) => show(event.target));
  root.addEventListener("focusout", leave);
  root.addEventListener("keydown", (event) => {
    const block = event.target.closest?.(".tokens");
    if (!block) return;
    if (event.key === "Escape") leave();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...block.querySelectorAll(".tk")];
    const at = all.indexOf(here);
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step))];
    if (next) show(next);
  });
}
