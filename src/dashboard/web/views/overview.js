// A study at a glance: how it stands, its best trials, and how they came about.

import { axis, chart, color, grid, legend, named, timeAxis } from "/assets/charts.js";
import { ask, asTable, capital, card, choice, clock, confirmed, duration, h, link, meaning, number, report, state, table, tags } from "/assets/common.js";

const ENDED = ["done", "stopped", "failed", "cancelled"];

export async function show({ root, study, path, isGone }) {
  let data = await ask(path());
  let points = { points: [], stopped: [], done: 0 };
  const settings = { objective: 0, by: "trial" };
  const head = h("div", { class: "head" });
  const alerts = h("div", { class: "alerts" });
  alerts.style.display = "contents";
  const figures = h("dl", { class: "figures" });
  const history = chart("Optimization history");
  history.on("click", (event) => {
    if (event.data?.trial !== undefined) location.hash = link(study, `trial/${event.data.trial}`);
  });
  const beside = asTable(() => table("Results in the order of time", [
    { name: "Trial", number: true, cell: ([trial]) => h("a", { href: link(study, `trial/${trial}`) }, trial) },
    { name: "Ended", number: true, cell: ([, at]) => duration(at) },
    { name: "Value", number: true, cell: ([, , value]) => number(value) },
    { name: "Best until then", number: true, cell: ([, , , best]) => number(best) },
  ], points.points.slice(-200)));
  const best = h("div");
  const file = h("pre", { tabindex: "0" });
  const known = enqueue(data, path);
  const metrics = data.objectives.map(({ metric }, place) => [place, metric]);
  const controls = [
    metrics.length > 1 ? choice("Objective", metrics, 0, (value) => {
      settings.objective = Number(value);
      load();
    }) : null,
    choice("Over", [["trial", "trials"], ["time", "time"]], settings.by, (value) => {
      settings.by = value;
      draw();
    }),
  ];
  root.append(head, alerts, figures, card("Optimization history", controls, history.box, beside),
    card("Best trials", report ? [] : [h("a", { href: link(study, "trials") }, "All trials")], best),
    ...(report ? [] : [known.box]), h("details", { class: "card" }, h("summary", {}, "Study file"), file));

  const fill = () => {
    const { can } = data;
    head.replaceChildren(h("h1", {}, study), state(data.state), ...tags(data.tags), h("div", { class: "buttons" },
      can.stop ? h("button", { type: "button", class: "danger", onclick: () => confirmed(
        "Stop the study? Trials write their state first; it can be resumed later.", "Stop the study", path("/stop")) }, "Stop the study") : null,
      can.pause ? h("button", { type: "button", onclick: () => confirmed(
        "Pause the study? No trial is launched until it is resumed; elastic trials save their state, programs run to their end.", "Pause", path("/pause")) }, "Pause") : null,
      can.resume ? h("button", { type: "button", onclick: () => confirmed(
        "Resume the study? Its trials are launched again.", "Resume", path("/resume")) }, "Resume") : null,
      can.retry ? h("button", { type: "button", onclick: () => confirmed(
        "Let all failed trials run again with the next run of the study?", "Retry failed trials", path("/retry")) }, "Retry failed trials") : null));
    const said = [
      data.note ? h("p", { class: "written" }, data.note) : null,
      data.problem ? h("p", { class: "alert bad", role: "alert" }, data.problem) : null,
      ...data.waits.map((text) => h("p", { class: "alert" }, `Waits: ${text}`)),
      data.paused ? h("p", { class: "alert", role: "status" }, "Paused: no trial is launched until it is resumed.") : null,
      data.ended ? h("p", { class: "alert" }, `No more trials: ${data.ended}`) : null,
      data.emulated ? h("p", { class: "note" }, `Emulated devices (${data.emulated}): times are modelled, metrics are synthetic.`) : null,
      data.resume ? h("p", { class: "note" }, "Resume with ", h("code", {}, data.resume)) : null,
    ].filter(Boolean);
    alerts.replaceChildren(...said);
    const ended = ENDED.reduce((sum, name) => sum + (data.trials[name] ?? 0), 0);
    const counts = [...Object.entries(data.trials).map(([name, count]) => `${count} ${name}`), ...(data.enqueued ? [`${data.enqueued} enqueued`] : [])];
    const others = counts.join(", ");
    const one = (name, value, small, more) => h("div", {}, h("dt", { title: meaning(name) }, name), h("dd", {}, value, small ? h("small", {}, small) : null, more));
    const top = data.best;
    const isRun = ["running", "paused", "stopping"].includes(data.state);
    const policy = data.policy ? `policy ${data.policy}` : null;
    figures.replaceChildren(...[
      one("Trials ended", `${ended} of ${data.wanted ?? "–"}`, others, h("progress", { max: data.wanted ?? 1, value: ended, "aria-label": "Trials ended" })),
      ...data.objectives.map(({ metric, direction }) => one(`${capital(direction)} ${metric}`, top ? number(top.values[metric]) : "–",
        top ? `trial ${top.id}` : "no result yet")),
      data.told ? null : isRun && (data.slots || data.state === "running") ? one("Slots in use", `${data.busy} of ${data.slots}`, policy)
        : data.slots ? one("Slots of its last run", String(data.slots), policy) : null,
      one("Time", duration(data.seconds)),
    ].filter(Boolean));
    const names = data.parameters.filter(({ fixed }) => !fixed).map(({ name }) => name);
    best.replaceChildren(data.best_trials.length ? table("Best trials", [
      { name: "Trial", number: true, cell: (row) => h("a", { href: link(study, `trial/${row.id}`) }, row.id) },
      ...data.objectives.map(({ metric }) => ({ name: metric, number: true, cell: (row) => number(row.values[metric]) })),
      ...names.map((name) => ({ name, number: true, cell: (row) => number(row.params?.[name]) })),
      { name: "Epochs", number: true, cell: (row) => number(row.epochs) },
      { name: "Duration", number: true, cell: (row) => duration(row.duration) },
    ], data.best_trials) : h("p", { class: "empty" }, "No trial has finished yet."));
    file.textContent = data.yaml;
    known.box.hidden = !can.enqueue;
  };
  const draw = () => {
    const { metric } = data.objectives[settings.objective] ?? { metric: "value" };
    const over = settings.by === "time" ? 1 : 0;
    const dot = ([trial, at, value]) => ({ value: [over ? at : trial, value], trial });
    const order = [...points.points].sort((a, b) => a[over] - b[over]);
    // Over trials, the best among those with smaller numbers; over time it is told.
    let so = null;
    const lines = order.map(([trial, at, value, best]) => {
      const isBetter = so === null || (data.objectives[settings.objective]?.direction === "maximize" ? value > so : value < so);
      so = over ? best : isBetter ? value : so;
      return [over ? at : trial, so];
    });
    history.set(() => ({
      grid: grid(), legend: legend(),
      xAxis: over ? timeAxis([0, Math.max(1, data.seconds)]) : axis("value", "trial", { minInterval: 1, min: 0 }),
      yAxis: axis("value", metric, { scale: true, ...named() }),
      tooltip: { trigger: "item", renderMode: "richText", formatter: ({ data: it, seriesName }) => it.trial === undefined
        ? `${seriesName}: ${number(it[1])}` : `trial ${it.trial}\n${metric} ${number(it.value[1])}${over ? `\nat ${clock(it.value[0])}` : ""}` },
      series: [
        { name: "finished", type: "scatter", symbolSize: 6, itemStyle: { color: color("accent"), opacity: .65 }, data: points.points.map(dot) },
        { name: "stopped early", type: "scatter", symbol: "triangle", symbolSize: 6, itemStyle: { color: color("warn"), opacity: .5 }, data: points.stopped.map(dot) },
        { name: "best so far", type: "line", step: "end", symbol: "none", lineStyle: { color: color("good"), width: 2 }, itemStyle: { color: color("good") }, data: lines },
      ],
    }), `${points.done} finished trials${lines.length ? `, the best ${metric} is ${number(lines.at(-1)[1])}` : ""}`);
    beside.refresh();
  };
  const load = async () => {
    points = data.objectives.length ? await ask(path("/history"), { objective: settings.objective }) : points;
    if (!isGone()) draw();
  };
  fill();
  await load();
  return { async update() {
    data = await ask(path());
    if (isGone()) return;
    fill();
    await load();
  } };
}

// A form for known parameters, which are tried before others.
function enqueue(data, path) {
  const inputs = data.parameters.filter(({ fixed }) => !fixed).map(({ name, domain }) =>
    [name, h("label", {}, `${name} `, h("input", { type: "text", name, autocomplete: "off" }), h("small", {}, ` ${domain}`))]);
  const form = h("form", { class: "known", onsubmit: (event) => {
    event.preventDefault();
    const given = inputs.map(([name, label]) => [name, label.querySelector("input").value.trim()]).filter(([, value]) => value);
    const shown = given.map(([name, value]) => `${name}=${value}`).join(" ");
    confirmed(`Try ${shown || "this"} before what the search would choose?`, "Enqueue", path("/enqueue"), { values: Object.fromEntries(given) });
  } }, ...inputs.map(([, label]) => h("p", {}, label)), h("button", { type: "submit" }, "Enqueue"));
  return { box: h("details", { class: "card" }, h("summary", {}, "Try known parameters"), form) };
}
