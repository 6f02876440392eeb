// Elements of the page. Text goes in as text: nothing from the data is ever parsed as markup.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// An SVG element.
function shape(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function figureText(value, digits = 4) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.max(0, digits - 1 - size));
}

function speedupText(value) {
  return value === null || value === undefined ? "-" : value.toFixed(3) + "x";
}

function intervalText(speedup, low, high) {
  if (speedup === null || speedup === undefined) return "-";
  return low === null || low === high ? speedupText(speedup)
    : `${speedupText(speedup)} [${low.toFixed(3)}, ${high.toFixed(3)}]`;
}

function verdict(low, high) {
  return low !== null && low > 1 ? "good" : high !== null && high < 1 ? "bad" : "";
}

function simpleTable(columns, rows, numeric = []) {
  const side = (at) => (numeric[at] ? "number" : "text");
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map((name, at) => el("th", { class: side(at), scope: "col" }, name)))),
    el("tbody", {}, rows.map((row) =>
      el("tr", {}, row.map((cell, at) => el("td", { class: side(at) }, cell)))))));
}

function section(title, note, ...children) {
  return el("section", {}, el("h2", {}, title), note ? el("p", { class: "note" }, note) : null, children);
}
