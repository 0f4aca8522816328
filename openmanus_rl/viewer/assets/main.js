// Which page is shown, and keeping it up to date.

import { el, replace, say } from "viewer/dom.js";
import { Compare } from "viewer/compare.js";
import { runNames } from "viewer/format.js";
import { drawOverview } from "viewer/overview.js";
import { openSource } from "viewer/source.js";
import { Trajectories } from "viewer/trajectories.js";

const POLL = 2000;
const THEMES = ["auto", "light", "dark"];
const source = openSource();
const main = document.getElementById("main");
const pages = new Map(); // run -> Trajectories
let runs = [],
  compare = null,
  route = { page: "overview", run: 0 },
  failed = false;

function parse(hash) {
  const parts = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (parts[0] === "compare") return { page: "compare", run: route.run };
  const run = Math.min(Math.max(0, Number.parseInt(parts[0], 10) || 0), runs.length - 1);
  if (parts[1] !== "episodes") return { page: "overview", run };
  return { page: "episodes", run, id: parts[2] ?? null, turn: parts[3] === undefined ? null : Number(parts[3]) };
}

function go(hash) {
  if (location.hash === hash) show();
  else location.hash = hash;
}

// --- the top ------------------------------------------------------------------------------------------------

function theme(next) {
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("openmanus-rl-theme", next);
  } catch {
    /* a page from disk may have no storage */
  }
}

function storedTheme() {
  try {
    return localStorage.getItem("openmanus-rl-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function drawTop() {
  const at = (page) => (route.page === page ? "page" : null);
  const names = runNames(runs);
  const picker =
    runs.length > 1 && route.page !== "compare"
      ? el(
          "label",
          { class: "picker" },
          el("span", { class: "unseen" }, "Run"),
          el(
            "select",
            { id: "run", onchange: (event) => go(`#/${event.target.value}/${route.page}`) },
            names.map((name, k) => el("option", { value: k, selected: k === route.run }, name)),
          ),
        )
      : null;
  const button = el("button", {
    type: "button",
    class: "plain theme",
    id: "theme",
    onclick: () => {
      theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
      label();
    },
  });
  const label = () => {
    const now = document.documentElement.dataset.theme;
    replace(button, { auto: "◐", light: "☀", dark: "☾" }[now], el("span", { class: "word" }, ` ${now}`));
    button.setAttribute("aria-label", `Colours: ${now}`);
  };
  label();
  replace(
    document.getElementById("top"),
    el("span", { class: "brand" }, el("span", { class: "logo", "aria-hidden": "true" }), "OpenManus-RL"),
    picker,
    el(
      "nav",
      { "aria-label": "Pages" },
      el("a", { href: `#/${route.run}/overview`, "aria-current": at("overview") }, "Overview"),
      el("a", { href: `#/${route.run}/episodes`, "aria-current": at("episodes") }, "Trajectories"),
      runs.length > 1 ? el("a", { href: "#/compare", "aria-current": at("compare") }, "Compare") : null,
    ),
    el("span", { class: "grow" }),
    el("span", { id: "connection", class: "connection", role: "status" }),
    button,
  );
}

// --- pages --------------------------------------------------------------------------------------------------

async function show() {
  const before = route;
  route = parse(location.hash);
  drawTop();
  document.body.dataset.page = route.page;
  if (route.page === "compare") {
    compare ??= new Compare(source);
    replace(main, compare.node);
    await compare.update();
  } else if (route.page === "episodes") {
    if (!pages.has(route.run)) pages.set(route.run, new Trajectories(source, route.run, go));
    const page = pages.get(route.run);
    if (!main.contains(page.node)) replace(main, page.node);
    await page.update();
    await page.open(route.id, route.turn);
  } else {
    await refreshOverview(true);
  }
  if (before.page !== route.page) {
    window.scrollTo(0, 0);
    say(`${route.page} page`);
  }
  document.title = `${runs[route.run].name} – OpenManus-RL`;
}

async function refreshOverview(force) {
  const asked = route.run;
  const { value, changed } = await source.overview(asked);
  if ((!changed && !force) || route.page !== "overview" || route.run !== asked) return;
  const focus = document.activeElement?.id;
  replace(main, drawOverview(value));
  if (focus && focus !== "main") document.getElementById(focus)?.focus({ preventScroll: true });
  if (changed && !force) say(`step ${value.step}`);
}

async function poll() {
  if (document.hidden) return;
  try {
    if (route.page === "overview") await refreshOverview(false);
    else if (route.page === "compare") await compare.update();
    else await pages.get(route.run)?.update();
    connected(true);
  } catch {
    connected(false);
  }
}

function connected(fine) {
  if (fine === !failed) return;
  failed = !fine;
  const place = document.getElementById("connection");
  if (place) place.textContent = failed ? "the server does not answer; this page shows what it last said" : "";
}

async function start() {
  document.documentElement.dataset.theme = storedTheme();
  // Its address would be taken for that of a page.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  try {
    runs = (await source.runs()).value;
    window.addEventListener("hashchange", () => show().catch(broken));
    await show();
    if (source.live) setInterval(poll, POLL);
  } catch (error) {
    broken(error);
  }
}

function broken(error) {
  replace(main, el("p", { class: "note bad wait" }, `The page cannot be shown: ${error.message}`));
}

start();
