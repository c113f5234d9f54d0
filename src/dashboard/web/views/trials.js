// All trials: filtered, sorted, in pages.

import { ask, card, duration, h, line, link, number, state, table, tags } from "/assets/common.js";

const STATES = ["waiting", "starting", "running", "pausing", "done", "stopped", "failed", "cancelled"];
const PAGE = 50;

export async function show({ root, study, path, query, isGone }) {
  let data = await ask(path());
  const wanted = { offset: Number(query.offset ?? 0), sort: query.sort ?? "id", descending: query.descending === "true",
    state: query.state ?? "", search: query.search ?? "" };
  const chosen = new Set();
  const list = h("div");
  const pages = h("div", { class: "buttons" });
  const count = h("p", { class: "note", role: "status" });
  const compare = h("button", { type: "button", disabled: true, onclick: () => (location.hash = link(study, "compare", { trials: [...chosen].join(",") })) }, "Compare");
  const search = h("input", { type: "search", value: wanted.search, placeholder: "lr=0.1, tag, number", "aria-label": "Find trials",
    onchange: () => change({ search: search.value }), onkeydown: (event) => event.key === "Enter" && change({ search: search.value }) });
  search.value = wanted.search;
  const states = h("select", { "aria-label": "State", onchange: () => change({ state: states.value }) },
    h("option", { value: "" }, "any"), STATES.map((name) => h("option", { value: name }, name)));
  states.value = wanted.state;
  root.append(h("h1", {}, "Trials"), card("All trials", [h("label", {}, "Find", search), h("label", {}, "State", states), compare], count, list, pages));

  // Told in the address, so that it can be linked to and gone back from.
  const change = (what) => {
    Object.assign(wanted, { offset: 0 }, what);
    history.replaceState(null, "", link(study, "trials", Object.fromEntries(Object.entries(wanted).filter(([, value]) => value && value !== "id"))));
    load();
  };
  const names = data.parameters.filter(({ fixed }) => !fixed).map(({ name }) => name);
  const columns = [
    { name: "", title: "Compare", cell: (row) => h("input", { type: "checkbox", "aria-label": `Compare trial ${row.id}`, checked: chosen.has(row.id),
      onchange: (event) => {
        if (event.target.checked) chosen.add(row.id);
        else chosen.delete(row.id);
        compare.disabled = chosen.size < 2;
      } }) },
    { name: "Trial", number: true, sort: "id", cell: (row) => h("a", { href: link(study, `trial/${row.id}`) }, row.id) },
    { name: "State", sort: "state", cell: (row) => state(row.state) },
    ...data.objectives.map(({ metric }) => ({ name: metric, number: true, sort: `value:${metric}`, cell: (row) => number(row.values[metric]) })),
    ...names.map((name) => ({ name, number: true, sort: `param:${name}`, cell: (row) => number(row.params?.[name]) })),
    { name: "Epochs", number: true, sort: "epochs", cell: (row) => number(row.epochs) },
    ...(data.busy ? [{ name: "Slots", number: true, sort: "slots", cell: (row) => row.slots || "–" }] : []),
    { name: "Started", number: true, sort: "started", cell: (row) => duration(row.started) },
    { name: "Duration", number: true, sort: "duration", cell: (row) => duration(row.duration) },
    { name: "Slot time", number: true, sort: "slot_seconds", cell: (row) => duration(row.slot_seconds) },
    ...(data.annotated ? [{ name: "Tags", cell: (row) => tags(row.tags) }, { name: "Note", cell: (row) => line(row.note ?? "") }] : []),
    { name: "Reason", sort: "reason", cell: (row) => line(row.reason ? row.reason.split("\n")[0] : "") },
  ];
  const load = async () => {
    const page = await ask(path("/trials"), { ...wanted, limit: PAGE });
    if (isGone()) return;
    const sorting = { ...wanted, by: (sort) => change({ sort, descending: wanted.sort === sort && !wanted.descending }) };
    const focused = document.activeElement?.dataset?.sort;
    const scroll = list.querySelector(".scroll")?.scrollLeft ?? 0;
    list.replaceChildren(page.trials.length ? table("Trials", columns, page.trials, sorting) : h("p", { class: "empty" }, "No trial matches."));
    if (page.trials.length) list.querySelector(".scroll").scrollLeft = scroll;
    if (focused) list.querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
    const last = Math.min(wanted.offset + PAGE, page.found);
    count.textContent = page.found ? `${wanted.offset + 1} to ${last} of ${page.found}${page.found < page.total ? `, ${page.total} in all` : ""}` : `0 of ${page.total}`;
    const turn = (text, offset, able) => h("button", { type: "button", class: "quiet", disabled: !able, onclick: () => change({ offset }) }, text);
    pages.replaceChildren(turn("First", 0, wanted.offset > 0), turn("Previous", Math.max(0, wanted.offset - PAGE), wanted.offset > 0),
      turn("Next", wanted.offset + PAGE, last < page.found), turn("Last", Math.max(0, Math.floor((page.found - 1) / PAGE) * PAGE), last < page.found));
  };
  await load();
  return { update: load };
}
