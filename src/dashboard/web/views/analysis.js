// What the finished trials say about the parameters: parallel coordinates, importance, slice, contour, Pareto front.

import { axis, chart, color, grid, legend, named } from "/assets/charts.js";
import { ask, asTable, card, choice, h, link, number, table } from "/assets/common.js";

const [TRIAL, VALUES, FRONT, PARAMS] = [0, 1, 2, 3];
// From the worst to the best, which stands out on the card.
const SCALES = { light: ["#c3cfdf", "#7fa9cf", "#2f7fc1", "#1a4f9c", "#0b1f55"], dark: ["#3d4a5c", "#3f7f96", "#3fb5a3", "#b8d76b", "#f7e225"] };
// Cells of a contour in each direction.
const CELLS = 36;

export async function show({ root, study, path, isGone }) {
  let [data, about] = await Promise.all([ask(path("/analysis")), ask(path())]);
  let shares = null;
  const settings = { objective: 0, slice: null, x: null, y: null, px: 0, py: 1 };
  const metrics = about.objectives.map(({ metric }) => metric);
  const all = about.parameters.map((parameter, place) => ({ ...parameter, place })).filter(({ fixed }) => !fixed);
  [settings.slice, settings.x, settings.y] = [all[0]?.place, all[0]?.place, all[Math.min(1, all.length - 1)]?.place];
  const note = h("p", { class: "note", role: "status" });
  const parallel = chart("Parallel coordinates", "tall");
  const importance = chart("Importance of parameters");
  const slice = chart("Slice");
  const contour = chart("Contour");
  const pareto = chart("Pareto front");
  const names = all.map(({ place, name }) => [place, name]);
  const goTrial = ({ data: it }) => {
    if (it?.trial !== undefined) location.hash = link(study, `trial/${it.trial}`);
  };
  const value = (row) => row[VALUES][settings.objective];
  const metric = () => metrics[settings.objective] ?? "value";
  const importanceNote = h("p", { class: "note" }, "Computing the importance of parameters …");
  const importanceTable = h("div");
  const rowsTable = (caption, columns, rows) => asTable(() => table(caption, [
    { name: "Trial", number: true, cell: (row) => h("a", { href: link(study, `trial/${row[TRIAL]}`) }, row[TRIAL]) }, ...columns()], rows().slice(0, 200)));
  const byValue = () => [...data.trials].sort((a, b) => (isMax() ? value(b) - value(a) : value(a) - value(b)));
  const cell = (place) => ({ name: about.parameters[place]?.name, number: true, cell: (row) => number(row[PARAMS][place]) });
  const valueCell = () => ({ name: metric(), number: true, cell: (row) => number(value(row)) });
  const tables = [
    rowsTable("Parameters and values, the best first", () => [valueCell(), ...all.map(({ place }) => cell(place))], byValue),
    rowsTable("Slice", () => [cell(settings.slice), valueCell()], byValue),
    rowsTable("Contour", () => [cell(settings.x), cell(settings.y), valueCell()], byValue),
    rowsTable("Pareto front", () => metrics.map((name, place) => ({ name, number: true, cell: (row) => number(row[VALUES][place]) })), () => data.trials.filter((row) => row[FRONT])),
  ];
  const set = (name) => (chosen) => {
    settings[name] = Number(chosen);
    draw();
  };
  const several = metrics.length > 1;
  const options = metrics.map((name, place) => [place, name]);
  root.append(h("div", { class: "head" }, h("h1", {}, "Analysis"), several ? h("div", { class: "controls" }, choice("Objective", options, 0, (chosen) => {
    settings.objective = Number(chosen);
    draw();
    weigh();
  })) : null), note, card("Parallel coordinates", [], parallel.box, tables[0]),
  h("div", { class: "two" }, card("Importance of parameters", [], importanceNote, importance.box, importanceTable),
    card("Slice", [choice("Parameter", names, settings.slice, set("slice"))], slice.box, tables[1]),
    card("Contour", [choice("x", names, settings.x, set("x")), choice("y", names, settings.y, set("y"))], contour.box, tables[2]),
    several ? card("Pareto front", [choice("x", options, 0, set("px")), choice("y", options, 1, set("py"))], pareto.box, tables[3]) : null));
  for (const one of [slice, contour, pareto]) one.on("click", goTrial);

  // Text and true/false are categories; numbers may be on a log scale.
  const kind = (place) => {
    const column = data.trials.map((row) => row[PARAMS][place]).filter((it) => it !== null);
    const isNumber = column.every((it) => typeof it === "number");
    const categories = isNumber ? null : [...new Set(column.map(String))].sort();
    return { isNumber, categories, log: isNumber && about.parameters[place]?.log && column.every((it) => it > 0), name: about.parameters[place]?.name ?? "" };
  };
  const at = ({ isNumber }, it) => (isNumber ? it : String(it));
  const axisOf = (it, more = {}) => (it.isNumber ? axis(it.log ? "log" : "value", it.name, { scale: true, ...more }) : axis("category", it.name, { data: it.categories, ...more }));
  const range = () => {
    const sorted = data.trials.map(value).filter((it) => it !== null).sort((a, b) => a - b);
    // Outliers would take all of the scale.
    return sorted.length ? [sorted[Math.floor(sorted.length * .02)], sorted[Math.ceil((sorted.length - 1) * .98)]] : [0, 1];
  };
  const isMax = () => about.objectives[settings.objective]?.direction === "maximize";
  const scale = () => {
    const from = SCALES[document.documentElement.dataset.theme] ?? SCALES.light;
    return isMax() ? from : [...from].reverse();
  };
  const map = (more) => {
    const [min, max] = range();
    return { type: "continuous", min, max: max > min ? max : min + 1e-9, calculable: false, orient: "horizontal", left: "center", bottom: 0, itemHeight: 120, itemWidth: 10,
      inRange: { color: scale() }, textStyle: { color: color("faint") }, formatter: number, text: [number(max), number(min)], ...more };
  };
  const drawParallel = () => {
    const axes = all.map(({ place }) => kind(place));
    // Lines run through the labels: a border in the colour of the card keeps them legible.
    const label = { color: color("text"), fontSize: 10, hideOverlap: true, textBorderColor: color("card"), textBorderWidth: 4 };
    const line = (it, dim) => ({ dim, name: it.name, type: it.isNumber ? (it.log ? "log" : "value") : "category", data: it.categories ?? undefined, scale: true, nameTextStyle: { color: color("text"), fontSize: 11, width: 90, overflow: "truncate" },
      axisLine: { lineStyle: { color: color("line") } }, axisTick: { show: false }, axisLabel: { ...label, formatter: it.isNumber ? number : undefined } });
    parallel.set(() => ({
      parallel: { left: 36, right: 46, top: 34, bottom: 46, layout: "horizontal", axisExpandable: false }, visualMap: map({ dimension: all.length }),
      parallelAxis: [...axes.map(line), line({ name: metric(), isNumber: true }, all.length)],
      tooltip: { show: false },
      series: [{ type: "parallel", smooth: false, lineStyle: { width: data.trials.length > 100 ? 1 : 1.6, opacity: data.trials.length > 300 ? .3 : .75 }, inactiveOpacity: .03, activeOpacity: .8, progressive: 500,
        // The best ones are drawn last, above the others.
        data: byValue().reverse().map((row) => [...all.map(({ place }, dim) => (row[PARAMS][place] === null ? "-" : at(axes[dim], row[PARAMS][place]))), value(row)]) }],
    }), `${data.trials.length} trials, ${all.length} parameters`);
  };
  const drawSlice = () => {
    const it = kind(settings.slice);
    const points = data.trials.filter((row) => row[PARAMS][settings.slice] !== null && row[PARAMS][settings.slice] !== undefined);
    slice.set(() => ({ grid: grid({ top: 28 }), xAxis: axisOf(it), yAxis: axis("value", metric(), { scale: true, ...named() }),
      visualMap: { show: false, type: "continuous", dimension: 2, min: 0, max: Math.max(1, about.wanted ?? 1), inRange: { color: ["#9ec5fe", "#1f5fbf"] } },
      tooltip: { trigger: "item", renderMode: "richText", formatter: ({ data: point }) => `trial ${point.trial}\n${it.name} ${number(point.value[0])}\n${metric()} ${number(point.value[1])}` },
      series: [{ type: "scatter", symbolSize: 6, itemStyle: { opacity: .8 }, data: points.map((row) => ({ value: [at(it, row[PARAMS][settings.slice]), value(row), row[TRIAL]], trial: row[TRIAL] })) }] }), `${metric()} by ${it.name}, later trials are darker`);
  };
  // Means of the nearest trials, weighted by distance: on the scales of the axes, from 0 to 1.
  const surface = (xs, ys, zs) => {
    const cells = [];
    for (let i = 0; i < CELLS; i += 1) {
      for (let j = 0; j < CELLS; j += 1) {
        const [x, y] = [(i + .5) / CELLS, (j + .5) / CELLS];
        let [sum, weights] = [0, 0];
        for (let k = 0; k < zs.length; k += 1) {
          const far = (xs[k] - x) ** 2 + (ys[k] - y) ** 2;
          const weight = 1 / (far + 4e-4) ** 2;
          sum += weight * zs[k];
          weights += weight;
        }
        cells.push([i, j, sum / weights]);
      }
    }
    return cells;
  };
  const drawContour = () => {
    const [x, y] = [kind(settings.x), kind(settings.y)];
    const rows = data.trials.filter((row) => row[PARAMS][settings.x] !== null && row[PARAMS][settings.y] !== null);
    const unit = (it, place) => {
      const raw = rows.map((row) => (it.isNumber ? (it.log ? Math.log(row[PARAMS][place]) : row[PARAMS][place]) : it.categories.indexOf(String(row[PARAMS][place]))));
      const [low, high] = it.isNumber ? [Math.min(...raw), Math.max(...raw)] : [-.5, it.categories.length - .5];
      const back = (part) => { const z = low + part * (high - low); return it.log ? Math.exp(z) : z; };
      return { parts: raw.map((z) => (high > low ? (z - low) / (high - low) : .5)), back };
    };
    const [ux, uy] = [unit(x, settings.x), unit(y, settings.y)];
    const cells = rows.length ? surface(ux.parts, uy.parts, rows.map(value)) : [];
    const ticks = (it, { back }) => Array.from({ length: CELLS }, (_, cell_) => (it.isNumber ? number(back((cell_ + .5) / CELLS)) : it.categories[Math.min(it.categories.length - 1, Math.max(0, Math.round(back((cell_ + .5) / CELLS))))]));
    const plain = (it, of, more) => axis("category", it.name, { data: ticks(it, of), splitLine: { show: false }, ...more, axisLabel: { interval: Math.floor(CELLS / 4) - 1, ...more?.axisLabel } });
    const hidden = { show: false, type: "value", min: 0, max: 1 };
    contour.set(() => ({ grid: grid({ top: 28, bottom: 66 }),
      xAxis: [plain(x, ux), { ...hidden }], yAxis: [plain(y, uy, named()), { ...hidden }],
      visualMap: map({ seriesIndex: 0 }),
      tooltip: { trigger: "item", renderMode: "richText", formatter: ({ data: point }) => (point.trial === undefined ? `${metric()} about ${number(point[2])}` : `trial ${point.trial}\n${metric()} ${number(point.is)}`) },
      series: [{ type: "heatmap", data: cells, progressive: 0 }, { type: "scatter", xAxisIndex: 1, yAxisIndex: 1, symbolSize: 4, itemStyle: { color: "#fff", borderColor: "#0008", borderWidth: .6 },
        data: rows.slice(0, 600).map((row, place) => ({ value: [ux.parts[place], uy.parts[place]], trial: row[TRIAL], is: value(row) })) }] }),
    `${metric()} by ${x.name} and ${y.name}, interpolated from ${rows.length} trials`);
  };
  const drawPareto = () => {
    if (!several) return;
    const point = (row) => ({ value: [row[VALUES][settings.px], row[VALUES][settings.py]], trial: row[TRIAL] });
    const [front, rest] = [data.trials.filter((row) => row[FRONT]), data.trials.filter((row) => !row[FRONT])];
    pareto.set(() => ({ grid: grid(), legend: legend(), xAxis: axis("value", metrics[settings.px], { scale: true }), yAxis: axis("value", metrics[settings.py], { scale: true, ...named() }),
      tooltip: { trigger: "item", renderMode: "richText", formatter: ({ data: it }) => `trial ${it.trial}\n${metrics[settings.px]} ${number(it.value[0])}\n${metrics[settings.py]} ${number(it.value[1])}` },
      series: [{ name: "others", type: "scatter", symbolSize: 5, itemStyle: { color: color("faint"), opacity: .5 }, data: rest.map(point) },
        { name: "Pareto front", type: "scatter", symbolSize: 9, itemStyle: { color: color("bad") }, data: front.map(point) }] }), `${front.length} trials that no other one beats`);
  };
  const draw = () => {
    note.textContent = data.done === 0 ? "No trial has finished yet." : `${data.done} finished trials${data.trials.length < data.done ? `, of which ${data.trials.length} are drawn: the best ones and an even choice of the others` : ""}.`;
    if (data.done) {
      drawParallel();
      drawSlice();
      drawContour();
      drawPareto();
    }
    tables.forEach((one) => one.refresh());
  };
  const weigh = async () => {
    const answer = await ask(path("/importance"), { objective: settings.objective }).catch((error) => ({ shares: null, note: error.message }));
    if (isGone()) return;
    shares = answer.shares;
    importanceNote.textContent = answer.note ?? "";
    importance.box.hidden = !shares;
    if (!shares) return;
    importanceNote.textContent = `Share of the variance of ${metric()} that each parameter explains by itself.`;
    const rows = [...shares].reverse();
    importance.set(() => ({ grid: grid({ top: 8, right: 40 }), xAxis: axis("value", "share of the variance", { min: 0 }), yAxis: axis("category", "", { data: rows.map(([name]) => name), splitLine: { show: false } }),
      tooltip: { trigger: "item", renderMode: "richText", valueFormatter: number },
      series: [{ type: "bar", barMaxWidth: 26, itemStyle: { color: color("accent") }, label: { show: true, position: "right", color: color("text"), formatter: ({ value: share }) => share.toFixed(2) }, data: rows.map(([, share]) => share) }] }),
    shares.map(([name, share]) => `${name} ${share.toFixed(2)}`).join(", "));
    importanceTable.replaceChildren(h("details", {}, h("summary", {}, "As a table"), table("Importance", [{ name: "Parameter", cell: ([name]) => name }, { name: "Share", number: true, cell: ([, share]) => share.toFixed(3) }], shares)));
  };
  draw();
  // The forest behind it takes a while in a large study: the rest is there before.
  weigh();
  return { async update() {
    const done = data.done;
    [data, about] = await Promise.all([ask(path("/analysis")), ask(path())]);
    if (isGone() || data.done === done) return;
    draw();
    await weigh();
  } };
}
