// The machines of a study.

import { ask, card, duration, h, line, link, state, table } from "/assets/common.js";

const NAMES = { up: "running", "partly up": "stopped", draining: "stopping", blocked: "failed", lost: "failed" };

export async function show({ root, study, path, isGone }) {
  const list = h("div");
  const note = h("p", { class: "note", role: "status" });
  root.append(h("h1", {}, "Nodes"), card("Machines", [], note, list));
  const load = async () => {
    const data = await ask(path("/nodes"));
    if (isGone()) return;
    note.textContent = data.nodes.length === 0 ? "No machine has joined yet." : data.running ? "" : "Nobody runs the study: these are the machines of its last run.";
    list.replaceChildren(data.nodes.length ? table("Machines", [
      { name: "Node", number: true, cell: (row) => row.node },
      ...(data.nodes.some((row) => row.name) ? [{ name: "Name", cell: (row) => row.name || "–" }] : []),
      { name: "State", cell: (row) => {
        // Those that were here to the end.
        const name = data.running || row.state === "lost" ? row.state : "ended";
        const shown = state(name);
        shown.classList.add(NAMES[name] ?? "done");
        return shown;
      } },
      { name: "GPU type", cell: (row) => row.type || "–" },
      data.running ? { name: "Slots in use", number: true, cell: (row) => `${row.busy} of ${row.slots}` } : { name: "Slots", number: true, cell: (row) => row.slots },
      ...(data.running ? [{ name: "Trials", cell: (row) => (row.trials.length ? row.trials.flatMap((trial, place) => [place ? " " : "", h("a", { href: link(study, `trial/${trial}`) }, trial)]) : "–") }] : []),
      ...(data.running ? [{ name: "For", number: true, cell: (row) => duration(row.seconds) }] : []),
      ...(data.nodes.some((row) => row.note) ? [{ name: "Note", cell: (row) => line(row.note ?? "") }] : []),
    ], data.nodes) : "");
  };
  await load();
  return { update: load };
}
