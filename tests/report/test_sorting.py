"""The order of a page's rows, by the page's own script, and of a parameter's values in reports."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import evotune
from evotune.report.data import RunData
from evotune.report.html import run_payload
from evotune.trial import Json, Value

from .runs import make_run, ok

TABLE = Path(evotune.__file__).parent / "report" / "html" / "assets" / "table.js"
_PROGRAM = """
const [cells, down] = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cells.sort((a, b) => compareCells(a, b, down))));
"""


def sorted_by_the_page(cells: list[Json], *, down: bool = False) -> list[Json]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    done = subprocess.run(
        [node, "-e", TABLE.read_text(encoding="utf-8") + _PROGRAM],
        input=json.dumps([cells, down]),
        capture_output=True,
        check=True,
        text=True,
    )
    found: list[Json] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "ordered",
    [
        [-5, 9, 10, 100.5, None],
        ["9", "10", "1e3", "-"],
        ["1.25x", "1.5x", "12x", ""],
        ["900 ns", "1.5 µs", "2 ms", "1 s", "2 min"],
        ["512 B", "64 KiB", "100 KiB", "1 MiB", "-"],
        [8, 16, "auto", "tile9", "tile10"],
        ["8x8", "8x16", "16x8"],
    ],
)
def test_cells_sort_by_value_and_missing_ones_stay_last(ordered: list[Json]) -> None:
    mixed = random.Random(1).sample(ordered, len(ordered))
    assert sorted_by_the_page(mixed) == ordered
    missing = [cell for cell in ordered if cell in (None, "", "-")]
    present = [cell for cell in ordered if cell not in (None, "", "-")]
    assert sorted_by_the_page(mixed, down=True) == [*reversed(present), *missing]


def test_values_of_a_parameter_are_listed_in_order(tmp_path: Path) -> None:
    values: list[Value] = ["tile10", 16, "auto", 8, "tile9", 100]
    run = make_run(
        tmp_path,
        [ok(1.0 + n) for n in range(len(values))],
        configurations={n: {"TILE": value} for n, value in enumerate(values)},
    )
    (parameter,) = run_payload(RunData.load(run))["parameters"]
    assert parameter["values"] == ["8", "16", "100", "auto", "tile9", "tile10"]
