"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const [columnSelect, filter, table, scroll, detail] = ["column", "filter", "matrix", "scroll", "detail"].map((id) =>
  document.getElementById(id),
);
const OUTCOMES = { bug: "bug seen", "no-bug": "no bug", "cannot-tell": "cannot tell", error: "error", timeout: "timeout" };
let column = Object.keys(data.columns)[0];
let rows = []; // of the table as shown: {id, line, items: the link and the buttons, in order}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children); // strings are added as text, never as markup
  return made;
}

function cellOf(id, release) {
  const cell = {};
  data.cells[id][column][release].forEach((index, number) => {
    const [key, inner] = data.paths[number];
    if (inner) (cell[key] ??= {})[inner] = data.values[index];
    else cell[key] = data.values[index];
  });
  return cell;
}

const minorOf = (release) => release.split(".").slice(0, 2).join(".");
const patchOf = (release) => release.split(".").slice(2).join(".");
const hashOf = (...parts) => "#" + parts.map(encodeURIComponent).join("/");
const glyph = (state) => element("span", { class: "glyph", "data-state": state, "aria-hidden": "true" }, data.states[state][0]);

function breakable(id) {
  return id.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]);
}

function render() {
  const releases = data.columns[column].releases;
  const minors = [...new Set(releases.map(minorOf))];
  const starts = new Set(minors.map((minor) => releases.find((release) => minorOf(release) === minor)));
  const first = (release) => (starts.has(release) ? { class: "first" } : {});
  const counts = {};

  const top = element("tr", {}, element("th", { rowspan: 2, scope: "col" }, "patch"));
  for (const minor of minors) {
    const span = releases.filter((release) => minorOf(release) === minor).length;
    top.append(element("th", { colspan: span, scope: "colgroup", class: "first", "data-minor": minor }, element("span", {}, minor)));
  }
  const bottom = element("tr");
  for (const release of releases) {
    const name = { "aria-label": release, title: release };
    bottom.append(element("th", { scope: "col", ...name, ...first(release) }, patchOf(release)));
  }

  const groups = new Map();
  rows = [];
  for (const [id, patch] of Object.entries(data.patches)) {
    if (!groups.has(patch.severity)) {
      const label = element("span", {}, patch.severity);
      const head = element("th", { scope: "rowgroup", colspan: releases.length + 1 }, label);
      groups.set(patch.severity, element("tbody", {}, element("tr", { class: "group" }, head)));
    }
    const link = element("a", { href: hashOf(id), title: patch.title, tabindex: -1 }, ...breakable(id));
    const line = element("tr", {}, element("th", { scope: "row" }, link));
    const items = [link];
    for (const release of releases) {
      const state = data.values[data.cells[id][column][release][0]];
      counts[state] = (counts[state] ?? 0) + 1;
      const name = `${id}, ${release}: ${state}`;
      const button = element(
        "button",
        { type: "button", "data-state": state, "data-release": release, "aria-label": name, title: name, tabindex: -1 },
        data.states[state][0],
      );
      items.push(button);
      line.append(element("td", first(release), button));
    }
    groups.get(patch.severity).append(line);
    rows.push({ id, line, items });
  }
  const caption = element("caption", { class: "hidden" }, `${column}: patches by severity, DeepSpeed releases`);
  table.replaceChildren(caption, element("thead", {}, top, bottom), ...groups.values());

  const legend = Object.entries(data.states).filter(([state]) => counts[state] || state === "fixed");
  document.getElementById("legend").replaceChildren(
    ...legend.map(([state, [, meaning]]) =>
      element("li", { title: meaning }, glyph(state), `${state}: ${counts[state] ?? 0}`),
    ),
  );
  const environment = data.environments[data.columns[column].environment];
  const versions = Object.entries(environment).map(([name, version]) => `${name} ${version}`);
  document.getElementById("versions").textContent = `Run with ${versions.join(", ")}.`;
  document.getElementById("jump").replaceChildren(...minors.map(jumpTo));
  applyFilter();
}

function jumpTo(minor) {
  const button = element("button", { type: "button" }, minor);
  button.addEventListener("click", () => {
    const head = table.querySelector(`[data-minor="${minor}"]`);
    scroll.scrollLeft += head.getBoundingClientRect().left - table.querySelector("th").getBoundingClientRect().right;
  });
  return button;
}

function applyFilter() {
  const wanted = filter.value.trim().toLowerCase();
  for (const { id, line } of rows) {
    const patch = data.patches[id];
    line.classList.toggle("filtered", !`${id} ${patch.title} ${patch.severity}`.toLowerCase().includes(wanted));
  }
  for (const head of table.querySelectorAll("tr.group")) {
    head.classList.toggle("filtered", !head.parentElement.querySelector("tr:not(.group):not(.filtered)"));
  }
  const left = rows.filter(({ line }) => !line.classList.contains("filtered"));
  document.getElementById("shown").textContent = `${left.length} of ${rows.length}`;
  if (!table.querySelector('tr:not(.filtered) [tabindex="0"]')) enter(left[0]?.items[0]);
}

/** Make it the only item of the table that the Tab key reaches. */
function enter(item) {
  for (const old of table.querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
  if (item) item.tabIndex = 0;
}

function move(event) {
  const seen = rows.filter(({ line }) => !line.classList.contains("filtered"));
  const row = seen.findIndex(({ items }) => items.includes(event.target));
  if (row < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  const at = seen[row].items.indexOf(event.target);
  const last = seen[row].items.length - 1;
  const to = {
    ArrowLeft: [row, at - 1],
    ArrowRight: [row, at + 1],
    ArrowUp: [row - 1, at],
    ArrowDown: [row + 1, at],
    Home: [row, 0],
    End: [row, last],
  }[event.key];
  const item = to && seen[to[0]]?.items[to[1]];
  if (!to) return;
  event.preventDefault();
  if (!item) return;
  enter(item);
  item.focus();
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value);
  return element("dl", {}, ...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function bar(id, release) {
  const made = element("div", { class: "bar" });
  if (release) {
    const releases = data.columns[column].releases;
    const steps = element("span");
    for (const [step, label] of [[-1, "← "], [1, " →"]]) {
      const next = releases[releases.indexOf(release) + step];
      const text = step < 0 ? label + (next ?? "") : (next ?? "") + label;
      const button = element("button", { type: "button", "data-step": step }, text);
      button.disabled = !next;
      button.addEventListener("click", () => go(hashOf(id, next, column)));
      steps.append(button, " ");
    }
    made.append(steps);
  }
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => detail.close());
  made.append(element("span"), close);
  return made;
}

function ran(title, run) {
  const outcome = OUTCOMES[run.outcome] ?? run.outcome;
  const small = element("small", {}, run.patch ? `· the patch: ${run.patch}` : "");
  return [element("h3", {}, `${title}: ${outcome} `, small), element("pre", {}, run.detail)];
}

function cellPanel(id, release) {
  const cell = cellOf(id, release);
  const { command } = data.columns[column];
  const parts = [
    bar(id, release),
    element("h2", { id: "detail-title", tabindex: -1 }, `${id} on DeepSpeed ${release}`),
    element("p", {}, element("a", { href: hashOf(id) }, data.patches[id].title)),
    element("p", { class: "verdict" }, glyph(cell.state), element("span", {}, `${cell.state}: ${cell.why}`)),
  ];
  if (cell.without) {
    parts.push(...ran("Without the patch", cell.without), ...ran("With it", cell.with), element("h3", {}, "Run with"));
    const process = cell.preloaded ? "forked from one that had imported torch" : "fresh";
    const versions = Object.entries(cell.versions).filter(([name]) => name !== "deepspeed");
    parts.push(facts([...versions, ["device", cell.device], ["process", process], ["on", cell.date]]));
  }
  parts.push(
    element("h3", {}, cell.without ? "Run it again" : "Run it"),
    element("pre", {}, `${command} -- --patch ${id} --release ${release} --again`),
    element("p", {}, "In your environment:"),
    element("pre", {}, `python -m dsfix verify ${id}`),
  );
  return parts;
}

function patchPanel(id) {
  const patch = data.patches[id];
  const affects = Object.entries(patch.affects).map(([name, specifiers]) => `${name} ${specifiers}`);
  const links = patch.upstream.map((url) => element("li", {}, element("a", { href: url, rel: "noreferrer" }, url)));
  return [
    bar(id),
    element("h2", { id: "detail-title", tabindex: -1 }, id),
    element("p", {}, patch.title),
    facts([
      ["severity", patch.severity],
      ["affects", affects.join(", ")],
      ["fixed in", patch.fixed_in ?? "no release so far"],
      ["default", patch.default ? "" : `off; DSFIX_ONLY=${id} enables it`],
    ]),
    element("h3", {}, "Proven"),
    ...Object.entries(patch.proven).map(([name, range]) => element("p", {}, `${name}: ${range}`)),
    ...Object.entries(patch.story).flatMap(([name, text]) => [element("h3", {}, name), element("p", {}, text)]),
    element("h3", {}, "The log shows"),
    element("pre", {}, patch.symptom || "nothing"),
    element("h3", {}, "Links"),
    element("ul", {}, ...links),
  ];
}

function go(hash) {
  history.replaceState(null, "", hash);
  show();
}

/** Open the panel for the address: #patch, #patch/release or #patch/release/column. */
function show() {
  let parts = [];
  try {
    parts = location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {} // a malformed % escape
  const [id, release, wanted] = parts;
  const known = Object.hasOwn(data.patches, id ?? "");
  if (known && wanted !== undefined && wanted !== column && Object.hasOwn(data.columns, wanted)) {
    column = columnSelect.value = wanted;
    render();
  }
  if (!known || (release !== undefined && !Object.hasOwn(data.cells[id][column], release))) {
    if (detail.open) detail.close();
    return;
  }
  detail.replaceChildren(...(release === undefined ? patchPanel(id) : cellPanel(id, release)));
  const { items } = rows.find((row) => row.id === id);
  enter(items.find((item) => item.dataset.release === release) ?? items[0]);
  if (!detail.open) detail.showModal();
  document.getElementById("detail-title").focus();
  detail.scrollTop = 0;
}

for (const name of Object.keys(data.columns)) columnSelect.append(element("option", {}, name));
columnSelect.addEventListener("change", () => {
  column = columnSelect.value;
  render();
});
filter.addEventListener("input", applyFilter);
table.addEventListener("keydown", move);
table.addEventListener("click", ({ target }) => {
  if (!target.dataset.release) return;
  const { id } = rows.find(({ items }) => items.includes(target));
  location.hash = hashOf(id, target.dataset.release, column);
});
detail.addEventListener("click", ({ target }) => {
  if (target === detail) detail.close(); // the backdrop
});
detail.addEventListener("keydown", ({ key }) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (step) detail.querySelector(`[data-step="${step}"]`)?.click();
});
detail.addEventListener("close", () => {
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  table.querySelector('[tabindex="0"]')?.focus();
});
window.addEventListener("hashchange", show);
render();
show();
