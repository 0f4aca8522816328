// Where the page's data comes from: a server that is asked again and again, or blocks inside the page itself.

class Served {
  constructor() {
    this.live = true;
    this.known = new Map(); // address -> {tag, value}
  }

  // The answer, and whether it is another one than before.
  async get(address) {
    const before = this.known.get(address);
    const headers = before ? { "If-None-Match": before.tag } : {};
    const answer = await fetch(address, { headers, cache: "no-store" });
    if (answer.status === 304) return { value: before.value, changed: false };
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Error(told.detail ?? `the server answered ${answer.status}`);
    }
    const value = await answer.json();
    const tag = answer.headers.get("ETag");
    if (tag) this.known.set(address, { tag, value });
    return { value, changed: true };
  }

  runs() {
    return this.get("/api/runs");
  }
  overview(run) {
    return this.get(`/api/runs/${run}/overview`);
  }
  episodes(run) {
    return this.get(`/api/runs/${run}/episodes`);
  }
  episode(run, id) {
    return this.get(`/api/runs/${run}/episodes/${encodeURIComponent(id)}`);
  }
  compare() {
    return this.get("/api/compare");
  }
  pairs(left, right) {
    return this.get(`/api/compare/${left}/${right}`);
  }
}

class Embedded {
  constructor(block) {
    this.live = false;
    this.data = JSON.parse(block.textContent);
    this.blocks = new Map();
    for (const one of document.querySelectorAll("script[data-episode]")) this.blocks.set(one.dataset.episode, one);
  }

  async runs() {
    return { value: this.data.runs, changed: true };
  }
  async overview(run) {
    return { value: this.data.runs[run], changed: true };
  }
  async episodes(run) {
    const value = { rows: this.data.rows[run], faults: this.data.faults[run], files_left_out: this.data.files_left_out[run] };
    return { value, changed: true };
  }
  // Read when it is looked at, so that opening the page reads none of them.
  async episode(run, id) {
    const block = this.blocks.get(`${run}/${id}`);
    if (!block) throw new Error("this episode is not in the report: `openmanus-rl view` shows all of them");
    return { value: JSON.parse(block.textContent), changed: true };
  }
  async compare() {
    return { value: this.data.compare, changed: true };
  }
  async pairs(left, right) {
    const swapped = left > right;
    const found = this.data.pairs[swapped ? `${right}-${left}` : `${left}-${right}`] ?? [];
    return { value: swapped ? found.map((p) => ({ ...p, left: p.right, right: p.left })) : found, changed: true };
  }
}

export function openSource() {
  const block = document.getElementById("data");
  return block ? new Embedded(block) : new Served();
}
