// Parallel coordinates: lines on a canvas, axes over it as SVG.

const PARALLEL_MARGIN = { left: 60, right: 60, top: 44, bottom: 14 };

// axes: {name, ticks: [[place, text]]}; lines: {places: one of 0..1 an axis, share: 0 worst .. 1 best}, worst first.
function parallelChart(label, height, axes, lines) {
  const state = { order: axes.map((_, at) => at), kept: axes.map(() => null) };
  const canvas = el("canvas", {});
  const over = shape("svg", { class: "axes" });
  const draw = (node) => {
    if (!canvas.parentNode) {
      node.classList.add("parallel");
      node.append(canvas, over);
    }
    drawParallel(node, canvas, over, axes, lines, state);
  };
  return chart(label, height, draw);
}

function drawParallel(node, canvas, over, axes, lines, state) {
  const width = node.clientWidth, height = node.clientHeight;
  if (!width || !height) return;
  const span = { x: width - PARALLEL_MARGIN.left - PARALLEL_MARGIN.right, y: height - PARALLEL_MARGIN.top - PARALLEL_MARGIN.bottom };
  const x = (position) => PARALLEL_MARGIN.left + (axes.length > 1 ? position / (axes.length - 1) : 0.5) * span.x;
  const y = (place) => PARALLEL_MARGIN.top + (1 - place) * span.y;
  const lower = (pixel) => Math.min(1, Math.max(0, 1 - (pixel - PARALLEL_MARGIN.top) / span.y));
  drawLines(canvas, width, height, lines, state, x, y);
  over.setAttribute("viewBox", `0 0 ${width} ${height}`);
  over.replaceChildren(...state.order.map((axis, position) => {
    const kept = state.kept[axis];
    const group = shape("g", { transform: `translate(${x(position)} 0)` }, shape("line", { y1: y(1), y2: y(0) }));
    if (kept) group.append(shape("rect", { class: "kept", x: -5, width: 10, y: y(kept[1]), height: Math.max(2, y(kept[0]) - y(kept[1])) }));
    for (const [place, text] of axes[axis].ticks) group.append(shape("text", { x: 7, y: y(place) + 3 }, text));
    const name = shape("text", { class: "name", y: position % 2 ? 32 : 16, "text-anchor": "middle" }, axes[axis].name);
    const reach = shape("rect", { class: "reach", x: -14, width: 28, y: y(1) - 6, height: span.y + 12 });
    group.append(name, reach);
    const again = () => drawParallel(node, canvas, over, axes, lines, state);
    dragging(reach, over, (from, to) => {
      const places = [lower(from.y), lower(to.y)].sort((a, b) => a - b);
      state.kept[axis] = Math.abs(from.y - to.y) < CLICK_PX ? null : places;
      again();
    });
    dragging(name, over, (from, to) => {
      const wanted = Math.round((to.x - PARALLEL_MARGIN.left) / span.x * (axes.length - 1));
      const others = state.order.filter((other) => other !== axis);
      others.splice(Math.min(axes.length - 1, Math.max(0, wanted)), 0, axis);
      state.order = others;
      again();
    });
    return group;
  }));
}

function isKept(line, state) {
  return state.kept.every((range, axis) => !range || (line.places[axis] >= range[0] && line.places[axis] <= range[1]));
}

function drawLines(canvas, width, height, lines, state, x, y) {
  const context = paintingOn(canvas, width, height);
  const low = colour("cloud"), high = colour("accent"), left = colour("line");
  const shown = lines.filter((line) => isKept(line, state));
  const dimmed = shown.length < lines.length ? lines.filter((line) => !isKept(line, state)) : [];
  const trace = (line, style, alpha) => {
    context.strokeStyle = style;
    context.globalAlpha = alpha;
    context.beginPath();
    state.order.forEach((axis, position) => context[position ? "lineTo" : "moveTo"](x(position), y(line.places[axis])));
    context.stroke();
  };
  for (const line of dimmed) trace(line, left, 0.4);
  // Thousands of lines are a solid block unless only the best are strong.
  const [faint, steep] = [Math.min(0.25, 40 / shown.length), Math.max(1, shown.length / 150)];
  for (const line of shown) trace(line, mixed(low, high, line.share), faint + 0.65 * line.share ** steep);
  canvas.dataset.kept = String(shown.length);
}

// Between two colours written #rrggbb.
function mixed(from, to, share) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((value, at) => Math.round(value + share * (b[at] - value))).join(" ")})`;
}
