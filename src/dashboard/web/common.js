// What all views share: making elements, asking the server, showing numbers.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export class Failure extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Failure(response.status, body.error ?? `the server answers ${response.status}`);
  return body;
}

// A report is the page in one file: it has its answers with it.
const stored = document.getElementById("answers");
export const report = stored ? JSON.parse(stored.textContent) : null;

// A part of the time is cut out of the whole by who draws it.
function recall(path, address) {
  const found = report[address] ?? (path.endsWith("/timeline") ? report[path] : undefined);
  if (found === undefined) throw new Failure(404, "This is not in the report: pollux-tune dashboard shows it.");
  return structuredClone(found);
}

export async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  const address = `${path}${text ? `?${text}` : ""}`;
  if (report) return recall(path, address);
  return answer(await fetch(`/api/${address}`, { headers: { accept: "application/json" } }));
}

export async function act(path, body = {}) {
  const headers = { "content-type": "application/json", "x-pollux-tune": "1" };
  return answer(await fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

export const pathOf = (study, rest = "") => `studies/${encodeURIComponent(study)}${rest}`;
export const link = (study, view, query = {}) => {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== "")).toString();
  return `#/${encodeURIComponent(study)}/${view}${text ? `?${text}` : ""}`;
};

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

// Short, for axes: all times of an axis in the form that its last one, `until`, needs.
export function clock(seconds, until = seconds) {
  const two = (part) => String(Math.floor(part)).padStart(2, "0");
  if (until < 60) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (until < 7200) return `${Math.floor(whole / 60)}:${two(whole % 60)} min`;
  return `${Math.floor(whole / 3600)}:${two((whole % 3600) / 60)} h`;
}

// Words of this page that a newcomer may not know.
export const TERMS = {
  Batch: "The examples of one optimizer step over all workers of a trial.",
  Efficiency: "Statistical efficiency: how much an example teaches at this batch size, compared with one at the initial batch size. From 0 to 1.",
  Generation: "A configuration of the workers of a trial. It grows with every re-allocation.",
  Goodput: "Throughput times efficiency: examples per second, each counted by how much it teaches.",
  "LR factor": "What the learning rate is multiplied by because the batch is larger than the initial one.",
  Promise: "The estimated chance that a trial will not be stopped early.",
  Slots: "Places for workers: GPUs, or shares of the processor.",
  "Slot time": "Seconds times slots that a trial has had.",
  Speedup: "Expected goodput with these slots, compared with a fair share: the same part of all slots for each trial.",
  "Statistical epochs": "Progress: as many examples as the data set has, each counted by its efficiency. With the initial batch size, an epoch is a pass over the data.",
  Throughput: "Examples per second.",
};
const LONG = { "Batch size": "Batch", "Batch now": "Batch", "Learning-rate factor": "LR factor", "Statistical efficiency": "Efficiency", "Goodput, in examples per second": "Goodput", "Slots now": "Slots", "Slots in use": "Slots" };
export const meaning = (name) => TERMS[name] ?? TERMS[LONG[name]];

// What words mean, for those who ask: by the keyboard, too.
export function glossary(names) {
  return h("details", { class: "terms" }, h("summary", {}, `What do ${names.slice(0, 2).map((name) => `“${name}”`).join(", ")} … mean?`),
    h("dl", { class: "params" }, names.flatMap((name) => [h("dt", {}, name), h("dd", {}, TERMS[name])])));
}

export const state = (name) => h("span", { class: `state ${name}` }, name);
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Text in one line, of which what does not fit is shown by pointing at it.
export const line = (text) => h("span", { class: "line", title: text || undefined }, text);

export const tags = (names) => names.map((name) => h("span", { class: "tag" }, name));

// columns: {name, title?, cell(row), number?, wrap?, sort?}
export function table(caption, columns, rows, sorting) {
  const heading = (column) => {
    const cell = h("th", { scope: "col", class: column.number ? "number" : undefined, title: meaning(column.name) });
    if (column.sort && sorting) {
      const is = sorting.sort === column.sort;
      cell.setAttribute("aria-sort", is ? (sorting.descending ? "descending" : "ascending") : "none");
      cell.append(h("button", { type: "button", "data-sort": column.sort, onclick: () => sorting.by(column.sort) },
        column.name + (is ? (sorting.descending ? " ▼" : " ▲") : "")));
    } else cell.append(column.name || h("span", { class: "unseen" }, column.title));
    return cell;
  };
  const kind = (column) => (column.number ? "number" : column.wrap ? "wrap" : undefined);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${caption}, table` },
    h("table", { "aria-label": caption },
      h("thead", {}, h("tr", {}, columns.map(heading))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column) => h("td", { class: kind(column) }, column.cell(row))))))));
}

// A table beside a chart, made when somebody looks.
export function asTable(make) {
  const details = h("details", {}, h("summary", {}, "As a table"));
  const fill = () => {
    if (!details.open) return;
    details.querySelector(".scroll")?.remove();
    details.append(make());
  };
  details.addEventListener("toggle", fill);
  details.refresh = fill;
  return details;
}

export function card(title, controls, ...children) {
  const head = h("div", { class: "card-head" }, h("h2", {}, title), controls?.length ? h("div", { class: "controls" }, controls) : null);
  return h("section", { class: "card", "aria-label": title }, head, ...children);
}

export function choice(label, options, value, change) {
  const select = h("select", { onchange: () => change(select.value) },
    options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value: String(key), selected: String(key) === String(value) }, text);
    }));
  return h("label", {}, label, select);
}

export function toast(text) {
  const shown = h("div", { class: "toast" }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 8000);
}

let questions = 0;

// Asks before something is done, does it, and says what came of it.
export async function confirmed(question, label, path, body) {
  const own = ++questions;
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-text").textContent = question;
  document.getElementById("confirm-yes").textContent = label;
  dialog.returnValue = "no";
  dialog.showModal();
  const answer = await new Promise((done) => {
    const closed = () => {
      // That an earlier question was closed may be told when this one is open.
      if (own === questions && dialog.open) return;
      dialog.removeEventListener("close", closed);
      done(own === questions ? dialog.returnValue : "no");
    };
    dialog.addEventListener("close", closed);
  });
  if (answer !== "yes") return;
  try {
    toast((await act(path, body)).message);
  } catch (error) {
    toast(error.message);
  }
}

export const better = (direction, a, b) => (direction === "maximize" ? a > b : a < b);
