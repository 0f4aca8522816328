// The first page of a run.

import { el } from "viewer/dom.js";
import { lineChart, sparkline, stackedChart } from "viewer/charts.js";
import { clock, form, percent, rate, won, words } from "viewer/format.js";

const STYLES = { valid_seen: ["a", "circle"], valid_unseen: ["b", "square"], training: ["c", "circle"] };
const STATES = { ok: ["fine", "✓"], watch: ["watch", "!"], off: ["off", "✕"], unknown: ["not recorded", "–"] };

export function drawOverview(run) {
  return el(
    "div",
    { class: "page" },
    heading(run),
    tiles(run),
    success(run),
    health(run),
    el("div", { class: "two" }, byType(run), rewards(run)),
    training(run),
    made(run),
  );
}

export function statusChip(run) {
  const shown = run.status === "running" ? "live" : run.status ?? "unknown";
  return el("span", { class: `chip ${run.status}` }, el("i", { class: "dot", "aria-hidden": "true" }), shown);
}

function heading(run) {
  const share = run.total ? Math.min(1, run.step / run.total) : 0;
  return el(
    "div",
    { class: "heading" },
    el("h1", {}, run.name, " ", statusChip(run)),
    el("p", { class: "quiet" }, `${run.estimator} on ${run.environment}, seed ${run.seed}`),
    run.notes.map((note) => el("p", { class: "note" }, note)),
    el(
      "div",
      {
        class: "progress",
        role: "progressbar",
        "aria-valuemin": 0,
        "aria-valuemax": run.total ?? 0,
        "aria-valuenow": run.step,
        "aria-label": "steps done",
      },
      el("span", { vars: { "--share": `${100 * share}%` } }),
    ),
  );
}

function tile(name, figure, below) {
  return el(
    "div",
    { class: "card tile" },
    el("h2", {}, name),
    el("div", { class: "figure" }, figure),
    el("div", { class: "quiet" }, below),
  );
}

function tiles(run) {
  const found = [
    tile(
      "Step",
      [run.step, el("span", { class: "quiet" }, ` / ${run.total ?? "?"}`)],
      run.status === "running" ? "going on" : run.status,
    ),
  ];
  for (const moment of run.moments.filter((m) => m.name !== "first")) {
    found.push(
      tile(
        `${moment.name === "best" ? "Best" : "Last"} validation`,
        percent(moment.both[0], 1),
        `step ${moment.step}, ${won(moment.both)}, 95 % interval ${Math.round(100 * moment.both[1])} to ${Math.round(100 * moment.both[2])} %`,
      ),
    );
  }
  const seconds = run.stages.reduce((sum, [, spent]) => sum + spent, 0);
  found.push(tile("Time in stages", clock(seconds), run.stages.length ? `most in ${words(run.stages[0][0])}` : ""));
  return el("div", { class: "tiles" }, found);
}

function success(run) {
  const series = run.success.map((curve) => {
    const [style, shape] = STYLES[curve.name] ?? ["c", "circle"];
    return { name: curve.name, points: curve.points, style, shape, band: true, thin: curve.name === "training" };
  });
  const lines = ["random", "expert"]
    .filter((name) => run.references?.[name])
    .map((name) => ({ name, ...run.references[name] }));
  return el(
    "section",
    { class: "card", "aria-labelledby": "h-success" },
    el("h2", { id: "h-success" }, "Success"),
    lineChart({
      title: "Success by training step",
      series,
      references: lines,
      format: (v) => percent(v),
      y: [0, 1],
      height: 320,
    }),
    el(
      "p",
      { class: "quiet foot" },
      "Share of episodes won, by training step. Bands are 95 % Wilson intervals of that step's episodes. ",
      lines.length ? "Dashed: random play and the environment's expert on the first validation tasks. " : "",
      "Training samples at its own temperature; validation plays as val_kwargs say.",
    ),
    validations(run),
  );
}

function validations(run) {
  if (!run.moments.length) return null;
  return el(
    "div",
    { class: "wide-table", tabindex: "0", role: "region", "aria-label": "validations" },
    el(
      "table",
      { class: "rates" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["validation", "step", "valid_seen", "valid_unseen", "both"].map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        run.moments.map((moment) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, moment.name),
            el("td", {}, moment.step),
            [moment.splits.valid_seen, moment.splits.valid_unseen, moment.both].map((one) =>
              el("td", {}, one ? `${rate(one)}, ${one[3]} of ${one[4]}` : "–"),
            ),
          ),
        ),
      ),
    ),
    el(
      "p",
      { class: "quiet foot" },
      "In brackets the 95 % interval. The best of several validations is chosen by its luck, too: judge a model on fresh episodes (openmanus-rl eval).",
    ),
  );
}

function health(run) {
  const worst = run.health.filter((sign) => sign.state === "off" || sign.state === "watch");
  return el(
    "section",
    { "aria-labelledby": "h-health" },
    el("h2", { id: "h-health" }, "Health"),
    el(
      "p",
      { class: "quiet under" },
      worst.length
        ? `${worst.length === 1 ? "One sign is" : `${worst.length} signs are`} worth a look.`
        : "Nothing stands out.",
      " Means of the last five steps.",
    ),
    el(
      "div",
      { class: "signs" },
      run.health.map((sign) => {
        const [name, symbol] = STATES[sign.state];
        const shown = form(sign.form);
        return el(
          "div",
          { class: `card sign ${sign.state}`, "data-sign": sign.key },
          el("h3", {}, sign.title),
          el(
            "div",
            { class: "row" },
            el("span", { class: "figure" }, sign.value === null ? "–" : shown(sign.value)),
            el("span", { class: `state ${sign.state}` }, el("span", { "aria-hidden": "true" }, symbol), ` ${name}`),
          ),
          sparkline(sign.points),
          el("p", { class: "quiet" }, `${sign.meaning}; ${sign.limits}.`),
          sign.advice ? el("p", { class: "advice" }, sign.advice) : null,
        );
      }),
    ),
  );
}

function byType(run) {
  const moments = [
    ["first", "c"],
    ["best", "b"],
    ["last", "a"],
  ];
  const rows = run.task_types;
  return el(
    "section",
    { class: "card", "aria-labelledby": "h-types" },
    el("h2", { id: "h-types" }, "Success by task type"),
    rows.length
      ? el(
          "ul",
          { class: "key" },
          moments.map(([name, style]) =>
            el("li", {}, el("i", { class: `dot ${style} ${name}` }), `${name} validation`),
          ),
        )
      : null,
    rows.length
      ? el(
          "div",
          { class: "types" },
          rows.map((row) =>
            el(
              "div",
              { class: "type" },
              el(
                "div",
                { class: "name" },
                el("span", {}, words(row.name)),
                el("span", { class: "value" }, row.last ? `${percent(row.last[0])} of ${row.last[4]}` : "–"),
              ),
              el(
                "div",
                {
                  class: "scale",
                  role: "img",
                  "aria-label": moments.map(([name]) => `${name} ${rate(row[name])}`).join(", "),
                  title: moments.map(([name]) => `${name} ${rate(row[name])}, ${won(row[name])}`).join("\n"),
                },
                moments
                  .filter(([name]) => row[name])
                  .map(([name, style]) => [
                    name === "last"
                      ? el("span", {
                          class: `whisker ${style}`,
                          vars: { "--from": `${100 * row[name][1]}%`, "--to": `${100 * row[name][2]}%` },
                        })
                      : null,
                    el("span", { class: `point ${style} ${name}`, vars: { "--at": `${100 * row[name][0]}%` } }),
                  ]),
              ),
            ),
          ),
          el("div", { class: "ends quiet" }, el("span", {}, "0 %"), el("span", {}, "50 %"), el("span", {}, "100 %")),
        )
      : el("p", { class: "quiet" }, "No validation with task types yet."),
    rows.length
      ? el(
          "p",
          { class: "quiet foot" },
          "Both validation splits together. The bar is the 95 % interval of the last validation.",
        )
      : null,
  );
}

function rewards(run) {
  return el(
    "section",
    { class: "card", "aria-labelledby": "h-rewards" },
    el("h2", { id: "h-rewards" }, "Reward terms"),
    stackedChart({
      title: "Mean weighted reward terms by training step",
      names: run.rewards.names,
      points: run.rewards.points,
    }),
    el(
      "p",
      { class: "quiet foot" },
      "Mean of each weighted term over a step's episodes; what costs something points down.",
    ),
  );
}

function training(run) {
  if (!run.charts.length) return null;
  return el(
    "section",
    { "aria-labelledby": "h-training" },
    el("h2", { id: "h-training" }, "Training"),
    el(
      "div",
      { class: "multiples" },
      run.charts.map((chart) =>
        el(
          "div",
          { class: "card" },
          el("h3", {}, chart.title),
          lineChart({
            title: chart.title,
            small: true,
            height: 150,
            format: form(chart.form),
            series: chart.series.map((one, k) => ({ ...one, style: "ab"[k] ?? "c", shape: ["circle", "square"][k] })),
          }),
        ),
      ),
    ),
  );
}

function table(rows) {
  return el(
    "table",
    {},
    el(
      "tbody",
      {},
      rows.map(([key, ...values]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, key),
          values.map((value) => el("td", {}, value)),
        ),
      ),
    ),
  );
}

function made(run) {
  const seconds = run.stages.reduce((sum, [, spent]) => sum + spent, 0) || 1;
  return el(
    "section",
    { "aria-labelledby": "h-made" },
    el("h2", { id: "h-made" }, "How it was made"),
    run.command ? el("pre", { class: "command", tabindex: "0", "aria-label": "command" }, run.command) : null,
    el(
      "div",
      { class: "two" },
      el(
        "div",
        { class: "card code" },
        el("h3", {}, "Differs from the defaults"),
        run.changes.length ? table(run.changes) : el("p", { class: "quiet" }, "Nothing, or not known."),
      ),
      el(
        "div",
        { class: "stack" },
        el(
          "div",
          { class: "card" },
          el("h3", {}, "Time by stage"),
          table(
            run.stages.map(([stage, spent]) => [
              words(stage),
              clock(spent),
              el("span", { class: "bar", vars: { "--share": `${(100 * spent) / seconds}%` } }),
            ]),
          ),
        ),
        Object.keys(run.versions).length
          ? el("div", { class: "card" }, el("h3", {}, "Made with"), table(Object.entries(run.versions)))
          : null,
      ),
    ),
  );
}
