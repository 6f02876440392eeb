// Why the champion is fast, and what holds it: the explanation with its pictures.

function explainSection(run) {
  const found = run.explanation;
  if (!found) return null;
  const table = (title, columns, rows, numeric) => (rows.length ? [el("h3", {}, title), simpleTable(columns, rows, numeric)] : []);
  return section("Why it is fast, and what holds it", null, el("p", {}, found.headline),
    found.facts.length ? el("ul", {}, found.facts.map(([text, kind]) => el("li", {}, text, " ", el("span", { class: "quiet" }, kind)))) : null,
    el("p", { class: "note" }, `Rule: ${found.rule}.`),
    el("div", { class: "evotune-pictures" }, found.pictures.map(pictureFigure)),
    found.no_waits ? el("p", { class: "note" }, found.no_waits) : null,
    table("Differences in the machine that go with a choice", ["choice", "goes with"], found.reasons),
    table("Over the space", ["", "found"], found.texts),
    table("What to try next", ["kind", "what", "estimate", "because"], found.next, [false, false, true, false]),
    found.missing.length ? el("details", {}, el("summary", {}, "Measurements that are missing"),
      el("ul", {}, found.missing.map((text) => el("li", {}, text)))) : null);
}
