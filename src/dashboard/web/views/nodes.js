// The machines of a study.

import { ask, card, duration, h, link, state, table } from "/assets/common.js";

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
      { name: "Name", cell: (row) => row.name || "–" },
      { name: "State", cell: (row) => {
        const shown = state(row.state);
        shown.classList.add(NAMES[row.state] ?? "done");
        return shown;
      } },
      { name: "GPU type", cell: (row) => row.type || "–" },
      { name: "Slots in use", number: true, cell: (row) => `${row.busy} of ${row.slots}` },
      { name: "Trials", cell: (row) => (row.trials.length ? row.trials.flatMap((trial, place) => [place ? " " : "", h("a", { href: link(study, `trial/${trial}`) }, trial)]) : "–") },
      { name: "Since", number: true, cell: (row) => duration(row.seconds) },
      { name: "Note", wrap: true, cell: (row) => row.note },
    ], data.nodes) : "");
  };
  await load();
  return { update: load };
}
