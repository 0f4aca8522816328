// A long list of which only the visible rows are in the document. Up, down, page, home and end move the choice.

import { el, replace } from "viewer/dom.js";

const SPARE = 8;

export class LongList {
  constructor({ label, rowHeight, draw, choose }) {
    Object.assign(this, { rowHeight, draw, choose, rows: [], at: -1 });
    this.space = el("div", { class: "space", role: "presentation" });
    this.node = el("div", { class: "long", role: "listbox", tabindex: "0", "aria-label": label }, this.space);
    this.node.addEventListener("scroll", () => this.show(), { passive: true });
    this.node.addEventListener("keydown", (event) => this.pressed(event));
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest("[data-place]");
      if (row) this.pick(Number(row.dataset.place));
    });
    new ResizeObserver(() => this.show()).observe(this.node);
  }

  fill(rows, chosenId) {
    this.rows = rows;
    this.at = rows.findIndex((row) => row.id === chosenId);
    this.space.style.height = `${rows.length * this.rowHeight}px`;
    this.show();
  }

  show() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.rowHeight) - SPARE);
    const last = Math.min(
      this.rows.length,
      Math.ceil((this.node.scrollTop + this.node.clientHeight) / this.rowHeight) + SPARE,
    );
    const shown = [];
    for (let place = first; place < last; place += 1) {
      const row = this.draw(this.rows[place]);
      row.classList.add("line-row");
      row.id = `row-${place}`;
      row.dataset.place = place;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(place === this.at));
      row.setAttribute("aria-setsize", this.rows.length);
      row.setAttribute("aria-posinset", place + 1);
      row.style.transform = `translateY(${place * this.rowHeight}px)`;
      shown.push(row);
    }
    replace(this.space, ...shown);
    if (this.at >= first && this.at < last) this.node.setAttribute("aria-activedescendant", `row-${this.at}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  reveal() {
    if (this.at < 0) return;
    const top = this.at * this.rowHeight,
      bottom = top + this.rowHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (bottom > this.node.scrollTop + this.node.clientHeight)
      this.node.scrollTop = bottom - this.node.clientHeight;
  }

  pick(place) {
    this.at = place;
    this.reveal();
    this.show();
    this.choose(this.rows[place]);
  }

  pressed(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.rows.length) return;
    event.preventDefault();
    this.pick(Math.max(0, Math.min(this.rows.length - 1, this.at + steps[event.key])));
  }
}
