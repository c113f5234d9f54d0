// One trial: what it tries, what it has measured, which slots it had and why, what happened, what it printed.

import { axis, chart, color, colors, dotted, extent, grid, heading, legend, named, timeAxis } from "/assets/charts.js";
import { ask, asTable, card, choice, confirmed, duration, glossary, h, line, link, meaning, number, state, table, tags } from "/assets/common.js";

export const SPEEDS = [[2, "slots", "Slots"], [3, "batch", "Batch size"], [4, "factor", "Learning-rate factor"], [5, "efficiency", "Statistical efficiency"],
  [6, "examples/s", "Throughput"], [7, "examples/s", "Goodput"]];

export async function show({ root, study, path, args, isGone }) {
  const number_ = Number(args[0]);
  let [data, about] = await Promise.all([ask(path(`/trials/${number_}`)), ask(path())]);
  const settings = { over: "epochs" };
  const head = h("div", { class: "head" });
  const alerts = h("div");
  alerts.style.display = "contents";
  const figures = h("dl", { class: "figures" });
  const params = h("dl", { class: "params" });
  const curves = chart("Learning curves");
  const beside = asTable(() => table("Learning curves", [
    { name: "Metric", cell: ([name]) => name },
    { name: "Epochs", number: true, cell: ([, [epochs]]) => number(epochs) },
    { name: "Time", number: true, cell: ([, [, at]]) => duration(at) },
    { name: "Value", number: true, cell: ([, [, , value]]) => number(value) },
  ], Object.entries(data.curves).flatMap(([name, points]) => points.map((point) => [name, point])).slice(-300)));
  const speedCharts = SPEEDS.map(([column, unit, title]) => ({ column, unit, title, chart: chart(title, "small") }));
  const speedTable = asTable(() => table("Speed over time", [
    { name: "Time", number: true, cell: (row) => duration(row[0]) },
    { name: "Epochs", number: true, cell: (row) => number(row[1]) },
    ...SPEEDS.map(([column, , title]) => ({ name: title, number: true, cell: (row) => number(row[column]) })),
  ], data.speed.slice(-300)));
  const speed = card("Batch size, learning rate and speed over time", [],
    h("div", { class: "two" }, speedCharts.map((one) => h("div", {}, heading(one.title), one.chart.box))), speedTable,
    glossary(["Statistical epochs", "Goodput", "Efficiency", "LR factor", "Batch", "Throughput", "Slots", "Slot time", "Speedup", "Generation"]));
  const nothing = h("p", { class: "empty" }, "It has reported no metrics before its result.");
  const decisions = h("div");
  const events = h("div");
  const log = h("pre", { tabindex: "0", "aria-label": "Log" });
  const logNote = h("p", { class: "note" });
  root.append(head, alerts, figures,
    h("div", { class: "two" }, card("Parameters", [], params), card("Allocations", [], decisions)),
    card("Learning curves", [choice("Over", [["epochs", "epochs"], ["time", "time"]], "epochs", (value) => {
      settings.over = value;
      draw();
    })], nothing, curves.box, beside),
    speed, card("Events", [], events), card("Log", [], logNote, log));

  const fill = () => {
    const go = (to, text) => (to >= 0 && to <= data.last ? h("a", { href: link(study, `trial/${to}`) }, text) : null);
    const isOver = ["done", "stopped", "failed", "cancelled"].includes(data.state);
    const neighbours = [go(data.id - 1, "previous"), go(data.id + 1, "next")].filter(Boolean);
    head.replaceChildren(h("h1", {}, `Trial ${data.id}`), state(data.state), ...tags(data.tags), ...neighbours,
      h("div", { class: "buttons" },
        about.can.stop_trial && !isOver ? h("button", { type: "button", class: "danger", onclick: () => confirmed(
          `Stop trial ${data.id} for good? The study goes on without it.`, "Stop the trial", path(`/trials/${data.id}/stop`)) }, "Stop the trial") : null,
        about.can.retry && data.state === "failed" ? h("button", { type: "button", onclick: () => confirmed(
          `Let trial ${data.id} run again with the next run of the study?`, "Retry", path("/retry"), { trials: [data.id] }) }, "Retry") : null));
    const bad = data.state === "failed";
    const note = data.note ? [h("p", { class: "written" }, data.note)] : [];
    alerts.replaceChildren(...note, ...(data.reason ? [h("div", { class: `alert ${bad ? "bad" : ""}` },
      data.reason.includes("\n") ? h("pre", { tabindex: "0", "aria-label": "Reason" }, data.reason) : data.reason)] : []));
    const one = (name, value) => h("div", {}, h("dt", { title: meaning(name) }, name), h("dd", {}, value));
    figures.replaceChildren(...about.objectives.map(({ metric }) => one(metric, number(data.values[metric]))),
      one("Epochs", about.epochs ? `${number(data.epochs)} of ${number(about.epochs)}` : number(data.epochs)),
      ...(isOver ? [] : [one("Slots now", String(data.slots)), one("Batch now", number(data.batch))]), one("Started", duration(data.started)),
      one("Duration", duration(data.duration)), one("Slot time", duration(data.slot_seconds)));
    params.replaceChildren(...Object.entries(data.params ?? {}).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, number(value))]));
    decisions.replaceChildren(data.decisions.length ? table("Allocations", [
      { name: "Time", number: true, cell: (row) => duration(row.at) },
      { name: "Slots", number: true, cell: (row) => row.slots.length },
      { name: "Which", cell: (row) => line(row.slots.join(" ")) },
      { name: "Batch", number: true, cell: (row) => number(row.batch) },
      { name: "Why", cell: (row) => line(row.reason ?? "–") },
      { name: "Speedup", number: true, cell: (row) => number(row.speedup) },
    ], data.decisions.slice(-100)) : h("p", { class: "empty" }, "No slots were allocated to it."));
    events.replaceChildren(table("Events", [
      { name: "Time", number: true, cell: ([at]) => duration(at) }, { name: "Event", wrap: true, cell: ([, text]) => text }], data.events));
    logNote.textContent = data.log === null ? "It has printed nothing, or its log is on another machine." : `${data.log_cut ? "The end of " : ""}${data.log_file}`;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    log.hidden = data.log === null;
    log.textContent = data.log ?? "";
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const draw = () => {
    const over = settings.over === "time" ? 1 : 0;
    const names = Object.keys(data.curves);
    curves.set(() => ({
      grid: grid({ right: names.length > 1 ? 30 : 18 }), legend: legend(), color: colors(), xAxis: over ? timeAxis(extent(names.flatMap((name) => data.curves[name].map((point) => [point[1]])))) : axis("value", "statistical epochs", { min: 0 }),
      // Metrics have scales of their own: the first one on the left, the others on the right.
      yAxis: (names.length ? names : [""]).slice(0, 2).map((name, place) => axis("value", names.length > 2 && place ? "others" : name, { scale: true, ...named({ nameTextStyle: { color: color("faint"), align: place ? "right" : "left" } }), position: place ? "right" : "left", splitLine: { show: !place, lineStyle: { color: color("grid") } } })),
      tooltip: { trigger: "axis", renderMode: "richText", valueFormatter: number },
      series: names.map((name, place) => dotted({ name, showSymbol: data.curves[name].length < 40, symbolSize: 5, yAxisIndex: Math.min(place, 1),
        data: data.curves[name].map((point) => [point[over], point[2]]) })),
    }), names.map((name) => `${name} ${number(data.curves[name].at(-1)?.[2])}`).join(", ") || "nothing was reported yet");
    curves.box.hidden = names.length === 0;
    nothing.hidden = names.length > 0;
    speed.hidden = data.speed.length === 0;
    for (const { column, unit, title, chart: one } of speedCharts) {
      one.set(() => ({ grid: grid({ top: 14, bottom: 32 }), xAxis: timeAxis(extent(data.speed)), yAxis: axis("value", unit, { scale: column > 3, min: column < 4 ? 0 : undefined, nameLocation: "end", nameGap: 4, nameTextStyle: { fontSize: 0, color: "transparent" } }),
        tooltip: { trigger: "axis", renderMode: "richText", valueFormatter: number },
        series: [{ name: title, type: "line", step: column < 4 ? "end" : false, showSymbol: false, lineStyle: { color: color("accent") }, itemStyle: { color: color("accent") },
          data: data.speed.filter((row) => row[column] !== null).map((row) => [row[0], row[column]]) }] }), number(data.speed.at(-1)?.[column]));
    }
    beside.refresh();
    speedTable.refresh();
  };
  fill();
  draw();
  return { async update() {
    [data, about] = await Promise.all([ask(path(`/trials/${number_}`)), ask(path())]);
    if (isGone()) return;
    fill();
    draw();
  } };
}
