// Trials of a study side by side, and studies side by side.

import { axis, chart, colors, dotted, extent, grid, legend, named, timeAxis } from "/assets/charts.js";
import { ask, asTable, card, choice, duration, glossary, h, link, number, state, table } from "/assets/common.js";
import { SPEEDS } from "/assets/views/trial.js";

// Names in rows, what is compared in columns.
function sideBySide(caption, things, name, rows) {
  return table(caption, [{ name: "", title: "What", cell: ([title]) => h("strong", {}, title) },
    ...things.map((thing, place) => ({ name: name(thing), number: true, cell: ([, get]) => get(thing, place) }))], rows);
}

export async function show(context) {
  const { root, query, known } = context;
  root.append(h("h1", {}, "Compare"));
  const updates = [await trials(context)];
  if (known.studies.length > 1 || query.studies) updates.push(await studies(context));
  return { async update() {
    for (const update of updates) await update();
  } };
}

async function trials({ root, study, path, query, isGone }) {
  let about = await ask(path());
  let chosen = query.trials ?? about.best_trials.slice(0, 4).map(({ id }) => id).join(",");
  let data = { trials: [] };
  const settings = { metric: null, over: "epochs", speed: 7 };
  const problem = h("p", { class: "alert bad", role: "alert", hidden: true });
  const curves = chart("Learning curves of these trials");
  const speed = chart("Speed of these trials", "small");
  const list = h("div");
  const controls = h("div", { class: "controls" });
  const input = h("input", { value: chosen, "aria-label": "Numbers of trials, with commas", placeholder: "0,3,7", onchange: () => {
    chosen = input.value;
    history.replaceState(null, "", link(study, "compare", { trials: chosen, studies: query.studies }));
    load();
  } });
  input.value = chosen;
  const beside = asTable(() => table("Learning curves", [{ name: "Trial", number: true, cell: (row) => row[0] }, { name: "Epochs", number: true, cell: (row) => number(row[1]) },
    { name: "Time", number: true, cell: (row) => duration(row[2]) }, { name: settings.metric ?? "value", number: true, cell: (row) => number(row[3]) }],
  data.trials.flatMap((trial) => (trial.curves[settings.metric] ?? []).slice(-50).map((point) => [trial.id, ...point])).slice(-300)));
  const speedBox = h("div", {}, speed.box, glossary(["Statistical epochs", "Goodput", "Efficiency", "LR factor", "Batch", "Throughput", "Slots", "Slot time"]));
  root.append(card("Trials", [h("label", {}, "Trials", input)], problem, list, controls, curves.box, beside, speedBox));

  const fill = () => {
    const parameters = about.parameters.map(({ name }) => [name, (trial) => number(trial.params?.[name])]);
    list.replaceChildren(data.trials.length ? sideBySide("Trials side by side", data.trials, ({ id }) => `trial ${id}`, [
      ["state", (trial) => state(trial.state)], ...about.objectives.map(({ metric }) => [metric, (trial) => number(trial.values[metric])]), ...parameters,
      ["epochs", (trial) => number(trial.epochs)], ["duration", (trial) => duration(trial.duration)], ["slot time", (trial) => duration(trial.slot_seconds)],
      ["page", (trial) => h("a", { href: link(study, `trial/${trial.id}`) }, `trial ${trial.id}`)],
    ]) : h("p", { class: "empty" }, "Write the numbers of some trials, with commas."));
    const metrics = [...new Set(data.trials.flatMap((trial) => Object.keys(trial.curves)))];
    if (!metrics.includes(settings.metric)) settings.metric = metrics.includes(about.objectives[0]?.metric) ? about.objectives[0].metric : metrics[0] ?? null;
    const set = (name) => (value) => {
      settings[name] = name === "speed" ? Number(value) : value;
      draw();
    };
    const hasSpeed = data.trials.some((trial) => trial.speed.length);
    speedBox.hidden = !hasSpeed;
    controls.replaceChildren(...[metrics.length ? choice("Metric", metrics, settings.metric, set("metric")) : null,
      choice("Over", [["epochs", "epochs"], ["time", "time"]], settings.over, set("over")),
      hasSpeed ? choice("Below", SPEEDS.map(([column, , title]) => [column, title]), settings.speed, set("speed")) : null].filter(Boolean));
  };
  const draw = () => {
    const over = settings.over === "time" ? 1 : 0;
    const moments = extent(data.trials.flatMap((trial) => [...(trial.curves[settings.metric] ?? []).map((point) => [point[1]]), ...trial.speed]));
    const x = () => (over ? timeAxis(moments) : axis("value", "statistical epochs", { min: 0 }));
    curves.set(() => ({ grid: grid(), legend: legend(), color: colors(), xAxis: x(), yAxis: axis("value", settings.metric ?? "", { scale: true, ...named() }), tooltip: { trigger: "item", renderMode: "richText", formatter: ({ seriesName, value }) => `${seriesName}\n${number(value[1])}` },
      series: data.trials.map((trial) => dotted({ name: `trial ${trial.id}`, symbolSize: 4, showSymbol: (trial.curves[settings.metric] ?? []).length < 40, data: (trial.curves[settings.metric] ?? []).map((point) => [point[over], point[2]]) })) }), settings.metric ?? "nothing was reported");
    const title = SPEEDS.find(([column]) => column === settings.speed)[2];
    speed.set(() => ({ grid: grid({ top: 28 }), color: colors(), xAxis: x(), yAxis: axis("value", title, { scale: true, ...named() }), tooltip: { trigger: "item", renderMode: "richText", formatter: ({ seriesName, value }) => `${seriesName}\n${number(value[1])}` },
      series: data.trials.map((trial) => dotted({ name: `trial ${trial.id}`, step: settings.speed < 4 ? "end" : false, showSymbol: trial.speed.length < 40, symbolSize: 4,
        data: trial.speed.filter((row) => row[settings.speed] !== null).map((row) => [row[over ? 0 : 1], row[settings.speed]]) })) }), title);
    beside.refresh();
  };
  const load = async () => {
    try {
      const [next, now] = await Promise.all([ask(path("/compare"), { trials: chosen || "," }), ask(path())]);
      if (isGone()) return;
      [data, about] = [next, now];
      problem.hidden = true;
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
      return;
    }
    fill();
    draw();
  };
  await load();
  return load;
}

async function studies({ root, study, query, known, isGone }) {
  const chosen = new Set((query.studies ?? [study, ...known.studies.map(({ key }) => key)].slice(0, 5).join(",")).split(",").filter((key) => known.studies.some((one) => one.key === key)));
  let data = { studies: [] };
  const settings = { over: "trials" };
  const list = h("div");
  const picture = chart("Best value so far of these studies");
  const boxes = h("div", { class: "controls", role: "group", "aria-label": "Studies" }, known.studies.slice(0, 60).map(({ key }) => h("label", {}, h("input", { type: "checkbox", checked: chosen.has(key), onchange: (event) => {
    if (event.target.checked) chosen.add(key);
    else chosen.delete(key);
    load();
  } }), key)));
  const beside = asTable(() => table("Best value so far", [{ name: "Study", cell: (row) => row[0] }, { name: "Trial", number: true, cell: (row) => row[1] }, { name: "Time", number: true, cell: (row) => duration(row[2]) }, { name: "Best", number: true, cell: (row) => number(row[4]) }],
    data.studies.flatMap((one) => one.points.slice(-40).map((point) => [one.key, ...point])).slice(-300)));
  root.append(card("Studies", [choice("Over", [["trials", "finished trials"], ["time", "time"]], "trials", (value) => {
    settings.over = value;
    draw();
  })], boxes, list, picture.box, beside));
  const metric = (one) => one.objectives[0]?.metric ?? "value";
  const draw = () => {
    const over = settings.over === "time";
    picture.set(() => ({ grid: grid(), legend: legend(), color: colors(), xAxis: over ? timeAxis([0, Math.max(1, ...data.studies.map((one) => one.seconds))]) : axis("value", "finished trials", { min: 0 }), yAxis: axis("value", "best value so far", { scale: true, ...named() }),
      tooltip: { trigger: "item", renderMode: "richText", formatter: ({ seriesName, value }) => `${seriesName}\n${number(value[1])}` },
      series: data.studies.map((one) => dotted({ name: `${one.key}: ${metric(one)}`, step: "end", showSymbol: one.points.length < 3, data: one.points.map((point, place) => [over ? point[1] : place + 1, point[3]]) })) }), data.studies.map((one) => `${one.key} ${number(one.best?.values[metric(one)])}`).join(", "));
    beside.refresh();
  };
  const load = async () => {
    const next = await ask("compare", { studies: [...chosen].join(",") || "," });
    if (isGone()) return;
    data = next;
    list.replaceChildren(data.studies.length ? sideBySide("Studies side by side", data.studies, ({ key }) => key, [
      ["state", (one) => state(one.state)], ["objective", (one) => one.objectives.map(({ metric: name, direction }) => `${direction} ${name}`).join(", ")],
      ["best", (one) => number(one.best?.values[metric(one)])], ["trials", (one) => `${Object.values(one.trials).reduce((sum, count) => sum + count, 0)} of ${one.wanted ?? "–"}`],
      ["done", (one) => one.trials.done ?? 0], ["stopped early", (one) => one.trials.stopped ?? 0], ["failed", (one) => one.trials.failed ?? 0],
      ["time", (one) => duration(one.seconds)], ["slot time", (one) => duration(one.slot_seconds)],
      ["page", (one) => h("a", { href: link(one.key, "overview") }, one.key)],
    ]) : h("p", { class: "empty" }, "Choose some studies."));
    draw();
  };
  await load();
  return load;
}
