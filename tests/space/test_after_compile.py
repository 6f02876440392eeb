"""`after_compile`: constraints over figures that only the compiler knows."""

from __future__ import annotations

import pytest

from evotune.errors import SpaceError
from evotune.space.bound import BoundSpace, bind
from evotune.space.case_scope import COMPILED_FIGURES
from evotune.space.document import parse_space
from evotune.space.language import parse_expression
from evotune.space.reading.yaml_source import Position

from .spaces import DEVICE

HEAD = """\
name: small
problem: {name: attention, shapes: [{n: 64}]}
kernels: {plain: {source: a.cu, entry: f, launches: [{grid: [1], block: [32]}]}}
parameters: {A: [1, 2], MODE: {choices: [fast, slow]}}
"""
FIGURES = {name: kind(1) for name, kind in COMPILED_FIGURES.items()}


def bound(body: str) -> BoundSpace:
    return bind(parse_space(HEAD + body), [{"n": 64}], DEVICE)


def violated(body: str, **figures: float) -> str:
    space = bound(body)
    return space.violated_after_compile({"A": 2, "MODE": "fast"}, {"n": 64}, {**FIGURES, **figures})


def test_figures_stand_beside_parameters_lets_symbols_and_device() -> None:
    body = (
        "let: {most: 64 * A}\n"
        "after_compile:\n"
        "  - registers <= most or MODE == slow\n"
        "  - {expr: occupancy * device.threads >= n, reason: too few threads}\n"
    )
    assert violated(body, registers=128, occupancy=0.25) == ""
    assert violated(body, registers=129, occupancy=0.25) == (
        "registers <= most or MODE == slow; found registers = 129"
    )
    assert violated(body, registers=128, occupancy=0.05) == (
        "occupancy * device.threads >= n (too few threads); found occupancy = 0.05"
    )


def test_an_unknown_name_lists_the_figures() -> None:
    with pytest.raises(SpaceError, match=r"unknown name 'waves'; .*occupancy, registers, .*spill"):
        bound("after_compile: [waves <= 1]\n")


def test_a_name_in_capitals_is_taken_for_a_parameter() -> None:
    head = HEAD.replace("A: [1, 2]", "ROWS: [1, 2]").replace("{n: 64}", "{n: 64, rows: 8}")
    with pytest.raises(SpaceError, match="unknown name 'ROW'; did you mean 'ROWS'"):
        bind(parse_space(head + "constraints: [ROW > 1]\n"), [{"n": 64, "rows": 8}], DEVICE)


def test_a_constraint_without_a_value_is_broken() -> None:
    found = violated("after_compile: [16 / spill_bytes > 1]\n", spill_bytes=0)
    assert "division by zero" in found


def test_the_valid_configurations_stay_what_they_were() -> None:
    assert bound("after_compile: [registers < 0]\n").size() == bound("").size()


@pytest.mark.parametrize("body", ["", "after_compile: [registers <= 128]\n"])
def test_a_launch_cannot_use_a_figure(body: str) -> None:
    expression = parse_expression("registers", Position("space.yaml", 3, 9))
    with pytest.raises(SpaceError, match="3:9: 'registers' is known only after compiling"):
        bound(body).check(expression)
    with pytest.raises(SpaceError, match="known only after compiling"):
        bound(body).evaluator({"n": 64}).evaluate(expression, {"A": 2, "MODE": "fast"})


MISTAKES = [
    ("after_compile: [registrs < 8]", "unknown name 'registrs'; did you mean 'registers'?", 5, 17),
    ("after_compile: [registers]", "a constraint is true or false", 5, 17),
    ("after_compile: [MODE < registers]", "expected a number, but 'MODE'", 5, 17),
    ("constraints: [registers < 8]", "'registers' is known only after compiling", 5, 15),
    ("let: {half: registers / 2}", "'registers' is known only after compiling", 5, 13),
    ("let: {registers: 8}\nafter_compile: [registers < 9]", "let 'registers': 'after_c", 5, 18),
    ("after_compile: [{expr: A, why: no}]", "unknown key 'why' in a constraint", 5, 27),
]


@pytest.mark.parametrize(("body", "words", "line", "column"), MISTAKES)
def test_a_mistake_is_reported_at_its_place(body: str, words: str, line: int, column: int) -> None:
    with pytest.raises(SpaceError) as caught:
        bound(body + "\n")
    assert words in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_let_of_a_figure_s_name_is_fine_where_nothing_is_asked_after_compiling() -> None:
    assert bound("let: {registers: 8}\nconstraints: [registers > A]\n").size().valid == 4


def test_symbols_and_choices_may_not_take_a_figure_s_name() -> None:
    document = parse_space(HEAD + "after_compile: [registers < 9]\n")
    with pytest.raises(SpaceError, match="the problem symbol 'occupancy' has the name of"):
        bind(document, [{"n": 64, "occupancy": 1}], DEVICE)
    taken = HEAD.replace("slow", "registers") + "after_compile: [occupancy > 0]\n"
    with pytest.raises(SpaceError, match="the choice 'registers' has the name of"):
        bind(parse_space(taken), [{"n": 64}], DEVICE)


def test_cpp_kernels_have_no_such_figures() -> None:
    cpp = HEAD.replace("a.cu", "a.cpp") + "after_compile: [registers < 9]\n"
    with pytest.raises(SpaceError, match="'after_compile' needs kernels for a GPU"):
        parse_space(cpp)


LAUNCHES = """\
name: small
problem: {{name: attention, shapes: [{{n: 64}}]}}
kernels:
  plain:
    source: a.cu
    entry: f
    launches: [{{grid: [1], block: [32], {}}}]
parameters: {{A: [1, 2]}}
"""


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("when: A", "'when' is true or false"),
        ("when: B > 1", "unknown name 'B'"),
        ("entry: 'f g'", "expected an identifier"),
        ("entri: f", "unknown key 'entri' in a launch; did you mean 'entry'?"),
    ],
)
def test_a_mistake_in_a_launch_is_reported(launch: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        bind(parse_space(LAUNCHES.format(launch)), [{"n": 64}], DEVICE)
    assert words in caught.value.message
    assert caught.value.line == 7
