// The episodes of a run: filters, a list of any length, and the one that is chosen.

import { el, field, replace, say } from "viewer/dom.js";
import { number, outcome, words } from "viewer/format.js";
import { Episode, outcomeChip } from "viewer/episode.js";
import { LongList } from "viewer/list.js";
import { visible } from "viewer/tokens.js";

const ROW = 58;
const EMPTY = { task: "", kind: "", type: "", outcome: "", from: "", to: "", low: "", high: "" };

export class Trajectories {
  constructor(source, run, go) {
    Object.assign(this, { source, run, go, rows: [], filters: { ...EMPTY }, chosen: null, turn: null });
    this.choice = { estimator: null, together: false, prompt: false };
    this.count = el("p", { class: "count", role: "status" });
    this.notes = el("div", {});
    this.form = el("form", {
      class: "filters",
      "aria-label": "Filter episodes",
      onsubmit: (event) => event.preventDefault(),
    });
    this.form.addEventListener("input", () => this.filter());
    this.list = new LongList({
      label: "Episodes",
      rowHeight: ROW,
      draw: (row) => this.drawRow(row),
      choose: (row) => this.go(this.link(row.id)),
    });
    this.place = el("div", { class: "detail" });
    this.node = el(
      "div",
      { class: "trajectories" },
      el("aside", { class: "side" }, this.form, this.count, this.list.node, this.notes),
      this.place,
    );
  }

  link(id, turn) {
    return `#/${this.run}/episodes/${encodeURIComponent(id)}${turn === undefined || turn === null ? "" : `/${turn}`}`;
  }

  async update() {
    const { value, changed } = await this.source.episodes(this.run);
    if (!changed && this.rows.length) return;
    const first = !this.rows.length;
    this.rows = [...value.rows].reverse();
    replace(
      this.notes,
      ...value.faults.slice(0, 10).map((fault) => el("p", { class: "note" }, fault)),
      value.files_left_out
        ? el(
            "p",
            { class: "quiet" },
            `A report holds some of the episodes: ${value.files_left_out} more files are in the run directory, for openmanus-rl view.`,
          )
        : null,
    );
    if (first) this.drawFilters();
    else this.refill();
    this.filter();
  }

  values(name) {
    return [...new Set(this.rows.map((row) => row[name]).filter(Boolean))].sort();
  }

  drawFilters() {
    const select = (name, label, shown) =>
      field(
        label,
        el(
          "select",
          { name, "data-shown": name },
          el("option", { value: "" }, "all"),
          this.values(name).map((value) => el("option", { value }, visible(shown(value)))),
        ),
      );
    const input = (name, label, type, more) => field(label, el("input", { name, type, autocomplete: "off", ...more }));
    replace(
      this.form,
      el("div", { class: "wide-field" }, input("task", "Task", "search", { placeholder: "part of a task's name" })),
      select("kind", "From", (value) => (value === "val" ? "validation" : "training")),
      select("outcome", "Outcome", (value) => outcome(value)[0]),
      el("div", { class: "wide-field" }, select("type", "Task type", words)),
      el(
        "div",
        { class: "four" },
        input("from", "Step ≥", "number", { min: 0 }),
        input("to", "Step ≤", "number", { min: 0 }),
        input("low", "Reward ≥", "number", { step: "any" }),
        input("high", "Reward ≤", "number", { step: "any" }),
      ),
      el(
        "button",
        { type: "reset", class: "plain", onclick: () => requestAnimationFrame(() => this.filter()) },
        "Clear filters",
      ),
    );
  }

  // New episodes may bring values that no option has yet.
  refill() {
    for (const select of this.form.querySelectorAll("select")) {
      const has = new Set([...select.options].map((option) => option.value));
      for (const value of this.values(select.name))
        if (!has.has(value)) select.append(el("option", { value }, visible(words(value))));
    }
  }

  filter() {
    const given = Object.fromEntries(new FormData(this.form));
    const task = (given.task ?? "").toLowerCase();
    const bound = (text, value, test) => text === "" || text === undefined || test(value, Number(text));
    const found = this.rows.filter(
      (row) =>
        (!task || row.task.toLowerCase().includes(task)) &&
        (!given.kind || row.kind === given.kind) &&
        (!given.type || row.type === given.type) &&
        (!given.outcome || row.outcome === given.outcome) &&
        bound(given.from, row.step, (a, b) => a >= b) &&
        bound(given.to, row.step, (a, b) => a <= b) &&
        bound(given.low, row.reward, (a, b) => a >= b) &&
        bound(given.high, row.reward, (a, b) => a <= b),
    );
    this.count.textContent = this.rows.length
      ? `${found.length.toLocaleString("en-US")} of ${this.rows.length.toLocaleString("en-US")} episodes`
      : "No episodes are kept (trainer.keep_trajectories), or none is played yet.";
    this.list.fill(found, this.chosen);
    if (!this.chosen) this.invite(found.length > 0);
  }

  invite(any) {
    replace(
      this.place,
      el(
        "p",
        { class: "quiet invite" },
        any ? "Choose an episode: click one, or press the down key in the list." : "Nothing matches these filters.",
      ),
    );
  }

  drawRow(row) {
    return el(
      "div",
      {},
      el("div", { class: "first" }, el("span", { class: "task" }, visible(row.task)), outcomeChip(row.outcome)),
      el(
        "div",
        { class: "second quiet" },
        el("span", {}, `${row.kind === "val" ? "val" : "step"} ${row.step}`),
        row.type ? el("span", { class: "kind" }, visible(words(row.type))) : null,
        el("span", {}, `${row.turns} turns`),
        el("span", {}, `reward ${number(row.reward)}`),
      ),
    );
  }

  async open(id, turn) {
    const row = this.rows.find((one) => one.id === id);
    this.node.classList.toggle("has-choice", Boolean(id));
    if (!id) {
      this.chosen = null;
      this.list.fill(this.list.rows, null);
      this.invite(this.list.rows.length > 0);
      return;
    }
    this.chosen = id;
    this.list.fill(this.list.rows, id);
    this.list.reveal();
    const back = el("a", { class: "back", href: `#/${this.run}/episodes` }, "← all episodes");
    try {
      if (!row) throw new Error("this episode is no longer kept, or was never there");
      const load = async (other) => (await this.source.episode(this.run, other)).value;
      const detail = await load(id);
      if (this.chosen !== id) return; // another one was chosen meanwhile
      const file = id.split(":")[0];
      const siblings = this.rows.filter((one) => one.group === row.group && one.id.split(":")[0] === file).reverse();
      const episode = new Episode({
        row,
        detail,
        siblings,
        load,
        link: (other, at) => this.link(other, at),
        turn,
        choice: this.choice,
      });
      replace(this.place, back, episode.node);
      await episode.draw();
      if (turn === null || turn === undefined) this.place.scrollTop = 0;
      say(`${row.task}, ${outcome(row.outcome)[0]}`);
    } catch (error) {
      replace(this.place, back, el("p", { class: "note bad" }, `It cannot be shown: ${error.message}`));
    }
  }
}
