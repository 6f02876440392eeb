"""A champion's domain in every report that shows champions."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from evotune.report.data import RunData
from evotune.report.front import domain_table, domain_text
from evotune.report.html import run_payload
from evotune.trial import Domain, Region

from .runs import make_run, ok, text_of

FIXED = {"dtype": "float16", "head_dim": 64}
DOMAIN = Domain(
    "Test | GPU",
    132,
    (
        Region({**FIXED, "causal": False}, {"heads": (1, 40), "softmax_scale": (0.0157, 1.0)}, 57),
        Region({**FIXED, "causal": True}, {"heads": (8, 8), "softmax_scale": (0.125, 0.125)}, 6),
    ),
)
ROWS = [
    ["float16", "64", "false", "1 to 40", "0.0157 to 1", "57"],
    ["float16", "64", "true", "8", "0.125", "6"],
]


def data(tmp_path: Path, *, confirmed: bool = True) -> RunData:
    champion = msgspec.structs.replace(ok(2.0), domain=DOMAIN)
    confirmations = {1: champion} if confirmed else {}
    return RunData.load(make_run(tmp_path, [ok(1.0), ok(2.0)], confirmations=confirmations))


def test_a_row_a_region_and_one_figure_where_nothing_varied() -> None:
    table = domain_table(DOMAIN)
    assert [list(row) for row in table.rows] == ROWS
    assert table.columns == ("dtype", "head_dim", "causal", "heads", "softmax_scale", "cases")
    assert domain_text(DOMAIN) == "on Test | GPU (132 multiprocessors), contiguous tensors"
    assert domain_table(Domain("CPU", 0, ())).rows == ()
    assert domain_text(Domain("CPU", 0, ())) == "on CPU, contiguous tensors"


def test_a_name_that_only_one_region_has_leaves_empty_cells() -> None:
    other = Region({**FIXED, "causal": True, "sinks": True}, {"window_left": (0, 9)}, 2)
    table = domain_table(Domain("CPU", 0, (DOMAIN.regions[0], other)))
    assert table.columns == (
        *("dtype", "head_dim", "causal", "sinks", "heads", "softmax_scale", "window_left", "cases"),
    )
    assert [list(row) for row in table.rows] == [
        ["float16", "64", "false", "", "1 to 40", "0.0157 to 1", "", "57"],
        ["float16", "64", "true", "true", "", "", "0 to 9", "2"],
    ]


def test_json_lines_and_documents_have_it_as_it_is(tmp_path: Path) -> None:
    run = data(tmp_path)
    other, champion = json.loads(text_of("json", run))["trials"]
    assert other["domain"] is None
    assert msgspec.convert(champion["domain"], Domain) == DOMAIN
    lines = [json.loads(line) for line in text_of("jsonl", run).splitlines()]
    assert [line["domain"] for line in lines] == [None, champion["domain"]]


def test_pages_show_the_leaders(tmp_path: Path) -> None:
    run = data(tmp_path)
    page = text_of("md", run)
    _, _, section = page.partition("\n## Domain\n\n")
    assert section.startswith("Trial 1 on Test \\| GPU (132 multiprocessors), contiguous tensors.")
    assert "| float16 | 64 | false | 1 to 40 | 0.0157 to 1 | 57 |" in section
    payload = run_payload(run)["domain"]
    assert payload["rows"] == ROWS
    assert payload["note"].startswith("Trial 1 on Test | GPU (132 multiprocessors)")


def test_a_run_without_a_champion_shows_none(tmp_path: Path) -> None:
    run = data(tmp_path, confirmed=False)
    assert "## Domain" not in text_of("md", run)
    assert run_payload(run)["domain"] is None
