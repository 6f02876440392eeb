// Sections of texts and tables: those of one run, and those that compare several.

const TIMED_NOTE = "Baseline time / candidate time: above 1 is faster. Brackets and bars are 95% intervals.";

const LEADERS = 10; // rows of each run on the common leaderboard

function trialRows(run) {
  const columns = run.trials;
  return columns.number.map((number, at) => ({
    run, at, number,
    place: columns.place[at], outcome: columns.outcome[at], reason: columns.reasons[columns.reason[at]],
    speedup: columns.speedup[at], low: columns.low[at], high: columns.high[at], time_us: columns.time_us[at],
    error: columns.error[at], confirmed: columns.confirmed[at] === 1, flags: columns.flags[at],
    same_code: columns.same_code[at], finished_s: columns.finished_s[at], seen: columns.seen[at],
    places: columns.configurations[at],
  }));
}

function parameterText(run, row, at) {
  const place = row.places[at];
  return place === null || place === undefined ? "-" : run.parameters[at].values[place];
}

function configurationText(run, row) {
  return run.parameters.map((parameter, at) => parameter.name + "=" + parameterText(run, row, at)).join(" ");
}

// Of a run too large for a page: the trials that stand for all of them.
function sampled(run, rows) {
  return rows.filter((row) => row.number % run.every === 0);
}

// What is compared within a run: speedups, or the times of a recording.
function metric(run) {
  return run.recorded
    ? { title: "time ms", of: (seen) => seen[0] / 1000, better: (a, b) => a < b, log: true }
    : { title: "speedup", of: (seen) => seen[0], better: (a, b) => a > b, log: false };
}

function hero(run) {
  const best = run.headline;
  const figure = !best ? el("div", { class: "figure bad" }, "No valid candidate")
    : best.speedup === null ? el("div", { class: "figure" }, best.time)
      : el("div", { class: ["figure", best.confirmed && !best.noise && verdict(best.low, best.high)].filter(Boolean).join(" ") }, speedupText(best.speedup),
        el("small", {}, ` [${best.low.toFixed(3)}, ${best.high.toFixed(3)}] against ${best.baseline}`));
  const standing = best && (best.noise ? "timed again in fresh processes, which do not agree" : best.confirmed ? "confirmed in a fresh process on unseen inputs"
    : "not confirmed: the search's own figure, which flatters the best of many");
  return el("section", { class: "hero" },
    el("div", { class: "where" }, `${run.space} on ${run.device}`), figure,
    el("div", {}, best && !run.recorded
      ? `${best.time}, trial ${best.trial} of ${run.total}, ${standing}.` : run.sentence),
    best ? el("code", { class: "configuration" }, best.configuration) : null,
    answerList(run),
    ...run.warnings.filter(([number]) => number === run.leader).map(([, text]) =>
      el("p", { class: "bad" }, "Warning: " + text)),
    ...(run.disqualified.length ? [el("details", {}, el("summary", {},
      `${run.disqualified.length} candidates failed their confirmation`),
    simpleTable(["trial", "reason"], run.disqualified, [true, false]))] : []));
}

function answerList(run) {
  return el("dl", { class: "answers" }, run.answers.flatMap(({ question, sentences, commands }) => [el("dt", {}, question),
    el("dd", {}, sentences.map((text) => el("p", {}, text)),
      commands.map(([line, reason]) => el("p", {}, el("code", {}, line), " ", el("span", { class: "quiet" }, reason))))]));
}

function leaderboardSection(run, rows) {
  const columns = [...resultColumns(run), ...run.parameters.map((parameter, at) => ({
    name: parameter.name, numeric: parameter.values.every((value) => !Number.isNaN(Number(value))),
    value: (row) => numberOr(parameterText(run, row, at)), text: (row) => parameterText(run, row, at),
  })), reasonColumn()];
  const kinds = run.outcomes.map((item) => item.kind);
  const which = run.every > 1 ? `The first rows, every trial that was the best so far, and 1 in ${run.every} of the other trials, `
    + `which have no place here: ${rows.length} of ${run.total} trials; ${run.csv_command} has all. ` : "Every trial. ";
  return section("Leaderboard", which + "Rows that share a place (1=) have overlapping intervals: time does not "
    + "tell them apart. Click a heading to sort, a row for its cases.",
  dataTable(columns, rows, { label: "trials", outcomes: kinds, outcomeOf: (row) => row.outcome,
    detail: (row) => (run.details[row.number] ? () => rowDetail(run, row) : null) }));
}

function numberOr(text) {
  const number = Number(text);
  return text === "-" || text === "" ? null : Number.isNaN(number) ? text : number;
}

function resultColumns(run) {
  const columns = [
    { name: "place", numeric: true, value: (row) => (row.place === null ? null : parseInt(row.place, 10)),
      text: (row) => row.place || "-" },
    { name: "trial", numeric: true, value: (row) => row.number, text: (row) => String(row.number) },
  ];
  if (!run.recorded) {
    columns.push({ name: "speedup", title: "Sort by speedup; brackets are the 95% interval", numeric: true, downFirst: true,
      value: (row) => row.speedup, text: (row) => intervalText(row.speedup, row.low, row.high),
      kind: (row) => (row.speedup === null ? "" : verdict(row.low, row.high)) });
  }
  columns.push({ name: "time", title: "Microseconds, geometric mean over the timed cases", numeric: true,
    value: (row) => row.time_us, text: (row) => (row.time_us === null ? "-" : figureText(row.time_us) + " µs") });
  if (!run.recorded) {
    columns.push(
      { name: "error", title: "Largest error, % of its limit", numeric: true,
        value: (row) => (row.error === null ? null : row.error * 100), // as it is shown: the filter compares it
        text: (row) => (row.error === null ? "-" : (row.error * 100).toFixed(0) + "%") },
      { name: "confirmed", value: (row) => (row.confirmed ? "yes" : "no"), text: (row) => (row.confirmed ? "yes" : "no"),
        kind: (row) => (row.confirmed ? "good" : "quiet") });
  }
  columns.push(
    { name: "outcome", value: (row) => row.outcome, text: (row) => row.outcome,
      kind: (row) => (row.outcome === "ok" ? "" : "bad") },
    { name: "flags", value: (row) => row.flags, text: (row) => row.flags });
  return columns;
}

function reasonColumn() {
  return { name: "reason", long: true, value: (row) => row.reason, text: (row) => row.reason };
}

function rowDetail(run, row) {
  const detail = run.details[row.number];
  const same = detail.duplicates.length ? `Same code: trials ${detail.duplicates.join(", ")}. ` : "";
  return el("div", {}, el("code", { class: "configuration" }, configurationText(run, row)),
    el("p", { class: "note" }, same + detail.compiled), caseTable(detail.cases));
}

function caseTable(cases) {
  return simpleTable(["case", "", "time µs", "baseline", "baseline µs", "speedup [95%]", "samples"],
    cases.map((item) => [item.case, [item.held_out ? "held out" : "", item.cache === "cold" ? "cold" : ""].filter(Boolean).join(", "),
      figureText(item.time_us), item.baseline, figureText(item.baseline_us),
      intervalText(item.speedup, item.low, item.high), String(item.samples)]),
    [false, false, true, false, true, true, true]);
}

function casesSection(run, rows) {
  const leader = rows.find((row) => row.number === run.leader);
  const detail = leader && run.details[leader.number];
  if (!detail || !detail.cases.length) return null;
  return section("Champion by shape and variant", TIMED_NOTE
    + " Cold: inputs come from memory, not from a cache. Held-out shapes never steered the search.",
  casesChart(detail.cases), el("details", {}, el("summary", {}, "As a table"), caseTable(detail.cases)),
  baselinesTable(run));
}

function baselinesTable(run) {
  if (!run.baselines.length) return [];
  return [el("h3", {}, "Baselines, each timed alone at the start"), el("p", { class: "note" }, run.baselines_note),
    simpleTable(["case", "baseline", "time µs", "passes the gate", "measured against"],
      run.baselines.map(([label, name, time, passed, chosen]) =>
        [label, name, figureText(time), passed ? "yes" : "no", chosen ? "yes" : ""]), [false, false, true, false, false])];
}

function frontSection(run) {
  if (!run.front.length) return null;
  return section("Pareto front", "No other trial is both faster and more accurate than one of these. Figures as the search "
    + "measured them; error is the share of the limit in the check that came closest to it.", frontChart(run.front),
  simpleTable(["trial", "speedup", "error / limit", "confirmed", "configuration"], run.front.map((row) => [String(row.trial),
    speedupText(row.speedup), (row.error * 100).toFixed(1) + "%", row.confirmed ? "yes" : "no", row.configuration]),
  [true, true, true, false, false]));
}

function defaultSection(run) {
  const found = run.default;
  if (!found) return null;
  const results = [["champion", found.leader], ["default", found.default]].filter(([, result]) => result);
  return section("Champion against the default", "The default is the space's own starting point. Both as the search measured them.",
    simpleTable(["", "trial", "result", "time"], results.map(([name, result]) =>
      [name, String(result.trial), result.result, result.time]), [false, true, true, true]),
    found.default ? null : el("p", { class: "note" }, "The default itself was not among the trials."),
    found.rows.length ? simpleTable(["parameter", "default", "champion"], found.rows)
      : el("p", {}, "The champion is the default."));
}

function ablationSection(run) {
  if (run.recorded) return null;
  const found = run.ablation;
  const title = "The worth of each choice";
  if (!found) {
    return section(title, null, el("p", { class: "note" }, "Not measured. "
      + "This command sets each of the champion's parameters to its default, a neighbouring value or its smallest number, and measures both in turn:"),
    el("pre", {}, run.ablate_command));
  }
  const good = found.rows.filter((row) => row.ratio !== null);
  const failed = found.rows.filter((row) => row.ratio === null);
  return section(title, `The champion (trial ${found.trial}) with one parameter changed, measured in alternation with it in one process. `
    + "Below 1: the change makes it slower. " + found.date.replace(/^(.{10})T(.{5}).*\+00:00$/, "Measured on $1 at $2 UTC."), ablationChart(good),
  el("details", {}, el("summary", {}, "As a table"),
    simpleTable(["change", "why", "speed against the champion [95%]"],
      good.map((row) => [row.change, row.why, intervalText(row.ratio, row.ratio_low, row.ratio_high)]))),
  failed.length ? el("details", {}, el("summary", {}, `${failed.length} changes that do not work`),
    simpleTable(["change", "outcome", "reason"], failed.map((row) => [row.change, row.outcome, row.reason]))) : null);
}

function outcomeSection(run) {
  if (!run.outcomes.length) return null;
  const rows = run.outcomes.flatMap((item) => [
    ...item.reasons.map(([count, text]) => [String(count), item.kind, text]),
    ...(item.more ? [["", item.kind, `and ${item.more} rarer reasons`]] : [])]);
  return section("Outcomes", "What the search saw. Reasons that differ only in their numbers are counted together, with one as the example.",
    outcomeChart(run.outcomes), rows.length ? simpleTable(["trials", "outcome", "reason"], rows, [true, false, false]) : null);
}

function stageSection(run) {
  if (!run.stages.length) return null;
  return section("Time by stage", "Seconds over all trials. Stages overlap: compilers run beside each other and, on a GPU, beside measuring.",
    stageChart(run), el("details", {}, el("summary", {}, "As a table"),
      simpleTable(["stage", "of", "count", "sum s", "median s"], [
        ...run.stages.map(([name, count, total, median]) => [name, "trials", String(count), figureText(total), figureText(median)]),
        ...run.confirmation_stages.map(([name, count, total, median]) =>
          [name, "confirmations", String(count), figureText(total), figureText(median)])],
      [false, false, true, true, true])));
}

function domainSection(run) {
  const found = run.domain;
  return found && section("Domain", found.note, simpleTable(found.columns, found.rows, found.numeric));
}

function devicesSection(run) {
  const found = run.devices;
  return found && section("Devices", found.note, simpleTable(found.columns, found.rows, found.numeric));
}

function environmentSection(run) {
  return section("Run and environment", null,
    el("dl", { class: "facts" }, run.facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
    el("h3", {}, "The command that made it"), el("pre", {}, run.command || "-"),
    el("details", {}, el("summary", {}, "The whole environment"), el("pre", {}, JSON.stringify(run.environment, null, 2))));
}

function comparisonSections(runs, open) {
  const rows = runs.map((run, at) => ({ run, at }));
  const space = { name: "space", value: (row) => row.run.space, text: (row) => row.run.space };
  const device = { name: "device", value: (row) => row.run.device, text: (row) => row.run.device };
  const run = { name: "run", value: (row) => row.run.id, text: (row) => row.run.id };
  const overview = dataTable([
    space,
    { name: "speedup", numeric: true, downFirst: true, value: (row) => (row.run.headline ? row.run.headline.speedup : null),
      text: (row) => (row.run.headline ? intervalText(row.run.headline.speedup, row.run.headline.low, row.run.headline.high) : "-") },
    { name: "time", numeric: true, value: (row) => (row.run.headline ? row.run.headline.time_us : null),
      text: (row) => (row.run.headline ? row.run.headline.time : "-") },
    { name: "against", value: (row) => (row.run.headline ? row.run.headline.baseline : ""),
      text: (row) => (row.run.headline ? row.run.headline.baseline : "-") },
    { name: "confirmed", value: (row) => String(row.run.headline && row.run.headline.confirmed),
      text: (row) => (row.run.headline && row.run.headline.confirmed ? "yes" : "no") },
    { name: "trials", numeric: true, value: (row) => row.run.total, text: (row) => String(row.run.total) },
    device, run,
  ], rows, { label: "runs" });
  const all = runs.flatMap((run) => trialRows(run).filter((row) => row.place !== null).slice(0, LEADERS));
  const board = dataTable([
    space,
    ...resultColumns({ recorded: runs.every((run) => run.recorded) }).filter((column) => column.name !== "outcome"),
    device, run,
    { name: "configuration", value: (row) => configurationText(row.run, row), text: (row) => configurationText(row.run, row) },
  ], all, { label: "leaders" });
  return [
    section("Runs", "Speedups are comparable where the baseline and the cases are the same.", overview,
      el("div", { class: "tabs", role: "tablist", "aria-label": "Run to show below" }, runs.map((run, at) =>
        el("button", { type: "button", role: "tab", onclick: () => open(at) },
          run.id.includes(run.space) ? run.id : run.space + " · " + run.id)))),
    section("Leaderboard across runs", `The first ${LEADERS} rows of each run.`, board),
  ];
}
