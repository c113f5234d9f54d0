// Trials that run: their learning curves, batch sizes, learning rates and speed, side by side.

import { axis, chart, dotted, extent, grid, heading, legend, named, timeAxis, trialColor } from "/assets/charts.js";
import { ask, asTable, card, choice, confirmed, duration, glossary, h, link, number, state, table } from "/assets/common.js";

const SPEEDS = [[3, "Batch size"], [4, "Learning-rate factor"], [5, "Statistical efficiency"], [7, "Goodput, in examples per second"]];

export async function show({ root, study, path, isGone }) {
  let [data, about] = await Promise.all([ask(path("/running")), ask(path())]);
  const settings = { over: "epochs" };
  const note = h("p", { class: "note", role: "status" });
  const curves = chart("Learning curves of running trials", "tall");
  const charts = SPEEDS.map(([column, title]) => ({ column, title, chart: chart(title, "small") }));
  const speed = card("Batch size, learning rate and speed over time", [], h("div", { class: "two" },
    charts.map((one) => h("div", {}, heading(one.title), one.chart.box))),
    glossary(["Statistical epochs", "Goodput", "Efficiency", "LR factor", "Batch", "Slots"]));
  const list = h("div");
  const beside = asTable(() => table("Learning curves", [
    { name: "Trial", number: true, cell: (row) => row[0] }, { name: "Epochs", number: true, cell: (row) => number(row[1]) },
    { name: "Time", number: true, cell: (row) => duration(row[2]) }, { name: data.metric ?? "value", number: true, cell: (row) => number(row[3]) },
  ], data.trials.flatMap((trial) => (trial.curves[data.metric] ?? []).slice(-10).map((point) => [trial.id, ...point])).slice(-300)));
  const first = card("Learning curves", [choice("Over", [["epochs", "epochs"], ["time", "time"]], "epochs", (value) => {
    settings.over = value;
    draw();
  })], curves.box, beside);
  root.append(h("h1", {}, "Running trials"), note, card("Trials", [], list), first, speed);

  const fill = () => {
    note.textContent = data.found === 0 ? "No trial runs now." : `${data.found} ${data.found === 1 ? "trial runs" : "trials run"}${data.found > data.trials.length ? `, ${data.trials.length} are shown` : ""}.`;
    const names = about.parameters.filter(({ fixed }) => !fixed).map(({ name }) => name);
    const last = (row, column) => number(row.speed.at(-1)?.[column]);
    const focused = document.activeElement?.getAttribute("aria-label");
    list.replaceChildren(data.trials.length ? table("Running trials", [
      { name: "Trial", cell: (row) => {
        const swatch = h("span", { class: "swatch" });
        swatch.style.background = trialColor(row.id);
        return [swatch, h("a", { href: link(study, `trial/${row.id}`) }, row.id)];
      } },
      { name: "State", cell: (row) => state(row.state) },
      { name: "Epochs", number: true, cell: (row) => (about.epochs ? `${number(row.epochs)} of ${number(about.epochs)}` : number(row.epochs)) },
      ...about.objectives.map(({ metric }) => ({ name: metric, number: true, cell: (row) => number(row.values[metric]) })),
      { name: "Slots", number: true, cell: (row) => row.slots },
      ...(about.elastic ? [{ name: "Batch", number: true, cell: (row) => number(row.batch) }, { name: "LR factor", number: true, cell: (row) => last(row, 4) },
        { name: "Efficiency", number: true, cell: (row) => last(row, 5) }, { name: "Goodput", number: true, cell: (row) => last(row, 7) }] : []),
      { name: "Duration", number: true, cell: (row) => duration(row.duration) },
      ...names.map((name) => ({ name, number: true, cell: (row) => number(row.params?.[name]) })),
      ...(about.can.stop_trial ? [{ name: "", title: "Stop", cell: (row) => h("button", { type: "button", class: "danger", "aria-label": `Stop trial ${row.id}`,
        onclick: () => confirmed(`Stop trial ${row.id} for good? The study goes on without it.`, "Stop the trial", path(`/trials/${row.id}/stop`)) }, "Stop") }] : []),
    ], data.trials) : h("p", { class: "empty" }, "Trials appear here as soon as they have slots."));
    if (focused) list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  };
  const draw = () => {
    const over = settings.over === "time" ? 1 : 0;
    // Thousands of points would take longer to draw than to change.
    const few = data.trials.length <= 20;
    const empty = data.trials.length === 0;
    first.hidden = empty;
    curves.set(() => ({
      grid: grid(), legend: legend(), xAxis: over ? timeAxis(extent(data.trials.flatMap((trial) => (trial.curves[data.metric] ?? []).map((point) => [point[1]])))) : axis("value", "statistical epochs", { min: 0 }),
      yAxis: axis("value", data.metric ?? "", { scale: true, ...named() }), tooltip: { trigger: "item", renderMode: "richText", formatter: ({ seriesName, value }) => `${seriesName}\n${number(value[1])} at ${over ? duration(value[0]) : `epoch ${number(value[0])}`}` },
      series: data.trials.map((trial) => dotted({ name: `trial ${trial.id}`, symbolSize: 4, showSymbol: (few && (trial.curves[data.metric] ?? []).length < 40) || (trial.curves[data.metric] ?? []).length < 2,
        lineStyle: { color: trialColor(trial.id) }, itemStyle: { color: trialColor(trial.id) }, data: (trial.curves[data.metric] ?? []).map((point) => [point[over], point[2]]) })),
    }), `${data.trials.length} trials`);
    speed.hidden = empty || !data.trials.some((trial) => trial.speed.length);
    const moments = extent(data.trials.flatMap((trial) => trial.speed));
    for (const { column, title, chart: one } of charts) {
      one.set(() => ({ grid: grid({ top: 14, bottom: 32 }), xAxis: timeAxis(moments), yAxis: axis("value", "", { scale: true }), tooltip: { trigger: "item", renderMode: "richText", formatter: ({ seriesName, value }) => `${seriesName}\n${number(value[1])} at ${duration(value[0])}` },
        series: data.trials.map((trial) => dotted({ name: `trial ${trial.id}`, step: column === 3 ? "end" : false, symbolSize: 4, showSymbol: few && trial.speed.length < 40,
          lineStyle: { color: trialColor(trial.id) }, itemStyle: { color: trialColor(trial.id) },
          data: trial.speed.filter((row) => row[column] !== null).map((row) => [row[0], row[column]]) })) }), title);
    }
    beside.refresh();
  };
  fill();
  draw();
  return { async update() {
    [data, about] = await Promise.all([ask(path("/running")), ask(path())]);
    if (isGone()) return;
    fill();
    draw();
  } };
}
