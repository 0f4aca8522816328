// One episode, or the members of its group side by side.

import { el, replace, rove, say } from "viewer/dom.js";
import { number, outcome, signed, words } from "viewer/format.js";
import { colour, estimatorName, legend, scaleOf, tokenBlock, visible, watchTokens } from "viewer/tokens.js";

export function outcomeChip(name) {
  const [text, symbol] = outcome(name);
  return el("span", { class: `outcome ${name}` }, el("span", { "aria-hidden": "true" }, symbol), ` ${text}`);
}

// What is asked for: {row, detail, members: [{row, detail}], open(id, turn), link(id, turn), turn}.
export class Episode {
  constructor({ row, detail, siblings, load, link, turn, choice }) {
    Object.assign(this, { row, detail, siblings, load, link, turn, choice });
    this.body = el("div", { class: "episode-body" });
    this.legend = el("div", { class: "legend-place" });
    this.node = el("article", { class: "episode", "aria-label": `episode ${row.traj}` });
    watchTokens(this.node);
  }

  async draw() {
    replace(
      this.node,
      this.heading(),
      this.bar(),
      this.detail.missing.map((text) => el("p", { class: "note" }, text)),
      this.detail.error ? el("p", { class: "note bad" }, visible(this.detail.error)) : null,
      this.legend,
      this.body,
    );
    await this.fill();
    return this.node;
  }

  heading() {
    const { row, detail } = this;
    const terms = Object.entries(detail.terms);
    return el(
      "header",
      {},
      el("h2", {}, visible(row.task), " ", outcomeChip(row.outcome)),
      el(
        "p",
        { class: "quiet facts" },
        [
          `${row.kind === "val" ? "validation" : "training"} at step ${row.step}`,
          row.type && visible(words(row.type)),
          `group ${row.group}`,
          `episode ${row.traj}`,
          `seed ${row.seed}`,
          `${row.turns} turns`,
          row.invalid ? `${row.invalid} invalid` : null,
          `reward ${number(row.reward)}`,
        ]
          .filter(Boolean)
          .map((text) => el("span", {}, visible(text))),
      ),
      terms.length > 1 || (terms.length && terms[0][1][0] !== terms[0][1][1])
        ? el(
            "p",
            { class: "quiet facts" },
            terms.map(([name, [raw, weighted]]) =>
              el("span", {}, `${visible(name)} ${signed(weighted)}${raw === weighted ? "" : ` (raw ${number(raw)})`}`),
            ),
          )
        : null,
    );
  }

  // Which estimators can be shown, the run's own first; the log-prob always.
  options() {
    const { detail } = this;
    const names = Object.keys(detail.advantages);
    const order = [detail.estimator, "gae", "grpo", "gigpo"].filter((name) => name && names.includes(name));
    return [...new Set([...order, ...names, "logprob"])];
  }

  bar() {
    const names = this.options();
    if (!names.includes(this.choice.estimator)) this.choice.estimator = names[0];
    const group = el("div", { class: "switch", role: "radiogroup", "aria-label": "Colour tokens by" });
    const draw = () =>
      replace(
        group,
        names.map((name) =>
          el(
            "button",
            {
              type: "button",
              role: "radio",
              "data-estimator": name,
              "aria-checked": String(name === this.choice.estimator),
              tabindex: name === this.choice.estimator ? "0" : "-1",
              title:
                name === "gae" && !this.detail.critic ? "This run has no critic, so GAE's values are taken as 0" : null,
              onclick: (event) => {
                this.choice.estimator = name;
                for (const button of group.children) {
                  const on = button.dataset.estimator === name;
                  button.setAttribute("aria-checked", String(on));
                  button.tabIndex = on ? 0 : -1;
                }
                this.recolour();
                say(`coloured by ${event.currentTarget.textContent}`);
              },
            },
            estimatorName(this.detail, name),
            name === this.detail.estimator ? el("small", {}, "this run") : null,
          ),
        ),
      );
    draw();
    rove(group, "button");
    const together = this.siblings.length > 1;
    const side = together
      ? toggle("Group side by side", this.choice.together, (on) => {
          this.choice.together = on;
          this.fill();
        })
      : null;
    const prompt = toggle("Prompt as the model saw it", this.choice.prompt, (on) => {
      this.choice.prompt = on;
      this.fill();
    });
    return el(
      "div",
      { class: "bar-row" },
      el("span", { class: "label" }, "Colour by"),
      group,
      el("span", { class: "grow" }),
      side,
      prompt,
    );
  }

  async fill() {
    const together = this.choice.together && this.siblings.length > 1;
    this.node.classList.toggle("wide", together);
    if (!together) {
      this.shown = [this.detail];
      replace(
        this.body,
        el(
          "div",
          { class: "turns" },
          this.detail.turns.map((turn, k) => this.drawTurn(this.row, this.detail, turn, k, false)),
        ),
      );
    } else {
      replace(this.body, el("p", { class: "quiet" }, "Reading the group …"));
      const members = await Promise.all(
        this.siblings.map(async (row) => ({
          row,
          detail: row.id === this.row.id ? this.detail : await this.load(row.id),
        })),
      );
      this.shown = members.map((member) => member.detail);
      replace(
        this.body,
        el(
          "div",
          {
            class: "columns",
            role: "list",
            "aria-label": `the ${members.length} episodes of group ${this.row.group}`,
            tabindex: "0",
          },
          members.map(({ row, detail }) =>
            el(
              "section",
              { class: `column ${row.id === this.row.id ? "chosen" : ""}`, role: "listitem", "data-member": row.id },
              el(
                "header",
                {},
                el("a", { href: this.link(row.id) }, row.traj),
                outcomeChip(row.outcome),
                el("span", { class: "quiet" }, `reward ${number(row.reward)}, ${row.turns} turns`),
              ),
              el(
                "div",
                { class: "turns" },
                detail.turns.map((turn, k) => this.drawTurn(row, detail, turn, k, true)),
              ),
            ),
          ),
        ),
      );
    }
    this.recolour();
    const columns = this.body.querySelector(".columns");
    const chosen = columns?.querySelector(".chosen");
    if (chosen)
      columns.scrollLeft = chosen.offsetLeft - columns.offsetLeft - (columns.clientWidth - chosen.offsetWidth) / 2;
    this.goTo(this.turn);
  }

  goTo(turn) {
    if (turn === null || turn === undefined) return;
    const target = this.body.querySelector(`[data-turn="${this.row.id}/${turn}"]`);
    if (!target) return;
    target.scrollIntoView({ block: "center", inline: "nearest" });
    target.classList.add("aim");
    target.querySelector(".tokens")?.focus({ preventScroll: true });
  }

  recolour() {
    const scale = scaleOf(this.shown, this.choice.estimator);
    colour(this.body, this.choice.estimator, scale);
    replace(this.legend, legend(this.choice.estimator, scale));
  }

  drawTurn(row, detail, turn, number_, narrow) {
    const seen = this.choice.prompt && turn.prompt !== null ? turn.prompt : turn.observation;
    const says = turn.tokens.join("").trim();
    const acts = turn.action !== null && !says.startsWith(turn.action) ? turn.action : null;
    return el(
      "section",
      { class: "turn", "data-turn": `${row.id}/${number_}`, "data-anchor": turn.anchor ? turn.anchor.group : null },
      el("div", { class: "rail", title: `turn ${number_ + 1}, weights of step ${turn.version}` }, number_ + 1),
      el(
        "div",
        { class: "said" },
        el("div", { class: "seen", "data-observed": turn.observed }, visible(seen)),
        el("div", { class: `wrote ${turn.valid ? "" : "invalid"}` }, tokenBlock(detail, turn)),
        el(
          "div",
          { class: "marks" },
          acts !== null ? el("span", { class: "action" }, "action: ", el("code", {}, visible(acts))) : null,
          turn.valid ? null : el("span", { class: "tag bad" }, "✕ invalid action"),
          turn.reward
            ? el("span", { class: `tag ${turn.reward > 0 ? "good" : "bad"}` }, `reward ${signed(turn.reward)}`)
            : null,
          turn.anchor ? this.anchor(turn.anchor, narrow) : null,
        ),
      ),
    );
  }

  // The steps from the same state that GiGPO compares this one with.
  anchor(anchor, narrow) {
    const others = anchor.size - 1;
    if (others < 1)
      return el(
        "span",
        { class: "tag dim", title: "GiGPO: no other step of the group was taken from this state" },
        "⚓ alone",
      );
    const elsewhere = others - anchor.peers.length;
    const list = el(
      "ul",
      {},
      anchor.peers.map((peer) =>
        el(
          "li",
          {},
          el("a", { href: this.link(peer.id, peer.turn), class: "peer" }, `${peer.traj}, turn ${peer.turn + 1}`),
          el("span", { class: "quiet" }, ` return ${signed(peer.return)}`),
        ),
      ),
      elsewhere > 0 ? el("li", { class: "quiet" }, `${elsewhere} more in episodes that were not kept`) : null,
    );
    const details = el(
      "details",
      { class: "anchor" },
      el("summary", { class: "tag" }, `⚓ compared with ${others} ${others === 1 ? "step" : "steps"}`),
      el("p", { class: "quiet" }, `Return from here ${signed(anchor.return)}. The same state in this group:`),
      list,
    );
    if (narrow) {
      const light = (on) => {
        for (const turn of this.body.querySelectorAll(`[data-anchor="${anchor.group}"]`))
          turn.classList.toggle("same", on);
      };
      details.addEventListener("pointerenter", () => light(true));
      details.addEventListener("pointerleave", () => light(false));
      details.addEventListener("toggle", () => light(details.open));
    }
    return details;
  }
}

function toggle(text, on, change) {
  const button = el(
    "button",
    {
      type: "button",
      class: "toggle",
      "aria-pressed": String(Boolean(on)),
      onclick: () => {
        const next = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(next));
        change(next);
      },
    },
    text,
  );
  return button;
}
