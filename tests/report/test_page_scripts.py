"""Functions of the page's own scripts, called without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import evotune
from evotune.report.data import RunData
from evotune.report.html._payload import run_payload
from evotune.trial import Json

from .runs import make_run, ok

ASSETS = Path(evotune.__file__).parent / "report" / "html" / "assets"
_EFFECT = """
const plain = (text) => text;
const colour = () => "black";
const [values, few] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const rows = few.map((place) => ({ places: [place], seen: 1 + place }));
const kind = { of: (seen) => seen };
const { data, layout } = effect({ name: "TILE", at: 0, values }, rows, kind);
console.log(JSON.stringify([data[0].x, data[0].median, layout.xaxis]));
"""
_ERROR = """
const [text, error] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const columns = resultColumns({ recorded: false });
console.log(JSON.stringify(compileFilter(text, columns)({ error })));
"""
_BASELINES = """
const el = (tag, attributes, ...children) => children.flat().join(" ");
const simpleTable = (headings, rows) => rows.flat().join(" ");
const figureText = String;
const run = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(baselinesTable(run)));
"""


def called(assets: tuple[str, ...], program: str, given: Json) -> Json:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    text = "".join((ASSETS / name).read_text(encoding="utf-8") for name in assets)
    done = subprocess.run(
        [node, "-e", text + program],
        input=json.dumps(given),
        capture_output=True,
        check=True,
        text=True,
    )
    found: Json = json.loads(done.stdout)
    return found


def test_values_that_begin_alike_have_boxes_of_their_own() -> None:
    values = ["the same long beginning 1", "the same long beginning 2", "other", "never measured"]
    x, median, axis = called(("plots.js",), _EFFECT, [values, [0, 1, 1, 2]])
    assert (x, median) == ([0, 1, 2], [1, 2, 3])
    assert axis["tickvals"] == [0, 1, 2]
    assert axis["ticktext"] == ["the same long…", "the same long…", "other"]


def test_of_many_values_some_are_named() -> None:
    _, median, axis = called(("plots.js",), _EFFECT, [list(map(str, range(40))), list(range(40))])
    assert len(median) == 40
    assert axis["ticktext"] == [str(n) for n in range(0, 40, 3)]


def test_beside_the_baselines_stands_what_their_times_do_not_tell(tmp_path: Path) -> None:
    run = run_payload(RunData.load(make_run(tmp_path, [ok(1.5)])))
    given = {name: run[name] for name in ("baselines", "baselines_note")}
    heading, note, table = called(("sections.js",), _BASELINES, given)
    assert "timed alone" in heading
    assert "Do not divide them by times of the leaderboard" in note
    assert "sdpa:math 2500 yes" in table
    assert called(("sections.js",), _BASELINES, {**given, "baselines": []}) == []


@pytest.mark.parametrize(
    ("text", "error", "kept"),
    [("error>50", 0.8, True), ("error>50", 0.31, False), ("error<50", 0.31, True),
     ("error<50", None, False)],
)  # fmt: skip
def test_errors_are_filtered_by_the_percents_that_are_shown(
    text: str, error: float | None, kept: bool
) -> None:
    assert called(("sections.js", "filter.js"), _ERROR, [text, error]) == kept
