// The page's charts: a figure is data, and this file draws it, as SVG with a canvas for clouds of points.
//
// figure  {x, y, marks, title}. `title`: of one of many small figures; others have a heading of the page.
// axis    {title, log, whole, zero, bare, names}. whole: ticks at whole numbers only. zero: begins at 0.
//         bare: without lines across the figure. names: texts for the places 0, 1, 2 …, on y from the top.
// mark    {draw, look, name, points}, painted in order. look: accent, cloud, good, bad or quiet (report.css).
//         name: its entry in the legend. text: shown under the pointer. What `draw` may be:
//   dots   points {x, y, text, low, high}; low and high: the ends of an interval along x; symbol, hollow, size
//   line   points {x, y, text}; step: "after" or "before" for stairs
//   band   points {x, low, high}, as stairs
//   bars   points {x, y, from, text, label, look}: from `from` to `x`, in the row `y`; label: written on the bar, or behind it
//          where that is not `covered` by another one
//   boxes  points {x, least, lower, middle, upper, most, text}
//   rule   x or y: a line across the figure; dashed; label
//
// A chart is drawn when it comes near the screen, and again when its width or the theme changes.

const charts = new Map(); // element -> {make, height, view, width}; view: the part that was enlarged, an interval for each axis

const MOST_ELEMENTS = 500; // dots; of more, the cloud is painted on a canvas
const REACH_PX = 24; // between the pointer and the point whose text is shown
const CLICK_PX = 4; // less is a click, not a drag
const THIN_PX = 20; // a rectangle thinner than that enlarges one axis only
const LABELS_SHARE = 0.42; // of the width, for the names at the left
const NAME_PX = 66; // so much of a name below the axis is written, even if neighbours lose theirs
const LABEL_PX = 8; // free beside a bar's label
const LEGEND_PX = 22;
const PRINT_SCALE = 3; // a printer's points are smaller than a screen's

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting, boundingClientRect } of entries) {
    if (isIntersecting) { watcher.unobserve(target); drawChart(target, Math.round(boundingClientRect.width)); }
  }
}, { rootMargin: "200px" });

const resizer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const width = Math.round(contentRect.width);
    if (target.dataset.drawn && charts.has(target) && width !== charts.get(target).width) drawChart(target, width);
  }
});

// `make` gives a figure, or draws by itself into the element that it gets.
function chart(label, height, make) {
  const node = el("div", { class: "chart", role: "img", "aria-label": label, style: `height:${height}px` });
  charts.set(node, { make, height, view: {}, width: 0 });
  watcher.observe(node);
  resizer.observe(node);
  return node;
}

// Whoever draws several charts knows their widths before: to ask for one after a change lays the whole page out again.
function drawChart(node, width = node.clientWidth) {
  const drawn = charts.get(node);
  node.dataset.drawn = "true";
  drawn.width = width;
  if (!width) return;
  const figure = drawn.make(node);
  if (figure) drawFigure(node, drawn, figure);
}

function drawCharts(nodes) {
  const widths = nodes.map((node) => node.clientWidth);
  nodes.forEach((node, at) => drawChart(node, widths[at]));
}

function drawWhole(node) {
  charts.get(node).view = {};
  drawChart(node);
}

function redrawCharts() {
  drawCharts([...charts.keys()].filter((node) => node.dataset.drawn));
}

// A printer gets every chart, also those that nobody scrolled to.
function drawAllCharts() {
  for (const node of charts.keys()) watcher.unobserve(node);
  drawCharts([...charts.keys()]);
}

function forgetCharts(under) {
  for (const node of [...charts.keys()]) {
    if (under.contains(node)) { watcher.unobserve(node); resizer.unobserve(node); charts.delete(node); }
  }
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// The context of a canvas of that size in the page's pixels. The processor paints: where there is no GPU the default
// takes seconds for thousands of lines, in which the whole page stands still (benchmarks/report_html.py).
function paintingOn(canvas, width, height) {
  const scale = document.documentElement.classList.contains("print") ? PRINT_SCALE : window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.scale(scale, scale);
  return context;
}

// Calls `moved` with where the pointer went down and where it is, in pixels of the frame; the third argument says
// that it was released.
function dragging(handle, frame, moved, mouseOnly = false) {
  handle.addEventListener("pointerdown", (down) => {
    if (mouseOnly && down.pointerType !== "mouse") return; // a finger scrolls
    down.preventDefault();
    const at = (event) => { const box = frame.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top }; };
    const from = at(down);
    const move = (event) => moved(from, at(event), false);
    const up = (event) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      moved(from, at(event), true);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  });
}

// ---- A figure

function drawFigure(node, drawn, figure) {
  const plot = layoutOf(drawn, figure);
  node.style.height = plot.full.height + "px";
  const back = shape("svg", plot.full);
  paintFrame(back, plot, figure);
  for (const mark of figure.marks) MARKS[mark.draw].paint(plot, mark);
  const over = shape("svg", plot.full, plot.front);
  node.replaceChildren(back, ...(plot.context ? [plot.canvas] : []), over);
  watchPointer(node, drawn, figure, plot, over);
}

// Where everything stands: `full` is the chart's size, the rest is the plot within it, whose marks count from its corner.
function layoutOf(drawn, figure) {
  const full = { width: drawn.width, height: drawn.height };
  const named = figure.marks.filter((mark) => mark.name);
  const legend = named.length > 1 ? legendRows(named, full.width) : [];
  full.height += LEGEND_PX * legend.length;
  const top = (figure.title ? 28 : 10) + LEGEND_PX * legend.length;
  const height = full.height - top - (figure.x.title ? 42 : 24);
  const ranges = { x: drawn.view.x || rangeOf(figure, "x"), y: drawn.view.y || rangeOf(figure, "y") };
  const yTicks = ticksOf(figure.y, ranges.y, Math.min(8, height / 32)).map(([at, text]) => [at, figure.y.names ? fitted(text, full.width * LABELS_SHARE) : text]);
  const left = Math.max(30, ...yTicks.map(([, text]) => textWidth(text) + 8)) + (figure.y.title ? 20 : 0);
  const width = Math.max(20, full.width - left - 14);
  if (!drawn.view.x) ranges.x[1] += (ranges.x[1] - ranges.x[0]) * tailShare(figure, ranges.x, width);
  const x = scaleOf(ranges.x, width, figure.x.log, false);
  const y = scaleOf(ranges.y, height, figure.y.log, !figure.y.names);
  const column = figure.x.names ? width / figure.x.names.length : 0;
  const xTicks = ticksOf(figure.x, ranges.x, Math.min(10, width / 40))
    .map(([at, text]) => [x(at), figure.x.names ? fitted(text, Math.max(column - 6, NAME_PX)) : text]);
  return { full, legend, left, top, width, height, x, y, column, row: figure.y.names ? height / figure.y.names.length : 0,
    ticks: { x: spaced(xTicks), y: yTicks.map(([at, text]) => [y(at), text]) }, targets: [], context: null,
    front: shape("svg", { class: "front", x: left, y: top, width, height }),
    canvas: el("canvas", { style: `left:${left}px;top:${top}px;width:${width}px;height:${height}px` }) };
}

// What stands around and behind the marks: title, legend, lines and texts of the axes.
function paintFrame(back, plot, figure) {
  const { full, left, top, width, height } = plot;
  const write = (text, x, y, more = {}) => back.append(shape("text", { x, y, ...more }, text));
  const rule = (ends) => back.append(shape("line", { class: "ruled", ...ends }));
  if (figure.title) write(fitted(figure.title, full.width * 0.9), 0, 14, { class: "title" });
  const start = plot.legend.length === 1 ? Math.min(left, full.width - plot.legend[0].width) : 0;
  plot.legend.forEach(({ entries }, row) => entries.forEach(([mark, x]) => {
    back.append(legendMark(mark, start + x + 8, 10 + LEGEND_PX * row));
    write(mark.name, start + x + 22, 14 + LEGEND_PX * row);
  }));
  for (const [pixel, text] of plot.ticks.y) {
    const y = top + Math.round(pixel);
    if (!figure.y.bare) rule({ x1: left, x2: left + width, y1: y, y2: y });
    write(text, left - 8, y + 4, { "text-anchor": "end" });
  }
  for (const [pixel, text] of plot.ticks.x) {
    const [x, half] = [left + Math.round(pixel), textWidth(text) / 2];
    if (!figure.x.bare) rule({ x1: x, x2: x, y1: top, y2: top + height });
    write(text, Math.min(full.width - half, Math.max(half, x)), top + height + 18, { "text-anchor": "middle" });
  }
  const title = { class: "quiet", "text-anchor": "middle" };
  const middle = top + height / 2;
  if (figure.x.title) write(figure.x.title, left + width / 2, full.height - 4, title);
  if (figure.y.title) write(figure.y.title, 12, middle, { ...title, transform: `rotate(-90 12 ${middle})` });
}

// The share of its range that an axis needs beyond the longest bars, so that the labels behind them have room.
function tailShare(figure, [from, to], width) {
  let tail = 0;
  for (const point of figure.marks.filter((mark) => mark.draw === "bars").flatMap((mark) => mark.points)) {
    const long = (value) => (value - from) / (to - from) * width;
    const label = textWidth(point.label);
    if (point.x > point.from && !point.covered && !fitsInside(label, long(point.x) - long(point.from))) {
      tail = Math.max(tail, width - (width - label - LABEL_PX) * width / long(point.x));
    }
  }
  tail = Math.min(tail, width / 2);
  return tail / (width - tail);
}

function fitsInside(label, bar) {
  return label + LABEL_PX / 2 <= bar;
}

// Rows of {entries: [[mark, pixel]], width}, as many entries as have room in each.
function legendRows(marks, width) {
  const rows = [{ entries: [], width: 0 }];
  for (const mark of marks) {
    const wide = textWidth(mark.name) + 40;
    if (rows[rows.length - 1].width && rows[rows.length - 1].width + wide > width) rows.push({ entries: [], width: 0 });
    const row = rows[rows.length - 1];
    row.entries.push([mark, row.width]);
    row.width += wide;
  }
  return rows;
}

function legendMark(mark, x, y) {
  if (mark.draw === "bars") return shape("rect", { class: mark.look + " filled", x: x - 5, y: y - 5, width: 10, height: 10, rx: 2 });
  if (mark.draw === "dots") return symbolAt(mark, x, y);
  return shape("line", { class: mark.look + " stroked", x1: x - 8, x2: x + 8, y1: y, y2: y });
}

// ---- Marks: what of a point lies on each axis, and how it is painted

const MARKS = {
  dots: { x: (point) => [point.x, point.low, point.high], y: (point) => [point.y], paint: paintDots },
  line: { x: (point) => [point.x], y: (point) => [point.y], paint: paintLine },
  band: { x: (point) => [point.x], y: (point) => [point.low, point.high], paint: paintBand },
  bars: { x: (point) => [point.from, point.x], y: (point) => [point.y], paint: paintBars },
  boxes: { x: (point) => [point.x], y: (point) => [point.least, point.most], paint: paintBoxes },
  rule: { paint: paintRule },
};

function symbolAt(mark, x, y) {
  const attributes = { class: `${mark.look} ${mark.hollow ? "hollow" : "filled"}` };
  const size = mark.size || 4.5;
  if (mark.symbol !== "diamond") return shape("circle", { ...attributes, cx: x, cy: y, r: size });
  const reach = size * 1.25;
  return shape("path", { ...attributes, d: `M${x - reach} ${y}L${x} ${y - reach}L${x + reach} ${y}L${x} ${y + reach}Z` });
}

function paintDots(plot, mark) {
  const dots = mark.points.map((point) => ({ point, x: plot.x(point.x), y: plot.y(point.y) })).filter(({ x, y }) => Number.isFinite(x + y));
  for (const { point, x, y } of dots) if (point.text) plot.targets.push({ x, y, text: point.text });
  if (dots.length > MOST_ELEMENTS) { paintCloud(plot, mark, dots); return; }
  for (const { point, x, y } of dots) {
    if (point.low < point.high) {
      const [low, high] = [plot.x(point.low), plot.x(point.high)];
      plot.front.append(shape("path", { class: mark.look + " stroked", d: `M${low} ${y}H${high}M${low} ${y - 4}v8M${high} ${y - 4}v8` }));
    }
    plot.front.append(symbolAt(mark, x, y));
  }
}

function paintCloud(plot, mark, dots) {
  const context = plot.context = plot.context || paintingOn(plot.canvas, plot.width, plot.height);
  plot.canvas.dataset.points = String(dots.length + Number(plot.canvas.dataset.points || 0));
  context.fillStyle = colour(mark.look);
  context.globalAlpha = dots.length > 4 * MOST_ELEMENTS ? 0.5 : 0.7; // of thousands, the dense places stay distinct
  for (const { x, y } of dots) {
    context.beginPath();
    context.arc(x, y, mark.size || 2, 0, 2 * Math.PI);
    context.fill();
  }
}

function paintLine(plot, mark) {
  const dots = mark.points.map((point) => [plot.x(point.x), plot.y(point.y), point.text]).filter(([x, y]) => Number.isFinite(x + y));
  for (const [x, y, text] of dots) if (text) plot.targets.push({ x, y, text, along: true });
  plot.front.append(shape("path", { class: mark.look + (mark.step ? " stroked stairs" : " stroked"), d: pathOf(mark.step ? dots : ofColumns(dots), mark.step) }));
}

// Of thousands of points that go to the right, those that can be seen: the first, last, least and most of each pixel.
function ofColumns(dots) {
  const columns = new Map();
  dots.forEach((dot, at) => {
    const found = columns.get(Math.floor(dot[0]));
    if (!found) { columns.set(Math.floor(dot[0]), [at, at, at, at]); return; }
    found[1] = at;
    if (dot[1] < dots[found[2]][1]) found[2] = at;
    if (dot[1] > dots[found[3]][1]) found[3] = at;
  });
  const kept = new Set([...columns.values()].flat());
  return dots.filter((_, at) => kept.has(at));
}

function pathOf(dots, step) {
  const short = (pixel) => Math.round(pixel * 10) / 10;
  return dots.map(([x, y], at) => {
    if (!at) return `M${short(x)} ${short(y)}`;
    return step === "after" ? `H${short(x)}V${short(y)}` : step === "before" ? `V${short(y)}H${short(x)}` : `L${short(x)} ${short(y)}`;
  }).join("");
}

function paintBand(plot, mark) {
  const points = mark.points.filter((point) => Number.isFinite(plot.y(point.low) + plot.y(point.high)));
  if (!points.length) return;
  const edge = (of) => points.map((point) => [plot.x(point.x), plot.y(of(point))]);
  const lower = pathOf(edge((point) => point.low).reverse(), "before").replace("M", "L");
  plot.front.append(shape("path", { class: mark.look + " soft", d: pathOf(edge((point) => point.high), "after") + lower + "Z" }));
}

function paintBars(plot, mark) {
  const high = plot.row * 0.76;
  for (const point of mark.points.filter((each) => each.x > each.from)) {
    const [from, to, y] = [plot.x(point.from), plot.x(point.x), plot.y(point.y)];
    plot.front.append(shape("rect", { class: (point.look || mark.look) + " filled", x: from, width: Math.max(1, to - from), y: y - high / 2, height: high }));
    plot.targets.push({ from: { x: from, y: y - high / 2 }, to: { x: to, y: y + high / 2 }, x: (from + to) / 2, y, text: point.text });
    if (fitsInside(textWidth(point.label), to - from)) plot.front.append(shape("text", { class: "inside", x: Math.max(to - 5, (from + to + textWidth(point.label)) / 2), y: y + 4, "text-anchor": "end" }, point.label));
    else if (!point.covered) plot.front.append(shape("text", { x: to + 5, y: y + 4 }, point.label));
  }
}

function paintBoxes(plot, mark) {
  const half = Math.min(24, plot.column * 0.27);
  for (const point of mark.points) {
    const x = plot.x(point.x);
    const [least, lower, middle, upper, most] = [point.least, point.lower, point.middle, point.upper, point.most].map(plot.y);
    plot.front.append(
      shape("path", { class: mark.look + " stroked", d: `M${x} ${least}V${lower}M${x} ${upper}V${most}M${x - half / 2} ${least}h${half}M${x - half / 2} ${most}h${half}` }),
      shape("rect", { class: mark.look + " boxed", x: x - half, width: 2 * half, y: upper, height: lower - upper }),
      shape("path", { class: mark.look + " stroked", d: `M${x - half} ${middle}h${2 * half}` }));
    plot.targets.push({ from: { x: x - plot.column / 2, y: 0 }, to: { x: x + plot.column / 2, y: plot.height }, x, y: most, text: point.text });
  }
}

function paintRule(plot, mark) {
  const ends = "x" in mark ? { x1: plot.x(mark.x), x2: plot.x(mark.x), y1: 0, y2: plot.height } : { x1: 0, x2: plot.width, y1: plot.y(mark.y), y2: plot.y(mark.y) };
  plot.front.append(shape("line", { class: mark.look + (mark.dashed ? " rule dashed" : " rule"), ...ends }));
  if (mark.label) {
    const above = ends.y1 > 18 ? ends.y1 - 5 : ends.y1 + 15;
    plot.front.append(shape("text", { class: mark.look, x: plot.width - 2, y: above, "text-anchor": "end" }, mark.label));
  }
}

// ---- The pointer: the text of what is under it; dragging enlarges a part, a double click shows all again

function nearest(targets, x, y) {
  let [found, least] = [null, REACH_PX ** 2];
  for (const target of targets) {
    const inside = target.from && x >= target.from.x && x <= target.to.x && y >= target.from.y && y <= target.to.y;
    if (target.from && !inside) continue;
    const distance = inside ? 0 : (x - target.x) ** 2 + (target.along ? 0 : (y - target.y) ** 2);
    if (distance < least) [found, least] = [target, distance];
  }
  return found;
}

function watchPointer(node, drawn, figure, plot, over) {
  const { left, top } = plot;
  const tip = el("div", { class: "tip", hidden: true });
  const ring = shape("circle", { class: "ring", r: 6 });
  const frame = shape("rect", { class: "frame" });
  node.append(tip);
  const hide = () => { tip.hidden = true; ring.remove(); };
  const show = (event) => {
    const box = over.getBoundingClientRect();
    const found = frame.parentNode ? null : nearest(plot.targets, event.clientX - box.left - left, event.clientY - box.top - top);
    hide();
    if (!found) return;
    tip.hidden = false;
    tip.textContent = found.text;
    if (!found.from) { ring.setAttribute("cx", found.x); ring.setAttribute("cy", found.y); plot.front.append(ring); }
    const x = Math.min(drawn.width - tip.offsetWidth, Math.max(0, left + found.x - tip.offsetWidth / 2));
    const above = top + found.y - tip.offsetHeight - 10;
    tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(box.top + above >= 0 ? above : top + found.y + 12)}px)`;
  };
  over.addEventListener("pointermove", show);
  over.addEventListener("pointerdown", show);
  over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  over.addEventListener("dblclick", () => drawWhole(node));
  const within = (pixel, most) => Math.min(most, Math.max(0, pixel));
  dragging(over, over, (from, to, released) => {
    const span = { x: [from.x, to.x].map((pixel) => within(pixel - left, plot.width)).sort((a, b) => a - b),
      y: [from.y, to.y].map((pixel) => within(pixel - top, plot.height)).sort((a, b) => a - b) };
    for (const side of ["x", "y"]) {
      if (figure[side].names || span[side][1] - span[side][0] < THIN_PX) span[side] = null;
    }
    frame.remove();
    if (!span.x && !span.y) return;
    hide();
    if (released) {
      for (const side of ["x", "y"]) if (span[side]) drawn.view[side] = span[side].map(plot[side].back).sort((a, b) => a - b);
      drawChart(node);
      return;
    }
    const [[x, right], [y, bottom]] = [span.x || [0, plot.width], span.y || [0, plot.height]];
    for (const [name, value] of Object.entries({ x, y, width: right - x, height: bottom - y })) frame.setAttribute(name, value);
    plot.front.append(frame);
  }, true);
}
