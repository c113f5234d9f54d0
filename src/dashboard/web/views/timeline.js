// Which trial has which GPU over time. Re-allocations have a bar at their left edge; the time until a group trains is pale.

import { axis, chart, color, grid, timeAxis, trialColor, zoomBar } from "/assets/charts.js";
import { ask, card, clock, duration, glossary, h, line, link, table } from "/assets/common.js";

// Columns of a span, as the server tells them.
const [ROW, TRIAL, FROM, TO, FORMED, CHANGE, GENERATION, REASON, SEVERAL] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

export async function show({ root, study, path, isGone }) {
  let data = await ask(path("/timeline"));
  let whole = data.seconds;
  let zoom = { start: 0, end: 100 };
  const picture = chart("GPU timeline");
  const note = h("p", { class: "note" });
  const list = h("div");
  const button = (text, label, action) => h("button", { type: "button", class: "quiet", "aria-label": label, onclick: action }, text);
  const controls = [button("+", "Zoom in", () => scale(.5)), button("–", "Zoom out", () => scale(2)), button("←", "Earlier", () => move(-.5)),
    button("→", "Later", () => move(.5)), button("All", "Show all of the time", () => set(0, 100))];
  root.append(h("h1", {}, "GPU timeline"), card("Who has which GPU", controls, note, picture.box), card("Re-allocations in this window", [], list, glossary(["Slots", "Generation", "Goodput", "Promise"])));

  const set = (start, end) => {
    const width = Math.min(100, Math.max(.05, end - start));
    const from = Math.min(100 - width, Math.max(0, start));
    picture.instance?.dispatchAction({ type: "dataZoom", start: from, end: from + width });
  };
  const scale = (by) => {
    const [middle, half] = [(zoom.start + zoom.end) / 2, ((zoom.end - zoom.start) / 2) * by];
    set(middle - half, middle + half);
  };
  const move = (by) => {
    const step = (zoom.end - zoom.start) * by;
    set(zoom.start + step, zoom.end + step);
  };
  // Machines without a name are known by their number, which the slot has, too.
  const label = (row) => {
    const { name, node, type, slot } = data.rows[row];
    return `${name === `node ${node}` ? type || "slot" : name} ${slot}`;
  };
  const item = (params, api) => {
    const span = data.spans[params.dataIndex];
    if (!span) return null;
    const [left, y] = api.coord([api.value(FROM), api.value(ROW)]);
    const right = api.coord([api.value(TO), api.value(ROW)])[0];
    const height = Math.max(3, api.size([0, 1])[1] * .78);
    const area = params.coordSys;
    const clip = (x) => Math.min(area.x + area.width, Math.max(area.x, x));
    const [from, to] = [clip(left), Math.max(clip(left) + 1, clip(right))];
    if (right < area.x || left > area.x + area.width) return null;
    const fill = span[SEVERAL] > 1 ? color("faint") : trialColor(span[TRIAL]);
    const formed = span[FORMED] === null ? to : clip(api.coord([span[FORMED], span[ROW]])[0]);
    const box = (x, end, opacity, paint) => ({ type: "rect", shape: { x, y: y - height / 2, width: Math.max(.5, end - x), height }, style: { fill: paint, opacity } });
    const children = [box(from, to, .35, fill), box(Math.min(formed, to), to, .95, fill)];
    if (span[CHANGE] && left >= area.x) children.push(box(from, from + 2, 1, color("text")));
    if (to - from > 26 && height > 11) {
      children.push({ type: "text", style: { x: from + 4, y, text: span[SEVERAL] > 1 ? `${span[SEVERAL]} trials` : String(span[TRIAL]), fill: "#fff", stroke: "#000b", lineWidth: 2, font: "11px sans-serif", textVerticalAlign: "middle",
        width: to - from - 6, overflow: "truncate" } });
    }
    return { type: "group", children };
  };
  const draw = () => {
    const rows = data.rows.length;
    picture.box.style.height = `${Math.max(200, Math.min(2400, rows * (rows > 40 ? 14 : 22) + 96))}px`;
    const many = data.found > data.spans.length ? ` ${data.found} allocations; those that are too short to be told apart are grey: zoom in.` : "";
    note.textContent = rows ? `Each row is a slot, each colour a trial. A bar at the left edge is a re-allocation without a restart; pale: workers are getting ready.${many}` : "This study has no slots: its trials are run by others.";
    picture.set(() => ({
      grid: grid({ top: 10, bottom: 62 }), dataZoom: zoomBar(whole, { xAxisIndex: 0, start: zoom.start, end: zoom.end }),
      xAxis: timeAxis([(zoom.start / 100) * whole, (zoom.end / 100) * whole], { min: 0, max: whole || 1, nameGap: 22, axisLabel: { formatter: (value) => clock(value, whole) } }),
      yAxis: axis("category", "", { data: data.rows.map((_, row) => label(row)), inverse: true, axisLabel: { width: innerWidth < 600 ? 64 : 150, overflow: "truncate", interval: "auto", fontSize: 11 }, axisTick: { show: false } }),
      tooltip: { renderMode: "richText", trigger: "item", formatter: ({ dataIndex }) => {
        const span = data.spans[dataIndex];
        if (!span) return "";
        if (span[SEVERAL] > 1) return `${span[SEVERAL]} allocations, ${duration(span[FROM])} to ${duration(span[TO])}`;
        return `trial ${span[TRIAL]}, generation ${span[GENERATION]}\nslot ${label(span[ROW])}\n${duration(span[FROM])} to ${duration(span[TO])}${span[REASON] ? `\n${span[REASON]}` : ""}`;
      } },
      series: [{ type: "custom", renderItem: item, encode: { x: [FROM, TO], y: ROW }, data: data.spans.map((span) => [span[ROW], span[TRIAL], span[FROM], span[TO]]),
        markLine: { silent: true, symbol: "none", label: { show: false }, lineStyle: { color: color("warn"), type: "dashed" }, data: data.resumed.map((at) => ({ xAxis: at })) } }],
    }), `${data.rows.length} slots, ${data.found} allocations in ${duration(whole)}`);
    const [from, to] = [(zoom.start / 100) * whole, (zoom.end / 100) * whole];
    const changes = new Map();
    for (const span of data.spans) {
      if (span[FROM] < from || span[FROM] > to || span[SEVERAL] > 1) continue;
      const key = `${span[TRIAL]}.${span[GENERATION]}`;
      const known = changes.get(key) ?? { span, slots: [] };
      known.slots.push(data.rows[span[ROW]].slot);
      changes.set(key, known);
    }
    const shown = [...changes.values()].sort((a, b) => b.span[FROM] - a.span[FROM]).slice(0, 100);
    list.replaceChildren(shown.length ? table("Allocations, the latest first", [
      { name: "Time", number: true, cell: ({ span }) => duration(span[FROM]) },
      { name: "Trial", number: true, cell: ({ span }) => h("a", { href: link(study, `trial/${span[TRIAL]}`) }, span[TRIAL]) },
      { name: "What", cell: ({ span }) => (span[CHANGE] ? "re-allocated" : "started") },
      { name: "Slots", number: true, cell: ({ slots }) => slots.length },
      { name: "Which", cell: ({ slots }) => line(slots.join(" ")) },
      { name: "Why", cell: ({ span }) => line(span[REASON] ?? "–") },
    ], shown) : h("p", { class: "empty" }, "Nothing was allocated in this window."));
  };
  const load = async () => {
    // A little more than is seen, so that a small move needs no answer.
    const width = ((zoom.end - zoom.start) / 100) * whole;
    const isAll = zoom.start <= 0 && zoom.end >= 100;
    const window_ = isAll ? {} : { from: Math.max(0, (zoom.start / 100) * whole - width / 4), to: (zoom.end / 100) * whole + width / 4 };
    const next = await ask(path("/timeline"), window_);
    if (isGone()) return;
    // The window stays where it is while time goes on.
    if (!isAll && next.seconds > 0) zoom = { start: (zoom.start * whole) / next.seconds, end: (zoom.end * whole) / next.seconds };
    [data, whole] = [next, next.seconds];
    draw();
  };
  draw();
  let timer = null;
  picture.on("datazoom", () => {
    const [{ start, end }] = picture.instance.getOption().dataZoom;
    if (start === zoom.start && end === zoom.end) return;
    zoom = { start, end };
    clearTimeout(timer);
    timer = setTimeout(load, 150);
  });
  picture.on("click", ({ dataIndex }) => {
    const span = data.spans[dataIndex];
    if (span && span[SEVERAL] === 1) location.hash = link(study, `trial/${span[TRIAL]}`);
  });
  return { update: load };
}
