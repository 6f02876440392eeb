// The page of one run, from the top, and the figures in it: functions that give figures as charts.js describes them.

const MOST_TICKS = 16;
const AXIS_PX = 62; // the least between parallel axes: nineteen on a desktop's screen, more or a phone scroll
const MOST_LINES = 2000; // parallel coordinates of more are slow to draw, and a solid block to read
const ROW_PX = 28;
const ASIDE = 0.17; // of a row: what a cold measurement stands below the warm one of its case

// A section of a run's page is a line here. Those that have nothing to show are null.
function runSections(run) {
  const rows = trialRows(run);
  return [
    hero(run), progressSection(run, rows), leaderboardSection(run, rows), frontSection(run), casesSection(run, rows),
    domainSection(run), explainSection(run),
    defaultSection(run), ablationSection(run), ...parameterSections(run, rows), outcomeSection(run),
    stageSection(run), devicesSection(run), stateSection(run), environmentSection(run),
  ].filter(Boolean);
}

function progressSection(run, rows) {
  const told = rows.filter((row) => row.seen && row.same_code === null).sort((a, b) => a.number - b.number);
  if (!told.length) return null;
  let overTime = false;
  const node = chart("Best so far", 340, () => progress(run, told, overTime));
  const choices = [["by trial", false], ["by time", true]].map(([name, value]) => el("button", { type: "button",
    "aria-pressed": String(value === overTime), onclick: (event) => {
      overTime = value;
      choices.forEach((button) => button.setAttribute("aria-pressed", String(button === event.target)));
      drawWhole(node);
    } }, name));
  const drawn = run.every > 1 ? `Of ${validTrials(run)} valid trials, 1 in ${run.every} is drawn as a point. ` : "";
  const what = run.recorded ? "Each point is a trial; the line is the shortest time so far."
    : "Each point is a valid trial as the search measured it; the line is the best so far with its 95% interval. The dotted line is the baseline"
      + (run.headline && run.headline.confirmed ? ", the thin one what the champion reached in a fresh process." : ".");
  return section("Best so far", drawn + what + " Drag over a part to enlarge it, double-click to see all again.",
    el("div", { class: "bar" }, choices), node);
}

function progress(run, told, overTime) {
  const kind = metric(run);
  const at = (row) => (overTime ? row.finished_s / 60 : row.number);
  const rows = overTime ? [...told].sort((a, b) => a.finished_s - b.finished_s) : told;
  const best = [];
  for (const row of rows) {
    const last = best[best.length - 1];
    if (!last || kind.better(kind.of(row.seen), kind.of(last.seen))) best.push(row);
  }
  const cloud = new Set([...sampled(run, rows), ...best]);
  const stairs = [...best.map((row) => [at(row), row]), [at(rows[rows.length - 1]), best[best.length - 1]]];
  const marks = [{ draw: "dots", look: "cloud", size: 2, points: [...cloud].map((row) => ({ x: at(row), y: kind.of(row.seen),
    text: `trial ${row.number}: ${figureText(kind.of(row.seen))}` })) }];
  if (!run.recorded) {
    marks.push({ draw: "band", look: "accent", points: stairs.map(([x, row]) => ({ x, low: row.seen[1], high: row.seen[2] })) },
      { draw: "rule", look: "quiet", y: 1, dashed: true });
  }
  marks.push({ draw: "line", look: "accent", step: "after", points: stairs.map(([x, row]) => ({ x, y: kind.of(row.seen) })) });
  const champion = run.headline;
  if (champion && champion.confirmed && champion.speedup !== null) {
    marks.push({ draw: "rule", look: "good", y: champion.speedup, label: "confirmed " + speedupText(champion.speedup) });
  }
  return { x: { title: overTime ? "minutes" : "trial", whole: !overTime }, y: { title: kind.title, log: kind.log }, marks };
}

function validTrials(run) {
  return run.outcomes.filter((item) => item.kind === "ok").reduce((sum, item) => sum + item.count, 0);
}

function frontChart(front) {
  const points = front.map((row) => ({ x: row.error * 100, y: row.speedup, text: `trial ${row.trial}: ${row.configuration}` }));
  return chart("Pareto front", 300, () => ({ x: { title: "error, % of its limit" }, y: { title: "speedup" },
    marks: [{ draw: "line", look: "accent", step: "before", points: points.map(({ x, y }) => ({ x, y })) },
      { draw: "dots", look: "accent", points }] }));
}

// Intervals in named rows, against the line at 1.
function intervals(names, marks, title) {
  return { x: { title }, y: { names }, marks: [{ draw: "rule", look: "quiet", x: 1, dashed: true }, ...marks.map((mark) => ({ draw: "dots", ...mark }))] };
}

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function casesChart(cases) {
  const names = [...new Set(cases.map((item) => item.case))];
  const aside = cases.some((item) => item.cache === "cold") ? ASIDE : 0;
  const marks = [
    { name: "warm", look: "accent" }, { name: "cold", look: "accent", hollow: true },
    { name: "held out", look: "quiet", symbol: "diamond" }, { name: "held out, cold", look: "quiet", symbol: "diamond", hollow: true },
  ].map((mark) => ({ ...mark, points: cases
    .filter((item) => (item.cache === "cold") === Boolean(mark.hollow) && item.held_out === Boolean(mark.symbol))
    .map((item) => ({ x: item.speedup, low: item.low, high: item.high, y: names.indexOf(item.case) + (mark.hollow ? aside : -aside),
      text: `${item.case}: ${intervalText(item.speedup, item.low, item.high)}` })) }));
  return chart("Speedup per shape and variant", 60 + (aside ? 34 : ROW_PX) * names.length, () => intervals(names, marks.filter((mark) => mark.points.length), "speedup"));
}

function ablationChart(rows) {
  const points = rows.map((row, at) => ({ x: row.ratio, low: row.ratio_low, high: row.ratio_high, y: at,
    text: `${row.change}: ${intervalText(row.ratio, row.ratio_low, row.ratio_high)}` }));
  return chart("Ablation", 60 + 24 * rows.length, () => intervals(rows.map((row) => row.change), [{ look: "accent", points }], "speed against the champion"));
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
  const filled = groups.map((group, place) => ({ name: parameter.values[place], values: group.sort((a, b) => a - b) }))
    .filter((group) => group.values.length);
  const points = filled.map(({ name, values }, x) => {
    const [least, lower, middle, upper, most] = [0, 0.25, 0.5, 0.75, 1].map((share) => quantile(values, share));
    const said = [["most", most], ["upper quartile", upper], ["median", middle], ["lower quartile", lower], ["least", least]];
    return { x, least, lower, middle, upper, most, text: [name, ...said.map(([what, value]) => `${what}: ${figureText(value)}`)].join("\n") };
  });
  return { title: parameter.name, x: { names: filled.map((group) => group.name), bare: true }, y: { log: kind.log }, marks: [{ draw: "boxes", look: "accent", points }] };
}

function outcomeChart(outcomes) {
  const points = outcomes.map((item, y) => ({ from: 0, x: item.count, y, look: item.kind === "ok" ? "good" : "bad",
    label: String(item.count), text: `${item.kind}: ${item.count}` }));
  return chart("Outcomes by kind", 34 + ROW_PX * outcomes.length, () => ({ x: { zero: true, whole: true },
    y: { names: outcomes.map((item) => item.kind), bare: true }, marks: [{ draw: "bars", points }] }));
}

function stageChart(run) {
  const names = [...new Set([...run.stages, ...run.confirmation_stages].map(([name]) => name))];
  const sum = (stages, name) => (stages.find(([known]) => known === name) || [name, 0, 0])[2];
  const bars = (name, look, stages, before) => ({ draw: "bars", name, look, points: names.map((stage, y) => {
    const [from, seconds] = [sum(before, stage), sum(stages, stage)];
    const text = figureText(seconds, 3) + " s";
    return { from, x: from + seconds, y, label: text, text: `${stage}, ${name}: ${text}`, covered: stages === run.stages && sum(run.confirmation_stages, stage) > 0 };
  }) });
  const marks = [bars("trials", "accent", run.stages, []), bars("confirmations", "cloud", run.confirmation_stages, run.stages)];
  return chart("Time by stage", 54 + ROW_PX * names.length, () => ({ x: { title: "seconds", zero: true }, y: { names, bare: true },
    marks: marks.filter((mark) => mark.points.some((point) => point.x > point.from)) }));
}

function stateSection(run) {
  const figures = Object.entries(run.state.figures).filter(([, values]) => values.some((value) => value !== null));
  if (!figures.length) return null;
  const minutes = run.state.seconds.map((seconds) => seconds / 60);
  const throttled = run.state.throttled.filter(Boolean).length;
  return section("Device over the run", "Read right after each trial's last measurement. "
    + (throttled ? `${throttled} of ${minutes.length} readings name a reason for lower clocks (power cap included).` : "No reading names a reason for lower clocks."),
  el("div", { class: "grid" }, figures.map(([name, values]) => chart(name, 190, () => readings(withUnit(name), minutes, values, run.state.throttled)))));
}

function readings(title, minutes, values, throttled) {
  const points = values.map((value, at) => ({ x: minutes[at], y: value === null ? NaN : value,
    text: `${figureText(value)} at ${figureText(minutes[at], 3)} min${throttled[at] ? ", " + throttled[at] : ""}` }));
  return { title, x: { title: "minutes" }, y: {}, marks: [{ draw: "line", look: "accent", points }] };
}

// A figure's name in the store, `power_w`, as people write it: `power, W`.
function withUnit(name) {
  const units = { mhz: "MHz", w: "W", c: "°C", "1min": "mean of a minute" };
  const [, what, unit] = /^(.+)_([a-z0-9]+)$/.exec(name) || [];
  return unit in units ? `${what.replace(/_/g, " ")}, ${units[unit]}` : name.replace(/_/g, " ");
}
