// Several runs: curves over each other, the settings that differ, and the same task played by two of them.

import { el, field, replace, rove } from "viewer/dom.js";
import { lineChart } from "viewer/charts.js";
import { number, outcome, percent, runNames } from "viewer/format.js";
import { outcomeChip } from "viewer/episode.js";
import { LongList } from "viewer/list.js";
import { visible } from "viewer/tokens.js";

const SHAPES = ["circle", "square", "diamond"];
const CURVES = { validation: "Validation success", training: "Training success", reward: "Reward" };
const ROW = 58;

export class Compare {
  constructor(source) {
    Object.assign(this, { source, left: 0, right: 1, curve: "validation", chosen: null });
    this.chart = el("div", {});
    this.settings = el("div", {
      class: "wide-table",
      tabindex: "0",
      role: "region",
      "aria-label": "settings that differ",
    });
    this.sides = el("div", { class: "sides" });
    this.pairCount = el("p", { class: "count", role: "status" });
    this.list = new LongList({
      label: "Same tasks",
      rowHeight: ROW,
      draw: (pair) => this.drawPair(pair),
      choose: (pair) => this.open(pair),
    });
    this.aligned = el("div", { class: "detail" });
    this.curves = el("div", { class: "switch", role: "radiogroup", "aria-label": "Curve" });
    rove(this.curves, "button");
    this.node = el(
      "div",
      { class: "page" },
      el("div", { class: "heading" }, el("h1", {}, "Compare runs")),
      el(
        "section",
        { class: "card", "aria-labelledby": "h-curves" },
        el(
          "div",
          { class: "bar-row" },
          el("h2", { id: "h-curves" }, "Curves"),
          el("span", { class: "grow" }),
          this.curves,
        ),
        this.chart,
      ),
      el(
        "section",
        { class: "card", "aria-labelledby": "h-settings" },
        el("h2", { id: "h-settings" }, "Settings that differ"),
        this.settings,
      ),
      el(
        "section",
        { class: "card", "aria-labelledby": "h-same" },
        el("h2", { id: "h-same" }, "Same task, same seed"),
        el(
          "p",
          { class: "quiet under" },
          "Episodes that both runs kept, aligned at the first turn with another action.",
        ),
        this.sides,
        el(
          "div",
          { class: "trajectories inner" },
          el("aside", { class: "side" }, this.pairCount, this.list.node),
          this.aligned,
        ),
      ),
    );
  }

  async update() {
    const { value, changed } = await this.source.compare();
    if (!changed && this.value) return;
    this.value = value;
    this.drawCurves();
    this.drawSettings();
    if (!this.sides.childElementCount) {
      this.drawSides();
      await this.loadPairs();
    }
  }

  names() {
    return runNames(this.value.runs);
  }

  drawCurves() {
    replace(
      this.curves,
      Object.entries(CURVES).map(([key, text]) =>
        el(
          "button",
          {
            type: "button",
            role: "radio",
            "data-curve": key,
            "aria-checked": String(key === this.curve),
            tabindex: key === this.curve ? "0" : "-1",
            onclick: () => {
              this.curve = key;
              for (const button of this.curves.children) {
                button.setAttribute("aria-checked", String(button.dataset.curve === key));
                button.tabIndex = button.dataset.curve === key ? 0 : -1;
              }
              this.drawChart();
            },
          },
          text,
        ),
      ),
    );
    this.drawChart();
  }

  drawChart() {
    const share = this.curve !== "reward",
      names = this.names();
    const series = this.value.runs.map((run, k) => ({
      name: names[k],
      points: run.curves[this.curve],
      style: `r${k % 6}`,
      shape: SHAPES[k % 3],
      band: share,
    }));
    replace(
      this.chart,
      lineChart({
        title: CURVES[this.curve],
        series,
        format: share ? (v) => percent(v) : number,
        y: share ? [0, 1] : undefined,
        height: 320,
      }),
      share ? el("p", { class: "quiet foot" }, "Bands are 95 % Wilson intervals.") : null,
    );
  }

  drawSettings() {
    const rows = this.value.settings;
    replace(
      this.settings,
      rows.length
        ? el(
            "table",
            { class: "diff" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                el("th", { scope: "col" }, "key"),
                this.names().map((name) => el("th", { scope: "col" }, name)),
              ),
            ),
            el(
              "tbody",
              {},
              rows.map((row) =>
                el(
                  "tr",
                  {},
                  el("th", { scope: "row" }, el("code", {}, row.key)),
                  row.values.map((value) => el("td", {}, el("code", {}, visible(value)))),
                ),
              ),
            ),
          )
        : el("p", { class: "quiet" }, "None: these runs have the same settings."),
    );
  }

  drawSides() {
    const names = this.names();
    const side = (which, label) =>
      field(
        label,
        el(
          "select",
          {
            "data-side": which,
            onchange: (event) => {
              this[which] = Number(event.target.value);
              this.loadPairs();
            },
          },
          names.map((name, k) => el("option", { value: k, selected: k === this[which] }, name)),
        ),
      );
    replace(this.sides, side("left", "Left"), side("right", "Right"));
  }

  async loadPairs() {
    const pairs = this.left === this.right ? [] : (await this.source.pairs(this.left, this.right)).value;
    this.pairCount.textContent = pairs.length
      ? `${pairs.length} tasks in both`
      : "These two have no kept episode of the same task and seed.";
    this.list.fill(
      pairs.map((pair) => ({ ...pair, id: `${pair.left.id}|${pair.right.id}` })),
      null,
    );
    replace(this.aligned, pairs.length ? el("p", { class: "quiet invite" }, "Choose a task.") : null);
  }

  drawPair(pair) {
    const same = pair.first_difference === null;
    return el(
      "div",
      {},
      el(
        "div",
        { class: "first" },
        el("span", { class: "task" }, visible(pair.left.task)),
        el("span", { class: "outcomes" }, outcome(pair.left.outcome)[1], " | ", outcome(pair.right.outcome)[1]),
      ),
      el(
        "div",
        { class: "second quiet" },
        el("span", {}, `${pair.left.kind === "val" ? "val" : "step"} ${pair.left.step} | ${pair.right.step}`),
        el("span", {}, same ? "the same to the end" : `differs at turn ${pair.first_difference + 1}`),
      ),
    );
  }

  async open(pair) {
    this.chosen = pair.id;
    try {
      const [left, right] = await Promise.all([
        this.source.episode(this.left, pair.left.id),
        this.source.episode(this.right, pair.right.id),
      ]);
      if (this.chosen === pair.id) this.drawAligned(pair, left.value, right.value);
    } catch (error) {
      replace(this.aligned, el("p", { class: "note bad" }, `It cannot be shown: ${error.message}`));
    }
  }

  drawAligned(pair, left, right) {
    const names = this.names(),
      at = pair.first_difference;
    const half = (run, row) =>
      el(
        "div",
        { class: "half-head" },
        el("a", { href: `#/${run}/episodes/${encodeURIComponent(row.id)}` }, names[run]),
        outcomeChip(row.outcome),
        el("span", { class: "quiet" }, `step ${row.step}, reward ${number(row.reward)}, ${row.turns} turns`),
      );
    const cell = (turn) =>
      turn
        ? el(
            "div",
            { class: `half ${turn.valid ? "" : "invalid"}` },
            el("div", { class: "seen" }, visible(turn.observation)),
            el(
              "div",
              { class: "wrote" },
              visible(turn.action ?? turn.response) || "(nothing)",
              turn.valid ? null : el("span", { class: "tag bad" }, "✕ invalid"),
            ),
          )
        : el("div", { class: "half none quiet" }, "ended");
    const longest = Math.max(left.turns.length, right.turns.length);
    const rows = [];
    for (let k = 0; k < longest; k += 1) {
      if (k === at)
        rows.push(el("div", { class: "parting", tabindex: "-1" }, `Turn ${k + 1}: the first different action`));
      rows.push(
        el(
          "div",
          { class: `together ${at !== null && k < at ? "alike" : ""}`, "data-turn": k },
          el("div", { class: "rail" }, k + 1),
          cell(left.turns[k]),
          cell(right.turns[k]),
        ),
      );
    }
    replace(
      this.aligned,
      el(
        "div",
        { class: "together head" },
        el("div", { class: "rail" }),
        half(this.left, pair.left),
        half(this.right, pair.right),
      ),
      at === null ? el("p", { class: "note" }, "The same actions to the end.") : null,
      ...rows,
    );
    const parting = this.aligned.querySelector(".parting");
    if (parting) this.aligned.scrollTop = Math.max(0, parting.offsetTop - 150);
  }
}
