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

// Short, for axes.
export function clock(seconds) {
  if (seconds < 120) return `${Number(seconds.toFixed(1))} s`;
  const two = (part) => String(Math.floor(part)).padStart(2, "0");
  if (seconds < 7200) return `${Math.floor(seconds / 60)}:${two(seconds % 60)} min`;
  return `${Math.floor(seconds / 3600)}:${two((seconds % 3600) / 60)} h`;
}

export const state = (name) => h("span", { class: `state ${name}` }, name);
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// columns: {name, title?, cell(row), number?, wrap?, sort?}
export function table(caption, columns, rows, sorting) {
  const heading = (column) => {
    const cell = h("th", { scope: "col", class: column.number ? "number" : undefined });
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
