// The charts of one run: each function gives plotly's traces and layout for the colours of now.

// No chart of plotly's that draws with WebGL: it compiles programs from text, which the page's policy forbids.

// So points are SVG elements, of which a thousand take a quarter of a second; of more, each nth is drawn.
const MOST_POINTS = 1000;
const MOST_TICKS = 16;
const AXIS_PX = 62; // the least between parallel axes: nineteen on a desktop's screen, more or a phone scroll
const MOST_LINES = 2000; // parallel coordinates of more are slow to draw, and a solid block to read

function progressSection(run, rows) {
  const kind = metric(run);
  const told = rows.filter((row) => row.seen && row.same_code === null).sort((a, b) => a.number - b.number);
  if (!told.length) return null;
  const sample = new Set(sampled(run, told));
  const nth = Math.ceil(sample.size / MOST_POINTS);
  let overTime = false;
  const draw = () => {
    const at = (row) => (overTime ? row.finished_s / 60 : row.number);
    const points = overTime ? [...told].sort((a, b) => a.finished_s - b.finished_s) : told;
    const best = [];
    for (const row of points) {
      const last = best[best.length - 1];
      if (!last || kind.better(kind.of(row.seen), kind.of(last.seen))) best.push(row);
    }
    const end = points[points.length - 1];
    const cloud = points.filter((row) => sample.has(row)).filter((row, at) => at % nth === 0);
    if (!cloud.includes(best[best.length - 1])) cloud.push(best[best.length - 1]);
    const x = [...best.map(at), at(end)];
    const steps = (values) => [...values, values[values.length - 1]];
    const traces = [{ type: "scatter", mode: "markers", name: "trials",
      x: cloud.map(at), y: cloud.map((row) => kind.of(row.seen)), marker: { color: colour("cloud"), size: 4, opacity: 0.7 },
      hoverinfo: "text", text: cloud.map((row) => `trial ${row.number}: ${figureText(kind.of(row.seen))}`) }];
    if (!run.recorded) {
      traces.push(
        { type: "scatter", mode: "lines", x, y: steps(best.map((row) => row.seen[1])), line: { shape: "hv", width: 0 }, hoverinfo: "skip" },
        { type: "scatter", mode: "lines", x, y: steps(best.map((row) => row.seen[2])), line: { shape: "hv", width: 0 },
          fill: "tonexty", fillcolor: colour("accent-soft"), hoverinfo: "skip" });
    }
    traces.push({ type: "scatter", mode: "lines", name: "best so far", x, y: steps(best.map((row) => kind.of(row.seen))),
      line: { shape: "hv", color: colour("accent"), width: 2 }, hoverinfo: "skip" });
    const shapes = run.recorded ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: colour("quiet"), width: 1, dash: "dot" } }];
    const champion = run.headline;
    const annotations = [];
    if (champion && champion.confirmed && champion.speedup !== null) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: champion.speedup, y1: champion.speedup, line: { color: colour("good"), width: 1 } });
      annotations.push({ xref: "paper", x: 1, xanchor: "right", y: champion.speedup, yanchor: "bottom", showarrow: false,
        text: "confirmed " + speedupText(champion.speedup), font: { size: 12, color: colour("good") } });
    }
    return { data: traces, layout: { shapes, annotations, xaxis: { title: overTime ? "minutes" : "trial" },
      yaxis: { title: kind.title, type: kind.log ? "log" : "linear" } } };
  };
  const node = chart("Best so far", 340, draw);
  const choices = [["by trial", false], ["by time", true]].map(([name, value]) => el("button", { type: "button",
    "aria-pressed": String(value === overTime), onclick: (event) => {
      overTime = value;
      choices.forEach((button) => button.setAttribute("aria-pressed", String(button === event.target)));
      drawChart(node);
    } }, name));
  const drawn = nth * run.every > 1 ? `Of ${run.every > 1 ? validTrials(run) : told.length} valid trials, 1 in ${nth * run.every} is drawn as a point. ` : "";
  return section("Best so far", drawn + (run.recorded ? "Each point is a trial; the line is the shortest time so far."
    : "Each point is a valid trial as the search measured it; the line is the best so far with its 95% interval. The dotted line is the baseline"
      + (run.headline && run.headline.confirmed ? ", the thin one what the champion reached in a fresh process." : ".")),
  el("div", { class: "bar" }, choices), node);
}

function validTrials(run) {
  return run.outcomes.filter((item) => item.kind === "ok").reduce((sum, item) => sum + item.count, 0);
}

function frontChart(front) {
  return chart("Pareto front", 300, () => ({
    data: [{ type: "scatter", mode: "lines+markers", x: front.map((row) => row.error * 100), y: front.map((row) => row.speedup),
      line: { shape: "vh", color: colour("accent"), width: 2 }, marker: { color: colour("accent"), size: 8 },
      hoverinfo: "text", text: front.map((row) => plain(`trial ${row.trial}: ${row.configuration}`)) }],
    layout: { xaxis: { title: "error, % of its limit" }, yaxis: { title: "speedup" } },
  }));
}

function dotRows(labels, groups, xTitle, left) {
  // groups: {name, colour, symbol, points: [{label, value, low, high, text}]}
  const data = groups.map((group) => ({ type: "scatter", mode: "markers", name: plain(group.name),
    y: group.points.map((point) => labels.indexOf(point.label) + (group.shift || 0)), x: group.points.map((point) => point.value),
    error_x: { type: "data", symmetric: false, array: group.points.map((point) => point.high - point.value),
      arrayminus: group.points.map((point) => point.value - point.low), color: group.colour, thickness: 1.5, width: 4 },
    marker: { color: group.colour, size: 9, symbol: group.symbol || "circle" },
    hoverinfo: "text", text: group.points.map((point) => plain(point.text)) }));
  return { data, layout: { showlegend: groups.length > 1,
    yaxis: { tickvals: labels.map((_, at) => at), ticktext: labels.map((label) => plain(shortened(label, left))),
      range: [labels.length - 0.5, -0.5], zeroline: false },
    xaxis: { title: xTitle },
    shapes: [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: 1, x1: 1, line: { color: colour("quiet"), width: 1, dash: "dot" } }] } };
}

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function labelWidth() {
  return window.innerWidth < 600 ? 22 : 60;
}

function casesChart(cases) {
  const labels = [...new Set(cases.map((item) => item.case))];
  return chart("Speedup per shape and variant", 90 + 30 * labels.length, () => {
    const group = (name, wanted, look) => ({ name, ...look, points: cases.filter(wanted).map((item) => ({
      label: item.case, value: item.speedup, low: item.low, high: item.high,
      text: `${item.case}: ${intervalText(item.speedup, item.low, item.high)}` })) });
    const groups = [
      group("warm", (item) => item.cache === "warm" && !item.held_out, { colour: colour("accent") }),
      group("cold", (item) => item.cache === "cold" && !item.held_out, { colour: colour("accent"), symbol: "circle-open", shift: 0.15 }),
      group("held out", (item) => item.cache === "warm" && item.held_out, { colour: colour("quiet"), symbol: "diamond" }),
      group("held out, cold", (item) => item.cache === "cold" && item.held_out, { colour: colour("quiet"), symbol: "diamond-open", shift: 0.15 }),
    ].filter((found) => found.points.length);
    return dotRows(labels, groups, "speedup", labelWidth());
  });
}

function ablationChart(rows) {
  const labels = rows.map((row) => row.change);
  return chart("Ablation", 70 + 24 * rows.length, () => dotRows(labels, [{ name: "ratio", colour: colour("accent"),
    points: rows.map((row) => ({ label: row.change, value: row.ratio, low: row.ratio_low, high: row.ratio_high,
      text: `${row.change}: ${intervalText(row.ratio, row.ratio_low, row.ratio_high)}` })) }], "speed against the champion", labelWidth()));
}

function parameterSections(run, rows) {
  const valid = rows.filter((row) => row.seen);
  const varied = run.parameters.map((parameter, at) => ({ ...parameter, at }))
    .filter((parameter) => parameter.values.length > 1);
  if (valid.length < 2 || !varied.length) return [];
  const kind = metric(run);
  const width = AXIS_PX * (varied.length + 1);
  const best = [...valid].sort((a, b) => (kind.better(kind.of(a.seen), kind.of(b.seen)) ? -1 : 1)).slice(0, MOST_LINES);
  const left = validTrials(run) - best.length;
  const few = sampled(run, valid);
  return [
    section("Parallel coordinates", "A line is a valid trial. " + (left ? `The best ${best.length} are shown. ` : "") + "Drag along an axis to keep only the lines through that range, click it to have all again; drag a name to move its axis.",
      el("div", { class: "scroll" }, el("div", { style: `min-width:${width}px` }, parallel(varied, best, kind)))),
    section("Effect of each parameter", `The ${kind.title} of ${run.every > 1 ? few.length + " valid trials (1 in " + run.every + ")" : "all valid trials"} by value: least, quartiles, most. Other parameters vary along, and the search tries more where it is better: a hint, not a proof.`,
      el("div", { class: "grid" }, varied.map((parameter) => chart("Effect of " + parameter.name, 220, () => effect(parameter, few, kind))))),
  ];
}

function parallel(varied, best, kind) {
  const shown = [...best].reverse();
  const values = shown.map((row) => kind.of(row.seen));
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const share = (value) => (most > least ? (value - least) / (most - least) : 1);
  const place = (parameter, at) => at / (parameter.values.length - 1);
  const axes = varied.map((parameter) => {
    const last = parameter.values.length - 1;
    const marked = last < MOST_TICKS ? parameter.values.map((_, at) => at) : [0, last];
    return { name: shortened(parameter.name, 14), ticks: marked.map((at) => [place(parameter, at), shortened(String(parameter.values[at]), 14)]) };
  });
  // The result stands first: of many axes the last ones are out of sight.
  axes.unshift({ name: kind.title, ticks: [0, 0.5, 1].map((at) => [at, figureText(least + at * (most - least), 3)]) });
  const lines = shown.map((row, at) => ({ share: shown.length > 1 ? at / (shown.length - 1) : 1,
    places: [share(values[at]), ...varied.map((parameter) => place(parameter, row.places[parameter.at]))] }));
  return parallelChart("Parallel coordinates", 420, axes, lines);
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

function effect(parameter, valid, kind) {
  const groups = parameter.values.map(() => []);
  for (const row of valid) groups[row.places[parameter.at]].push(kind.of(row.seen));
  const filled = groups.map((group, place) => ({ name: plain(shortened(parameter.values[place], 14)), values: group.sort((a, b) => a - b) }))
    .filter((group) => group.values.length);
  const each = (share) => filled.map((group) => quantile(group.values, share));
  // Short names of different values may be the same, so the boxes stand at numbers.
  const nth = Math.ceil(filled.length / MOST_TICKS);
  const named = filled.map((_, at) => at).filter((at) => at % nth === 0);
  return { data: [{ type: "box", x: filled.map((_, at) => at), lowerfence: each(0), q1: each(0.25), median: each(0.5),
    q3: each(0.75), upperfence: each(1), line: { color: colour("accent"), width: 1.5 }, fillcolor: colour("accent-soft"), hoverinfo: "y" }],
  layout: { margin: { l: 40, r: 10, t: 30, b: 30 },
    title: { text: plain(parameter.name), font: { size: 13 }, x: 0, xanchor: "left" },
    xaxis: { type: "linear", tickvals: named, ticktext: named.map((at) => filled[at].name), zeroline: false },
    yaxis: { type: kind.log ? "log" : "linear" } } };
}

function bars(names, groups) {
  return { data: groups.map((group) => ({ type: "bar", orientation: "h", name: plain(group.name), y: names.map(plain), x: group.values,
    marker: { color: group.colour }, hoverinfo: "text", textposition: "auto", text: group.texts.map(plain) })),
  layout: { barmode: "stack", showlegend: groups.length > 1, legend: { ...LEGEND, traceorder: "normal" }, yaxis: { autorange: "reversed", type: "category" }, xaxis: {} } };
}

function outcomeChart(outcomes) {
  return chart("Outcomes by kind", 60 + 28 * outcomes.length, () => bars(outcomes.map((item) => item.kind), [{ name: "trials",
    values: outcomes.map((item) => item.count), texts: outcomes.map((item) => String(item.count)),
    colour: outcomes.map((item) => colour(item.kind === "ok" ? "good" : "bad")) }]));
}

function stageChart(run) {
  const names = [...new Set([...run.stages, ...run.confirmation_stages].map(([name]) => name))];
  const sums = (stages) => names.map((name) => (stages.find(([known]) => known === name) || [name, 0, 0])[2]);
  const group = (name, stages, look) => ({ name, values: sums(stages), colour: look, texts: sums(stages).map((sum) => (sum ? figureText(sum, 3) + " s" : "")) });
  return chart("Time by stage", 90 + 28 * names.length, () => bars(names, [
    group("trials", run.stages, colour("accent")), group("confirmations", run.confirmation_stages, colour("cloud")),
  ].filter((found) => found.values.some(Boolean))));
}

function stateSection(run) {
  const figures = Object.entries(run.state.figures).filter(([, values]) => values.some((value) => value !== null));
  if (!figures.length) return null;
  const minutes = run.state.seconds.map((seconds) => seconds / 60);
  const throttled = run.state.throttled.filter(Boolean).length;
  return section("Device over the run", "Read right after each trial's last measurement. "
    + (throttled ? `${throttled} of ${minutes.length} readings name a reason for lower clocks (power cap included).` : "No reading names a reason for lower clocks."),
  el("div", { class: "grid" }, figures.map(([name, values]) => chart(name, 180, () => ({
    data: [{ type: "scatter", mode: "lines", x: minutes, y: values, line: { color: colour("accent"), width: 1.5 },
      hoverinfo: "text", text: values.map((value, at) => `${figureText(value)} at ${figureText(minutes[at], 3)} min${run.state.throttled[at] ? ", " + plain(run.state.throttled[at]) : ""}`) }],
    layout: { margin: { l: 44, r: 10, t: 30, b: 30 }, title: { text: plain(withUnit(name)), font: { size: 13 }, x: 0, xanchor: "left" }, xaxis: { title: "minutes" }, yaxis: { tickformat: "~f" } },
  })))));
}

// A figure's name in the store, `power_w`, as people write it: `power, W`.
function withUnit(name) {
  const units = { mhz: "MHz", w: "W", c: "°C", "1min": "mean of a minute" };
  const [, what, unit] = /^(.+)_([a-z0-9]+)$/.exec(name) || [];
  return unit in units ? `${what.replace(/_/g, " ")}, ${units[unit]}` : name.replace(/_/g, " ");
}
