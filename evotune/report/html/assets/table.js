// A table of any length: sorted and filtered as data, shown a page at a time.

const ROWS_SHOWN = 20;
const UNITS = { "": 1, x: 1, "×": 1, "%": 0.01, ns: 1e-9, "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
  B: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

// The number that a cell stands for: 9, "10", "1.5x", "64 KiB"; null for words.
function quantity(value) {
  if (typeof value === "number") return value;
  const found = /^\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµ×%]*)\s*$/i.exec(value);
  return found && Object.hasOwn(UNITS, found[2]) ? Number(found[1]) * UNITS[found[2]] : null;
}

// Numbers by value and before words, the numbers inside words by value too; what is missing comes last either way.
function compareCells(a, b, down) {
  const missing = (value) => value === null || value === undefined || value === "" || value === "-";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const [left, right] = [quantity(a), quantity(b)];
  let order = (left === null) - (right === null);
  if (left !== null && right !== null) order = left - right;
  else if (left === null && right === null) order = String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -order : order;
}

// columns: {name, title, numeric, value(row), text(row), kind(row)}; options: {detail(row),
// outcomes: [kind], outcomeOf(row), label}
function dataTable(allColumns, rows, options) {
  const columns = allColumns.filter((column) => !rows.length || rows.some((row) => column.text(row) !== "")); // no flags, no column
  const state = { filter: () => true, outcome: "", sort: null, down: false, shown: ROWS_SHOWN };
  const count = el("span", { class: "quiet", role: "status" });
  const body = el("tbody");
  const more = el("button", { type: "button", onclick: () => { state.shown *= 4; draw(); } }, "Show more rows");
  const heads = columns.map((column) => {
    const head = el("th", { scope: "col", class: column.numeric ? "number" : "" },
      el("button", { type: "button", title: column.title || "Sort by " + column.name,
        onclick: () => sortBy(column) }, column.name));
    return head;
  });
  const search = el("input", { type: "search", "aria-label": "Filter " + options.label,
    placeholder: "Filter: a text, or NAME=value, speedup>1.2",
    oninput: () => { state.filter = compileFilter(search.value, columns); state.shown = ROWS_SHOWN; draw(); } });
  const chooser = options.outcomes && options.outcomes.length > 1
    ? el("select", { "aria-label": "Outcome", onchange: () => { state.outcome = chooser.value; draw(); } },
      el("option", { value: "" }, "every outcome"),
      options.outcomes.map((kind) => el("option", { value: kind }, kind)))
    : null;

  function sortBy(column) {
    // First click: the best or smallest first; the next ones turn it round.
    state.down = state.sort === column ? !state.down : Boolean(column.downFirst);
    state.sort = column;
    heads.forEach((head, at) => {
      if (columns[at] === column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    draw();
  }

  function draw() {
    let found = rows.filter((row) => (!state.outcome || options.outcomeOf(row) === state.outcome)
      && state.filter(row));
    if (state.sort) found = [...found].sort((one, other) => compareCells(state.sort.value(one), state.sort.value(other), state.down));
    body.replaceChildren(...found.slice(0, state.shown).map(line));
    count.textContent = `${found.length} of ${rows.length} rows`;
    more.hidden = found.length <= state.shown;
  }

  function line(row) {
    const detail = options.detail && options.detail(row);
    const cells = columns.map((column) => el("td",
      { class: [column.numeric ? "number" : column.long ? "text" : "short", column.kind ? column.kind(row) : ""].join(" ") },
      column.text(row)));
    const node = el("tr", detail ? { class: "opens", tabindex: "0", "aria-expanded": "false" } : {}, cells);
    if (detail) {
      const toggle = () => {
        const open = node.nextSibling && node.nextSibling.classList.contains("detail");
        node.setAttribute("aria-expanded", String(!open));
        if (open) node.nextSibling.remove();
        else node.after(el("tr", { class: "detail" }, el("td", { colspan: columns.length }, detail())));
      };
      node.addEventListener("click", toggle);
      node.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
    }
    return node;
  }

  draw();
  return el("div", { class: "datatable" }, el("div", { class: "bar" }, search, chooser, count),
    el("div", { class: "scroll" }, el("table", { class: "wide" }, el("thead", {}, el("tr", {}, heads)), body)),
    el("div", { class: "bar" }, more));
}
