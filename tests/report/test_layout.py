from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.report.screen import Column, Role, Span, grid, grid_width, paragraph, plain

words = st.lists(st.text("abc=_-1", min_size=1, max_size=15), max_size=30)


def column(heading: str, *cells: str, right: bool = True) -> Column:
    return Column(tuple(heading.split("/")), tuple(Span(cell) for cell in cells), right)


def test_a_paragraph_hangs_below_its_label() -> None:
    lines = paragraph("A=1 B=2 C=3", 30, label="first: ", indent=10)
    assert plain(lines) == "first: A=1 B=2 C=3\n"
    lines = paragraph("one two three four five six", 24, label="#1: ", indent=4)
    assert plain(lines) == "#1: one two three four\n    five six\n"


def test_a_paragraph_without_text_is_its_label() -> None:
    assert plain(paragraph("", 40, label="#2: ")) == "#2:\n"


@given(words, st.integers(20, 120), st.integers(0, 8))
@settings(derandomize=True, max_examples=80)
def test_no_line_is_too_wide_and_no_word_is_lost(text: list[str], width: int, indent: int) -> None:
    wrapped = plain(paragraph(" ".join(text), width, indent=indent)).splitlines()
    assert all(len(line) <= max(width, indent + 20) for line in wrapped)
    assert " ".join(wrapped).split() == text


def test_a_grid_stands_its_headings_on_the_rule() -> None:
    columns = [
        column("n", "1", "12"),
        column("time/µs", "3", "4"),
        column("x", "a", "", right=False),
    ]
    lines = plain(grid(columns)).splitlines()
    assert lines == ["    time", " n    µs  x", "───────────", " 1     3  a", "12     4"]
    assert grid_width(columns) == len("───────────")


def test_text_from_elsewhere_cannot_act_or_misalign() -> None:
    hostile = [column("a", "\x1b[2Jx", "y"), column("b", "1", "2")]
    assert plain(grid(hostile)).splitlines()[2:] == ["[2Jx  1", "   y  2"]
    assert "\x1b" not in plain(paragraph("a \x1b[31m b\nc", 40))


def test_roles_stay_with_their_text() -> None:
    (line,) = grid([Column(("h",), (Span("good", Role.GOOD),))])[2:]
    assert [span for span in line if span.text] == [Span("good", Role.GOOD)]
