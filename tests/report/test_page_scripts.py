"""Functions of the page's own scripts, called without a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import evotune
from evotune.report.data import RunData
from evotune.report.html import run_payload
from evotune.trial import Json, OutcomeKind

from .runs import failed, make_run, ok

ASSETS = Path(evotune.__file__).parent / "report" / "html" / "assets"
_EFFECT = """
const figureText = String;
const [values, few] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const rows = few.map((place) => ({ places: [place], seen: 1 + place }));
const kind = { of: (seen) => seen };
const { x, marks } = effect({ name: "TILE", at: 0, values }, rows, kind);
console.log(JSON.stringify([x.names, marks[0].points.map((point) => [point.x, point.middle])]));
"""
_TICKS = """
const [axis, range, most] = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(ticksOf(axis, range, most).map(([, text]) => text)));
"""
_RANGE = """
const MARKS = { dots: { x: (point) => [point.x], y: (point) => [point.y] } };
const figure = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(rangeOf(figure, "y")));
"""
_SPACED = """
const ticks = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(spaced(ticks, (text) => 8 * text.length).map(([, text]) => text)));
"""
_SCALES = """
const [range, values] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const scales = [false, true].map((log) => scaleOf(range, 100, log, true));
const both = (scale) => values.map((value) => [scale(value), scale.back(scale(value))]);
console.log(JSON.stringify(scales.map(both)));
"""
_ERROR = """
const [text, error] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const columns = resultColumns({ recorded: false });
console.log(JSON.stringify(compileFilter(text, columns)({ error })));
"""
_EXAMPLE = """
const section = (title, note, node) => node;
const chart = (label, height, make) => make();
const run = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { marks } = verifySection(run, trialRows(run));
console.log(JSON.stringify(marks[0].points.map((point) => [point.x, point.y])));
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
    names, boxes = called(("figures.js",), _EFFECT, [values, [0, 1, 1, 2]])
    assert names == values[:3]
    assert boxes == [[0, 1], [1, 2], [2, 3]]


def test_of_many_names_below_an_axis_those_are_written_that_do_not_touch() -> None:
    ticks = [[10 * at, str(at)] for at in range(40)]
    assert called(("axes.js",), _SPACED, ticks) == [str(n) for n in range(0, 40, 3)]
    assert called(("axes.js",), _SPACED, ticks[:5:4]) == ["0", "4"]
    assert called(("axes.js",), _SPACED, []) == []


@pytest.mark.parametrize(
    ("axis", "span", "most", "texts"),
    [
        ({}, [-0.1, 2.1], 5, ["0.0", "0.5", "1.0", "1.5", "2.0"]),
        ({}, [-2.5, 2.5], 4, ["−2", "0", "2"]),
        ({}, [0.31, 0.34], 3, ["0.31", "0.32", "0.33", "0.34"]),
        ({}, [0, 10_400], 4, ["0", "5,000", "10,000"]),
        ({}, [0, 3e9], 3, ["0", "1e9", "2e9", "3e9"]),
        ({"whole": True}, [0, 3], 10, ["0", "1", "2", "3"]),
        ({"log": True}, [8, 160], 8, ["10", "20", "50", "100"]),
        ({"log": True}, [0.002, 30_000], 8, ["0.01", "0.1", "1", "10", "100", "1,000", "10,000"]),
        ({"log": True}, [0.002, 30_000], 4, ["0.01", "1", "100", "10,000"]),
        ({"log": True}, [2e-9, 3e-7], 3, ["1e-8", "1e-7"]),
        ({"log": True}, [11, 14], 4, ["11", "12", "13", "14"]),
        ({"names": ["a", "b"]}, [-0.5, 1.5], 1, ["a", "b"]),
    ],
)  # fmt: skip
def test_ticks_stand_at_round_numbers(
    axis: Json, span: list[float], most: int, texts: list[str]
) -> None:
    assert called(("axes.js",), _TICKS, [axis, span, most]) == texts


def test_an_axis_shows_its_points_and_a_line_that_is_not_far_from_them() -> None:
    def span(*ys: float | None, rule: float | None = None, **axis: bool) -> Json:
        marks: list[Json] = [{"draw": "dots", "points": [{"x": 0, "y": y} for y in ys]}]
        if rule is not None:
            marks.append({"draw": "rule", "y": rule})
        return called(("axes.js",), _RANGE, {"x": {}, "y": axis, "marks": marks})

    assert span(1, None, 3) == pytest.approx([0.92, 3.08])
    assert span(2, 3, rule=1) == pytest.approx([0.92, 3.08])
    assert span(200, 201, rule=1) == pytest.approx([199.96, 201.04])  # the line would hide them
    assert span(5, 10, zero=True) == pytest.approx([0, 10.4])
    assert span(0, 1, 100, log=True) == pytest.approx([100**-0.04, 100**1.04])
    assert span(2) == pytest.approx([1.9, 2.1])
    assert span() == pytest.approx([-0.04, 1.04])


def test_a_place_of_an_axis_gives_its_value_again() -> None:
    linear, log = called(("axes.js",), _SCALES, [[1, 100], [1, 10, 100]])
    assert [place for place, _ in linear] == pytest.approx([100, 100 - 900 / 99, 0])
    assert [place for place, _ in log] == pytest.approx([100, 50, 0])
    assert [value for _, value in linear] == pytest.approx([1, 10, 100])
    assert [value for _, value in log] == pytest.approx([1, 10, 100])


def test_beside_the_baselines_stands_what_their_times_do_not_tell(tmp_path: Path) -> None:
    run = run_payload(RunData.load(make_run(tmp_path, [ok(1.5)])))
    given = {name: run[name] for name in ("baselines", "baselines_note")}
    heading, note, table = called(("sections.js",), _BASELINES, given)
    assert "timed alone" in heading
    assert "Do not divide their times by times of the leaderboard" in note
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


def test_the_guides_figure_has_a_point_for_each_trial_with_its_value(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```js\n(.*?)```", guide, re.DOTALL)
    outcomes = [ok(1.2), failed(OutcomeKind.COMPILE_ERROR), ok(1.5)]
    data = RunData.load(make_run(tmp_path, outcomes))
    (named,) = re.findall(r"`item\.trial\.outcome\.stage_s\.get\(\"(\w+)\"\)`", guide)
    payload = run_payload(data)
    taken = {trial.number: trial.outcome.stage_s.get(named) for trial in data.trials}
    payload["trials"] = {
        **payload["trials"],
        "verify_s": [taken[number] for number in payload["trials"]["number"]],
    }
    points = called(("sections.js",), example + _EXAMPLE, payload)
    assert sorted(points) == [[0, 0.25], [2, 0.25]]
