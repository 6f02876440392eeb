// plotly, drawn when a chart comes near the screen, and again when the theme changes.

const LEGEND = { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 };
const charts = new Map(); // element -> function that gives plotly's {data, layout}, or draws by itself

// It stands behind the page's own script: what is to be read is there before its megabytes are.
const plotlyIsThere = new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) { watcher.unobserve(entry.target); drawChart(entry.target); }
  }
}, { rootMargin: "200px" });

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function chart(label, height, make) {
  const node = el("div", { class: "chart", role: "img", "aria-label": label, style: `height:${height}px` });
  charts.set(node, make);
  plotlyIsThere.then(() => watcher.observe(node));
  return node;
}

function drawChart(node) {
  node.dataset.drawn = "true";
  const made = charts.get(node)(node);
  if (!made) return;
  const { data, layout } = made;
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true };
  const full = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
    margin: { l: 10, r: 10, t: 10, b: 10 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    legend: LEGEND,
    ...layout,
  };
  for (const name of Object.keys(full)) {
    if (/^[xy]axis/.test(name)) {
      full[name] = { ...axis, ...full[name] };
      if (full[name].title) full[name].title = { text: full[name].title, font: { size: 12, color: colour("quiet") } };
    }
  }
  Plotly.react(node, data, full, { responsive: true, displayModeBar: false });
}

function redrawCharts() {
  for (const node of charts.keys()) if (node.dataset.drawn) drawChart(node);
}

// A printer gets every chart, also those that nobody scrolled to.
function drawAllCharts() {
  for (const node of charts.keys()) { watcher.unobserve(node); drawChart(node); }
}

function forgetCharts(under) {
  for (const node of [...charts.keys()]) {
    if (under.contains(node)) { watcher.unobserve(node); if (node.matches(".js-plotly-plot")) Plotly.purge(node); charts.delete(node); }
  }
}
