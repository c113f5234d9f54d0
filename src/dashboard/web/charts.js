// Charts: ECharts with the colours of the page. Text that a chart shows is also in its label and in a table beside it.

import { init } from "/assets/vendor/echarts.js";
import { clock, h, meaning, number } from "/assets/common.js";

const all = new Set();
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const color = css;

// Neighbouring numbers get colours that are easily told apart. Hues nearly repeat after 8 and 13 numbers, shades after 5.
const SHADES = [0, -13, 9, -7, 15];
export function trialColor(trial) {
  const dark = document.documentElement.dataset.theme === "dark";
  const shade = SHADES[trial % SHADES.length];
  return `hsl(${Math.round((trial * 137.508 + 210) % 360)}, ${dark ? 55 : 60}%, ${(dark ? 62 : 42) + (dark ? -shade : shade)}%)`;
}

function base() {
  return {
    animation: false,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("text") },
    tooltip: {
      renderMode: "richText", confine: true, backgroundColor: css("card"), borderColor: css("line"),
      textStyle: { color: css("text"), fontSize: 12 },
    },
  };
}

export function axis(kind, name, more = {}) {
  const text = { color: css("faint"), hideOverlap: true };
  return {
    type: kind, name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: css("faint") },
    axisLine: { lineStyle: { color: css("line") } }, axisTick: { lineStyle: { color: css("line") } },
    splitLine: { lineStyle: { color: css("grid") } },
    ...more,
    axisLabel: { ...text, formatter: kind === "category" ? undefined : (value) => number(value), ...more.axisLabel },
  };
}

// Ticks at times that people count in: charts would choose tenths of thousands of seconds.
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];
export function timeTicks(from, to) {
  const most = innerWidth < 600 ? 4 : 8;
  const step = STEPS.find((seconds) => (to - from) / seconds <= most) ?? 86400 * Math.ceil((to - from) / 86400 / most);
  const [first, last] = [Math.ceil(from / step), Math.floor(to / step)];
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => (first + place) * step);
}

// An axis of the time between two moments, of which `more` may show another part.
export function timeAxis([from, to], more = {}) {
  const ticks = to - from >= 1 ? { customValues: timeTicks(from, to) } : {};
  return axis("value", "time since the study began", { min: from, max: to > from ? to : undefined, axisTick: { lineStyle: { color: css("line") }, ...ticks },
    splitLine: { lineStyle: { color: css("grid") }, ...ticks }, ...more, axisLabel: { formatter: (value) => clock(value, to), ...ticks, ...more.axisLabel } });
}
// The moments of which there are points: `[seconds, ...]` each.
export function extent(points) {
  let [from, to] = [Infinity, -Infinity];
  for (const [at] of points) {
    from = Math.min(from, at);
    to = Math.max(to, at);
  }
  return from <= to ? [from, to] : [0, 1];
}
// The heading of a chart, with what its name means.
export const heading = (name) => h("h2", { title: meaning(name) }, name);
// Lines have filled points: others are filled with white, on a dark page, too.
export const dotted = (more) => ({ type: "line", symbol: "circle", ...more });
// Room for a legend, and for the name of the axis below it.
export const grid = (more = {}) => ({ left: 16, right: 18, top: 46, bottom: 36, containLabel: true, ...more });
// The name of a vertical axis stands above its end.
export const named = (more = {}) => ({ nameLocation: "end", nameGap: 8, nameTextStyle: { color: css("faint"), align: "left" }, ...more });
export const legend = (more = {}) => ({ type: "scroll", top: 0, textStyle: { color: css("text") }, pageTextStyle: { color: css("text") },
  pageIconColor: css("accent"), pageIconInactiveColor: css("line"), inactiveColor: css("faint"), ...more });
export const zoomBar = (until, more = {}) => [
  { type: "inside", filterMode: "weakFilter", ...more },
  { type: "slider", height: 20, bottom: 6, filterMode: "weakFilter", borderColor: css("line"), textStyle: { color: css("faint") },
    labelFormatter: (value) => (typeof value === "number" ? clock(value, until) : ""), ...more },
];
export const colors = () => ["#2a6fdb", "#e07a1f", "#1f9d6b", "#b5489a", "#7a6ad8", "#c99700", "#2aa3b8", "#d1495b", "#6b8e23", "#8d6e63", "#5c7cfa", "#ad1457"];

// make(): the options, anew whenever colours change.
export function chart(label, size = "") {
  const box = h("div", { class: `chart ${size}`.trim(), role: "img", "aria-label": label });
  let instance = null;
  let make = null;
  // What nobody sees is drawn when somebody does.
  let [seen, stale] = [true, false];
  const observer = new ResizeObserver(() => {
    if (!box.isConnected) return;
    if (!instance) draw();
    else instance.resize();
  });
  const watcher = new IntersectionObserver((entries) => {
    seen = entries.at(-1).isIntersecting;
    if (seen && stale) draw();
  }, { rootMargin: "200px" });
  const draw = () => {
    if (!make || !box.isConnected || box.clientWidth === 0) return;
    stale = instance !== null && !seen;
    if (stale) return;
    instance ??= init(box, null, { renderer: "canvas" });
    instance.setOption({ ...base(), ...make() }, { notMerge: false, replaceMerge: ["series", "xAxis", "yAxis", "parallelAxis", "visualMap"] });
  };
  const self = {
    box,
    set(option, text) {
      make = option;
      if (text) box.setAttribute("aria-label", `${label}: ${text}`);
      draw();
    },
    on(event, action) {
      draw();
      instance?.on(event, action);
    },
    get instance() { return instance; },
    redraw: draw,
    dispose() {
      observer.disconnect();
      watcher.disconnect();
      instance?.dispose();
      instance = null;
      all.delete(self);
    },
  };
  observer.observe(box);
  watcher.observe(box);
  all.add(self);
  return self;
}

export function recolor() {
  for (const one of all) one.redraw();
}

// Charts of a view that is left need their memory no more.
export function disposeAll() {
  for (const one of [...all]) one.dispose();
}
