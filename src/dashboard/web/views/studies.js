// All studies, in a table.

import { ask, card, choice, duration, h, line, link, number, state, table, tags } from "/assets/common.js";

export async function show({ root, known }) {
  const chosen = new Set();
  const list = h("div");
  const filter = { text: "", state: "" };
  const compare = h("button", { type: "button", disabled: true, onclick: () => {
    const keys = [...chosen];
    location.hash = link(keys[0], "compare", { studies: keys.join(",") });
  } }, "Compare");
  const search = h("input", { type: "search", placeholder: "name", oninput: () => {
    filter.text = search.value;
    fill();
  } });
  const states = ["", "running", "paused", "done", "stopped", "stopping", "open"].map((name) => [name, name || "any"]);
  root.append(h("h1", {}, "Studies"), card("All studies", [h("label", {}, "Find", search),
    choice("State", states, "", (value) => {
      filter.state = value;
      fill();
    }), compare], list));
  const toggle = (key, on) => {
    if (on) chosen.add(key);
    else chosen.delete(key);
    compare.disabled = chosen.size < 2;
  };
  const ended = (study) => ["done", "stopped", "failed", "cancelled"].reduce((sum, name) => sum + (study.trials[name] ?? 0), 0);
  const best = (study) => study.objectives.map(({ metric }) => study.best ? `${metric} ${number(study.best.values[metric])}` : null).filter(Boolean).join(", ");
  const columns = [
    { name: "", title: "Compare", cell: (study) => h("input", { type: "checkbox", "aria-label": `Compare ${study.key}`, checked: chosen.has(study.key),
      onchange: (event) => toggle(study.key, event.target.checked) }) },
    { name: "Study", cell: (study) => h("a", { href: link(study.key, "overview") }, study.key) },
    ...(known.studies.some((study) => study.tags.length) ? [{ name: "Tags", cell: (study) => tags(study.tags) }] : []),
    ...(known.studies.some((study) => study.note) ? [{ name: "Note", cell: (study) => line(study.note ?? "") }] : []),
    { name: "State", cell: (study) => (study.problem ? h("span", { class: "state failed", title: study.problem }, "damaged") : state(study.state)) },
    { name: "Trials", number: true, cell: (study) => `${ended(study)} of ${study.wanted ?? "–"}` },
    { name: "Failed", number: true, cell: (study) => study.trials.failed ?? 0 },
    { name: "Best", cell: (study) => best(study) || "–" },
    { name: "Time", number: true, cell: (study) => duration(study.seconds) },
    { name: "Folder", cell: (study) => study.folder },
  ];
  const fill = () => {
    const rows = known.studies.filter((study) => study.key.includes(filter.text) && (!filter.state || study.state === filter.state));
    const focused = document.activeElement?.getAttribute("aria-label");
    list.replaceChildren(rows.length ? table("Studies", columns, rows) : h("p", { class: "empty" }, "No study matches."));
    if (focused) list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  };
  fill();
  return { async update() {
    known = await ask("studies");
    fill();
  } };
}
