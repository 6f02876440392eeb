// Why the champion is fast, and what holds it: pictures of the explanation.

function explainSection(run) {
  const found = run.explanation;
  if (!found) return null;
  const note = found.limiter ? `Held by ${found.limiter}. Rule: ${found.rule}.` : "What holds it is not known: " + found.rule + ".";
  return section("Why it is fast, and what holds it", note, el("p", {}, found.headline),
    found.facts.length ? el("ul", {}, found.facts.map(([text, kind]) => el("li", {}, `${text} (${kind})`))) : null,
    found.units.length ? el("h3", {}, "Busy on " + found.case) : null,
    found.units.length ? rooflineChart(found.units) : null,
    found.stalls.length ? el("h3", {}, "Cycles that a warp waits between two instructions") : null,
    found.stalls.length ? stallsChart(found.stalls) : null,
    found.effects.length ? el("h3", {}, "What its choices are worth: time with the other value / time with this one") : null,
    found.effects.length ? effectsChart(found.effects) : null,
    found.effects.some((item) => item.because) ? simpleTable(["choice", "goes with"],
      found.effects.filter((item) => item.because).map((item) => [item.choice, item.because])) : null,
    found.decisive.length ? el("h3", {}, "What decides over the space") : null,
    found.decisive.length ? decisiveChart(found.decisive) : null,
    found.texts.length ? simpleTable(["", "over the space"], found.texts) : null,
    found.next.length ? el("h3", {}, "What to try next") : null,
    found.next.length ? simpleTable(["kind", "what", "estimate", "because"],
      found.next.map(([kind, text, estimate, rule]) => [kind, text, estimate.toFixed(2) + "x", rule]), [false, false, true, false]) : null,
    found.missing.length ? el("details", {}, el("summary", {}, "What was not measured"),
      el("ul", {}, found.missing.map((text) => el("li", {}, text)))) : null);
}

function rooflineChart(units) {
  return chart("Roofline", 60 + 28 * units.length, () => {
    const made = bars(units.map(([name]) => name), [{ name: "share", values: units.map(([, share]) => 100 * share),
      texts: units.map(([, share, kind]) => `${(100 * share).toFixed(0)}% ${kind}`),
      colour: units.map(([, , kind]) => colour(kind === "measured" ? "accent" : "cloud")) }]);
    made.layout.xaxis = { title: "busy, % of the ceiling", range: [0, 100] };
    return made;
  });
}

function stallsChart(stalls) {
  return chart("Stalls", 60 + 28 * stalls.length, () => bars(stalls.map(([name]) => name), [{ name: "cycles",
    values: stalls.map(([, cycles]) => cycles), texts: stalls.map(([, cycles]) => cycles.toFixed(1)), colour: colour("accent") }]));
}

function decisiveChart(decisive) {
  const shown = decisive.filter(([, best, model]) => Math.max(best, model || 0) >= 0.01);
  const group = (name, at, look) => ({ name, values: shown.map((row) => 100 * (row[at] || 0)), colour: look,
    texts: shown.map((row) => (row[at] ? (100 * row[at]).toFixed(0) + "%" : "")) });
  return chart("Importance", 90 + 40 * shown.length, () => {
    const made = bars(shown.map(([name]) => name), [group("among the best trials", 1, colour("accent")), group("in the model", 2, colour("cloud"))]);
    made.layout.barmode = "group";
    made.layout.xaxis = { title: "share of the importance, %" };
    return made;
  });
}

function effectsChart(effects) {
  const labels = effects.map((item) => item.choice);
  const group = (name, look) => ({ name, colour: look, points: effects.filter((item) => item.basis === name).map((item) => ({
    label: item.choice, value: item.worth, low: item.low, high: item.high,
    text: `${item.choice}: ${intervalText(item.worth, item.low, item.high)}` })) });
  return chart("Effects", 90 + 24 * labels.length, () => dotRows(labels,
    [group("paired", colour("accent")), group("trials", colour("good")), group("model", colour("cloud"))].filter((one) => one.points.length),
    "worth", labelWidth()));
}
