// The frame of the page: which view is shown, what the browser remembers, and live updates.

import { recolor, disposeAll } from "/assets/charts.js";
import { Failure, ask, h, link, pathOf, report } from "/assets/common.js";
import * as analysis from "/assets/views/analysis.js";
import * as compare from "/assets/views/compare.js";
import * as nodes from "/assets/views/nodes.js";
import * as overview from "/assets/views/overview.js";
import * as running from "/assets/views/running.js";
import * as studies from "/assets/views/studies.js";
import * as timeline from "/assets/views/timeline.js";
import * as trial from "/assets/views/trial.js";
import * as trials from "/assets/views/trials.js";

const VIEWS = { overview, running, timeline, trials, analysis, compare, nodes, trial };
const TABS = [["overview", "Overview"], ["running", "Running"], ["timeline", "GPU timeline"], ["trials", "Trials"],
  ["analysis", "Analysis"], ["compare", "Compare"], ["nodes", "Nodes"]].filter(([view]) => !report || ["overview", "timeline", "analysis"].includes(view));

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const picker = document.getElementById("study");
const live = document.getElementById("live");
let known = { studies: [], actions: false };
let shown = null;

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { study: parts[0], view: parts[1] ?? "overview", args: parts.slice(2), query: Object.fromEntries(new URLSearchParams(query)) };
}

function frame(where) {
  const current = where.view === "trial" ? "trials" : where.view;
  tabs.replaceChildren(...(where.study
    ? TABS.map(([view, title]) => h("a", { href: link(where.study, view), "aria-current": current === view ? "page" : undefined }, title))
    : [h("a", { href: "#/", "aria-current": "page" }, "Studies")]));
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const options = [h("option", { value: "" }, "all studies"), ...known.studies.map((study) => h("option", { value: study.key }, study.key))];
  picker.replaceChildren(...options);
  picker.value = where.study ?? "";
  const title = TABS.find(([view]) => view === where.view)?.[1] ?? "Trial";
  document.title = where.study ? `${where.study} · ${where.view === "trial" ? `trial ${where.args[0]}` : title} · pollux-tune` : "pollux-tune";
}

async function show() {
  const where = place();
  if (shown) shown.gone = true;
  disposeAll();
  const now = { where, gone: false, busy: false, again: false, view: null };
  shown = now;
  try {
    known = await ask("studies");
    if (now.gone) return;
    if (!where.study && known.studies.length === 1 && where.view === "overview") {
      location.replace(link(known.studies[0].key, "overview"));
      return;
    }
    frame(where);
    const root = h("div", { class: "card" });
    root.className = "";
    root.style.display = "contents";
    const context = { root, where, known, study: where.study, query: where.query, args: where.args,
      path: (rest = "") => pathOf(where.study, rest), go: (query) => (location.hash = link(where.study, where.view, query)),
      isGone: () => now.gone };
    const view = where.study ? VIEWS[where.view] : studies;
    if (!view) throw new Failure(404, `there is no view "${where.view}"`);
    main.replaceChildren(root);
    now.view = await view.show(context);
    if (now.gone) return;
    main.dataset.ready = location.hash;
  } catch (error) {
    if (!now.gone) fail(error);
  }
}

function fail(error) {
  main.replaceChildren(h("p", { class: "alert bad", role: "alert" }, error.message), h("p", {}, h("a", { href: "#/" }, "All studies")));
  main.dataset.ready = location.hash;
}

// One update at a time, and one more if something has changed meanwhile. The browser has most of the time for its user.
async function update(now) {
  if (!now?.view?.update || now.gone) return;
  if (now.busy) {
    now.again = true;
    return;
  }
  now.busy = true;
  try {
    do {
      now.again = false;
      const begun = performance.now();
      await now.view.update();
      main.dataset.updates = String(Number(main.dataset.updates ?? 0) + 1);
      const rest = Math.min(5000, 3 * (performance.now() - begun));
      if (rest > 100) await new Promise((done) => setTimeout(done, rest));
    } while (now.again && !now.gone);
  } catch (error) {
    if (!now.gone && error instanceof Failure) fail(error);
  } finally {
    now.busy = false;
  }
}

function listen() {
  if (report) {
    live.textContent = "report";
    return;
  }
  const events = new EventSource("/events");
  let first = true;
  const say = (text, how) => {
    live.textContent = text;
    live.className = `live ${how}`;
  };
  events.addEventListener("open", () => say("live", "on"));
  events.addEventListener("error", () => say("not connected", "off"));
  events.addEventListener("change", (event) => {
    const changes = JSON.parse(event.data);
    // The first one names all studies; after a lost connection that is news.
    if (first) {
      first = false;
      return;
    }
    const mine = shown?.where.study;
    const compared = shown?.where.view === "compare";
    if (!mine || compared || changes.some((change) => change.study === mine)) update(shown);
  });
}

function theme() {
  const wanted = localStorage.getItem("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const apply = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    recolor();
  };
  apply(wanted ? wanted === "dark" : system.matches);
  system.addEventListener("change", (event) => localStorage.getItem("theme") ?? apply(event.matches));
  button.addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme !== "dark";
    localStorage.setItem("theme", dark ? "dark" : "light");
    apply(dark);
  });
}

picker.addEventListener("change", () => (location.hash = picker.value ? link(picker.value, "overview") : "#/"));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
});
theme();
listen();
show();
