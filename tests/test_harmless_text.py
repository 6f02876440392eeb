from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.report.markdown import table
from evotune.util.words import csv_text, markdown_text, printable

HOSTILE = st.text(
    alphabet=st.one_of(
        st.sampled_from("\x1b\x07\x9b\r\n\t\0=+-@|`*_[]<>&\\\"',;\u2028\u202e\ud800\ufeff ＝"),
        st.characters(),
    ),
    max_size=60,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain µs", "plain µs"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x9b2J", "2J"),
        ("two\nlines\r\nand\ttab", "two lines  and tab"),
        ("right\u202eleft", "rightleft"),
        ("half \ud800 pair", "half  pair"),
    ],
)
def test_printable_drops_what_a_terminal_obeys(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "  =1", "\x1b=1", "＝1", "\n-2"]
)
def test_a_formula_gets_a_leading_quote_in_csv(text: str) -> None:
    assert csv_text(text).startswith("'")


def test_ordinary_text_is_the_same_in_csv() -> None:
    assert csv_text("sdpa:flash, 5 - 3 = 2") == "sdpa:flash, 5 - 3 = 2"


@given(HOSTILE)
@settings(derandomize=True, max_examples=300)
def test_no_text_acts_in_any_medium(text: str) -> None:
    line = printable(text)
    assert len(line.splitlines()) <= 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    line.encode()
    assert not csv_text(text).lstrip().startswith(("=", "+", "-", "@"))
    assert printable(line) == line


@given(st.lists(HOSTILE, min_size=3, max_size=3))
@settings(derandomize=True, max_examples=200)
def test_a_markdown_row_keeps_its_cells(cells: list[str]) -> None:
    lines = table(("a", "b", "c"), [cells], (False, False, False)).split("\n")
    assert len(lines) == 3
    unescaped = re.findall(r"(?<!\\)(?:\\\\)*\|", lines[2])
    assert len(unescaped) == 4
    assert "<" not in lines[2]


@given(st.lists(HOSTILE, min_size=1, max_size=4))
@settings(derandomize=True, max_examples=200)
def test_neutralised_cells_survive_a_csv_reader(cells: list[str]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer).writerow([csv_text(cell) for cell in cells])
    (row,) = csv.reader(io.StringIO(buffer.getvalue()))
    assert row == [csv_text(cell) for cell in cells]


def test_markdown_shows_markup_as_text() -> None:
    assert markdown_text("a|b <script> `c` \\") == "a\\|b &lt;script> \\`c\\` \\\\"
