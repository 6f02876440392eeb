from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from evotune.errors import ProblemMistake, UsageError
from evotune.problems import Case, UserProblem, create_problem
from evotune.problems.examination import examine
from evotune.problems.loading import problem_source
from evotune.problems.rounding_errors import rounding_errors
from evotune.user_code import trust
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool

from . import user_emulations

ROOT = Path(__file__).parents[2]
GOOD = """
from evotune.problems import UserProblem

class Scale(UserProblem):
    sizes = ("rows", "columns")
    fixed = ("columns",)
    constants = {"factor": 3.0}

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x):
        return {"out": 3.0 * x}

    def check(self, rows, columns):
        if rows == 17:
            raise ValueError("no 17 rows")
"""


pytestmark = pytest.mark.usefixtures("nobody_agreed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "problem.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_in_a_file_is_a_whole_problem(folder: Path) -> None:
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 5, "columns": 8}, {})
    assert case.label == "(5,8)"
    assert dict(case.symbols) == {"rows": 5, "columns": 8, "factor": 3.0, "dtype": "float32"}
    assert [(s.name, s.shape, s.is_output) for s in problem.tensors(case)] == [
        ("x", (5, 8), False),
        ("out", (5, 8), True),
    ]
    assert (problem.flops(case), problem.bytes_moved(case)) == (40, 320)
    for kind in problem.input_kinds:
        made = InputPool(problem).get(case, kind, 7)
        assert made.expected["out"].shape == (2, 5, 8)
        again = problem.make_inputs(case, kind, 1)
        assert torch.equal(again["x"], problem.make_inputs(case, kind, 1)["x"])
        assert not torch.equal(again["x"], problem.make_inputs(case, kind, 2)["x"])
        (call,) = problem.baselines(case, again).values()
        torch.testing.assert_close(call()["out"].double(), problem.reference(case, again)["out"])


def test_edge_and_random_shapes_keep_fixed_sizes_and_pass_the_check(folder: Path) -> None:
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 50, "columns": 8}, {})
    edges = problem.edge_cases(case)
    assert [edge.symbols["rows"] for edge in edges] == [1, 3, 67]  # 17 is refused
    found = list(islice(problem.random_cases([case], 3), 50))
    assert {case.symbols["columns"] for case in (*edges, *found)} == {8}
    assert len({case.symbols["rows"] for case in found}) > 10
    assert found == list(islice(problem.random_cases([case], 3), 50))


RANGED = (
    GOOD.replace("3.0 * x", "factor * x")
    .replace("compute(self, x)", "compute(self, x, factor)")
    .replace("rows == 17", "False")
    .replace("3.0}", '3.0, "shift": 0.5}\n    ranges = {"factor": (0.01, 100.0)}')
)


def test_a_constant_with_a_range_is_drawn_and_reaches_compute(folder: Path) -> None:
    (folder / "problem.py").write_text(RANGED)
    problem = create_problem("problem.py:Scale", "float32", folder)
    base = problem.case({"rows": 50, "columns": 8}, {})
    assert (base.label, base.symbols["factor"], problem.scalars(base)) == (
        "(50,8)",
        3.0,
        ("factor",),
    )
    other = problem.case({"rows": 50, "columns": 8, "factor": 2}, {})
    assert other.label == "(50,8,factor=2.0)"
    inputs = problem.make_inputs(other, "normal", 0)
    (baseline,) = problem.baselines(other, inputs).values()
    reference = problem.reference(other, inputs)
    for found in (reference, baseline()):
        assert torch.equal(found["out"].float(), 2.0 * inputs["x"])
    assert problem.tolerances(other, inputs, reference)["out"].max() < 1e-4
    edges = [case.symbols["factor"] for case in problem.edge_cases(base)]
    assert set(edges) == {3.0, 0.01, 100.0}
    drawn = [float(c.symbols["factor"]) for c in islice(problem.random_cases([base], 1), 100)]
    assert 30 < drawn.count(3.0) < 70
    assert 0.01 <= min(drawn) < 0.1
    assert 10.0 < max(drawn) <= 100.0
    for cases in (problem.edge_cases(base, ("factor",)),
                  islice(problem.random_cases([base], 1, ("factor",)), 100)):  # fmt: skip
        assert {case.symbols["factor"] for case in cases} == {3.0}
    assert problem.place(other).ranged == {"rows": 50, "factor": 2.0, "shift": 0.5, "elements": 400}
    assert problem.place(other).fixed == {"dtype": "float32", "columns": 8}


COUNTED = (
    RANGED.replace("(0.01, 100.0)", "range(1, 1001)").replace('"factor": 3.0', '"factor": 3')
).replace("compute(self, x, factor)", "compute(self, x, factor, rows, shift)")


def test_an_integer_is_drawn_and_compute_gets_the_sizes_and_constants_that_it_lists(
    folder: Path,
) -> None:
    text = COUNTED.replace('{"out": factor * x}', '{"out": factor * x + rows + shift}')
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    base = problem.case({"rows": 50, "columns": 8}, {})
    assert (base.label, repr(base.symbols["factor"])) == ("(50,8)", "3")
    inputs = problem.make_inputs(base, "large", 0)
    (baseline,) = problem.baselines(base, inputs).values()
    for found in (problem.reference(base, inputs), baseline()):
        torch.testing.assert_close(found["out"].float(), 3 * inputs["x"] + 50.5)
    edges = [case.symbols["factor"] for case in problem.edge_cases(base)]
    assert edges == [3, 3, 1, 1000]
    drawn = [case.symbols["factor"] for case in islice(problem.random_cases([base], 1), 100)]
    assert all(isinstance(each, int) for each in drawn)
    assert 1 <= min(drawn) < 10
    assert 100 < max(drawn) <= 1000
    examine(problem, problem.case({"rows": 3, "columns": 8}, {}))
    for wrong, why in (
        (2.5, r"expected factor to be one of range\(1, 1001\), got 2.5"),
        (0, r"expected factor to be one of range\(1, 1001\), got 0"),
        ("big", "expected factor to be an integer, got 'big'"),
    ):
        with pytest.raises(ValueError, match=why):
            problem.case({"rows": 1, "columns": 8, "factor": wrong}, {})


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"factor": "big"}, "expected factor to be a number, got 'big'"),
        ({"factor": float("inf")}, "expected factor to be a number, got inf"),
        ({"shift": 1.0}, "unknown size 'shift'; known: rows, columns, factor"),
    ],
)
def test_a_range_or_constant_that_makes_no_sense_is_named(
    folder: Path, shape: dict, why: str
) -> None:
    (folder / "problem.py").write_text(RANGED)
    problem = create_problem("problem.py:Scale", "float32", folder)
    with pytest.raises(ValueError, match=why):
        problem.case({"rows": 1, "columns": 8, **shape}, {})


FREE = GOOD.replace('fixed = ("columns",)', "").replace("rows == 17", "False")
SIZES: dict[str, Callable[[int], bool]] = {
    "one": lambda size: size == 1,
    **{
        f"{rest} mod {tile}": lambda size, t=tile, r=rest: size % t == r % t and size > 1
        for tile in (16, 64, 128)
        for rest in (-1, 1)
    },
    "a multiple of 128": lambda size: size % 128 == 0,
    "more than 300": lambda size: 300 < size <= 600,
    "more than 600": lambda size: 600 < size <= 1200,
    "a multiple of 384": lambda size: size % 384 == 0,
    "1 mod 256": lambda size: size % 256 == 1 < size,
    "2,047": lambda size: size == 2047,
    "4,096": lambda size: size == 4096,
    "a multiple of 4,096 beyond it": lambda size: size > 4096 and size % 4096 == 0,
    "more than 70,000": lambda size: size > 70_000,
    "the longest odd one": lambda size: size == 4095,
    "odd, well beyond the longest": lambda size: 8192 < size < 9000 and size % 2 == 1,
    "past 16 bits": lambda size: size > 1 << 16,
    "round, from 640": lambda size: size >= 640 and size % 128 == 0,
    "round, beyond the longest": lambda size: size > 4096 and size % 256 == 0,
}


@pytest.mark.sweep(9)
@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_of_every_class_in_the_first_random_cases(
    folder: Path, name: str, size: str
) -> None:
    (folder / "problem.py").write_text(FREE)
    problem = create_problem("problem.py:Scale", "float32", folder)
    base = problem.case({"rows": 4096, "columns": 4096}, {})
    for seed in range(3):
        found = list(islice(problem.random_cases([base], seed), 80))
        assert any(SIZES[size](int(case.symbols[name])) for case in found), seed
        assert max(problem.bytes_moved(case) for case in found) <= 5 << 26


def test_each_size_has_every_remainder_in_the_first_random_cases(folder: Path) -> None:
    (folder / "problem.py").write_text(FREE)
    problem = create_problem("problem.py:Scale", "float32", folder)
    base = problem.case({"rows": 4096, "columns": 4096}, {})
    for seed in range(3):
        found = list(islice(problem.random_cases([base], seed), 80))
        for name in ("rows", "columns"):
            assert {int(case.symbols[name]) % 16 for case in found} == set(range(16)), seed


def test_sizes_are_large_together_and_meet_in_pairs(folder: Path) -> None:
    (folder / "problem.py").write_text(FREE)
    problem = create_problem("problem.py:Scale", "float32", folder)
    base = problem.case({"rows": 4096, "columns": 4096}, {})
    for seed in range(8):
        found = [
            (int(case.symbols["rows"]), int(case.symbols["columns"]))
            for case in islice(problem.random_cases([base], seed), 80)
        ]
        assert any(min(each) > 1000 for each in found), seed
        assert any(rows * columns > 1 << 24 for rows, columns in found), seed
        for rest, other in itertools.product((-1, 0, 1), repeat=2):
            alike = [(rows % 64, columns % 64) for rows, columns in found]
            assert (rest % 64, other % 64) in alike, seed


def test_sizes_that_must_be_multiples_are_found_and_costly_problems_stay_small(
    folder: Path,
) -> None:
    text = FREE.replace("if False", "if rows % 64 or columns % 8")
    text = text.replace("return rows * columns", "return columns * rows ** 3")
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float32", folder)
    base = problem.case({"rows": 512, "columns": 512}, {})
    found = list(islice(problem.random_cases([base], 0), 100))
    assert len({case.symbols["rows"] for case in found}) >= 3
    assert len({case.symbols["columns"] for case in found}) > 15
    assert max(problem.flops(case) for case in found) <= 1 << 31
    assert problem.edge_cases(base) == []


def test_long_user_cases_are_tested_with_a_spike(folder: Path) -> None:
    problem = create_problem("problem.py:Scale", "float32", folder)
    long, short = (problem.case({"rows": rows, "columns": 8}, {}) for rows in (4095, 100))
    assert problem.random_kinds(long, 0) == ("spike",)
    assert [problem.random_kinds(short, n) for n in range(4)] == [(k,) for k in problem.input_kinds]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"rows": 1}, "the shape lacks columns"),
        ({"rows": 1, "columns": 0}, "expected columns to be an integer of at least 1, got 0"),
        ({"rows": True, "columns": 1}, "expected rows to be an integer"),
        ({"rows": 1, "columns": 1, "depth": 1}, "unknown size 'depth'; known: rows, columns"),
        ({"rows": 17, "columns": 1}, "no 17 rows"),
    ],
)
def test_a_shape_that_makes_no_sense_is_named(folder: Path, shape: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        create_problem("problem.py:Scale", "float32", folder).case(shape, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_like_this", "problem.py:1: ModuleNotFoundError"),
        ("\ndef broken(:\n", "problem.py:2: SyntaxError: invalid syntax$"),
        ("raise ValueError('no\\nway')", "problem.py:1: ValueError: no way$"),
        ("Scale = 1", "has no class Scale derived from"),
        ("class Scale: pass", "has no class Scale derived from"),
        (GOOD.replace("def compute", "def computes"), "problem.py:4: Scale lacks compute$"),
        (GOOD.replace("sizes =", "size ="), "problem.py:4: Scale lacks sizes"),
        (GOOD.replace("sizes =", "ranges = {'fact': (1, 2)}; sizes ="), "5: ranges names 'fact'"),
        (GOOD.replace("sizes =", "ranges = {'factor': 2}; sizes ="), "5: ranges is {'factor': 2}"),
        (
            GOOD.replace("sizes =", "ranges = {'factor': range(5, 9)}; sizes ="),
            "7: constants gives factor as 3.0, which is not in range",
        ),
        (
            GOOD.replace('("columns",)', '("depth",)'),
            "6: fixed is \\('depth',\\), expected a tuple",
        ),
        (GOOD.replace("sizes =", "dtypes = ('int8',); sizes ="), "5: dtypes is \\('int8',"),
        (GOOD.replace("sizes =", "input_kinds = ('ramp',); sizes ="), "5: input_kinds is"),
        (GOOD + "    def __init__(self, dtype): return 1 / 0", "24: ZeroDivisionError"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(folder: Path, text: str, why: str) -> None:
    (folder / "problem.py").write_text(text)
    with pytest.raises((UsageError, ProblemMistake), match=why) as caught:
        create_problem("problem.py:Scale", "float32", folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../problem.py:Scale", "outside the space's root"),
        ("/etc/passwd.py:Scale", "outside the space's root"),
        ("problem.py", "expected path/to/problem.py:ClassName"),
        ("problem.py:a b", "expected path/to/problem.py:ClassName"),
        ("nothing.py:Scale", "nothing.py; `root:` in the space says where to look"),
    ],
)
def test_a_reference_stays_under_the_root(folder: Path, name: str, why: str) -> None:
    (folder / "below").mkdir()
    with pytest.raises(UsageError, match=why):
        problem_source(name, folder / "below" if name.startswith("..") else folder)


def test_a_link_to_another_kind_of_file_is_no_problem(folder: Path) -> None:
    """An error's message would show the contents of that file."""
    (folder / "SECRET.txt").write_text("hunter2")
    (folder / "link.py").symlink_to("SECRET.txt")
    with pytest.raises(UsageError, match="is a link to a file without"):
        create_problem("link.py:Scale", "float32", folder)


def test_a_file_from_elsewhere_is_run_only_when_somebody_agrees(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = folder / "ran"
    (folder / "problem.py").write_text(f"open({str(marker)!r}, 'w').close()\n{GOOD}")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    with pytest.raises(UsageError, match="lies outside this folder: read it, then add --trust"):
        create_problem("problem.py:Scale", "float32", folder)
    assert not marker.exists()
    asked: list[Path] = []
    trust.ask = lambda paths: not asked.extend(paths)
    create_problem("problem.py:Scale", "float32", folder)
    assert asked == [folder / "problem.py"]
    assert marker.exists()
    copy = folder / "runs"
    copy.mkdir()
    (copy / "problem.py").write_bytes((folder / "problem.py").read_bytes())
    create_problem("problem.py:Scale", "float32", copy)
    assert len(asked) == 1  # the same content needs no second answer


def test_a_copy_of_a_file_that_ships_with_evotune_needs_no_agreement(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a shipped space has such a copy, in a folder of runs elsewhere."""
    shipped = Path(__file__).parents[2] / "kernels" / "softmax" / "problem.py"
    (folder / "copy.py").write_bytes(shipped.read_bytes())
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    create_problem("copy.py:Softmax", "float32", folder)
    (folder / "copy.py").write_bytes(shipped.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="lies outside this folder"):
        create_problem("copy.py:Softmax", "float32", folder)


def test_random_shapes_end_where_none_makes_sense(folder: Path) -> None:
    (folder / "problem.py").write_text(GOOD.replace("rows == 17", "rows != 516"))
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 516, "columns": 8}, {})
    assert [each.label for each in problem.random_cases([case], 3)] == ["(516,8)"]  # then it ends
    assert problem.edge_cases(case) == []


def test_a_mistake_at_small_shapes_is_no_refusal(folder: Path) -> None:
    wrong = 'return {"x": (rows, columns)} if rows > 40 else {"x": (int("one"), columns)}'
    (folder / "problem.py").write_text(GOOD.replace('return {"x": (rows, columns)}', wrong))
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 50, "columns": 8}, {})
    with pytest.raises(ProblemMistake, match=r"problem\.py:10: ValueError: invalid literal"):
        list(problem.edge_cases(case))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"x": (rows', '"x": (rows - 2', r"x has no elements, its shape is \(0, 8\)"),
        ('"out": (rows', '"out": (rows - 3', r"out has no elements, its shape is \(-1, 8\)"),
    ],
)
def test_a_case_without_elements_is_refused(
    folder: Path, before: str, after: str, why: str
) -> None:
    (folder / "problem.py").write_text(GOOD.replace(before, after))
    problem = create_problem("problem.py:Scale", "float32", folder)
    with pytest.raises(ValueError, match=why):
        problem.case({"rows": 2, "columns": 8}, {})


def test_outputs_of_another_shape_are_named(folder: Path) -> None:
    (folder / "problem.py").write_text(GOOD.replace('{"out": 3.0 * x}', '{"out": x[0]}'))
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 2, "columns": 8}, {})
    with pytest.raises(ProblemMistake, match=r"compute gave out of shape \(8,\), expected \(2, 8"):
        problem.reference(case, problem.make_inputs(case, "normal", 0))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", UserProblem.dtypes)
def test_a_product_may_be_added_in_order_although_the_library_cuts_the_sum(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLAS cut it so on an H200 for (10, 10, 261): 16 parts; here the sum of a part is exact."""
    problem = create_problem("kernels/matmul/problem.py:Matmul", dtype, ROOT)
    case = problem.case({"m": 10, "n": 10, "k": 261}, {})
    whole = torch.matmul

    def in_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.float64:
            return whole(a, b)
        parts = zip(a.double().split(16, 1), b.double().split(16, 0), strict=True)
        return sum((whole(x, y).float() for x, y in parts), torch.tensor(0.0)).to(a.dtype)

    monkeypatch.setattr(torch.Tensor, "__matmul__", in_parts)
    pool = InputPool(problem)
    for seed in range(20):
        made = pool.get(case, "large", seed)
        a, b = (made.inputs[name].float() for name in "ab")
        out = torch.zeros(10, 10)
        for i in range(261):
            out += a[:, i : i + 1] * b[i]
        out = out.to(made.inputs["a"].dtype)
        assert LIMITS.hold(errors_against(out, made.expected["out"]))


@pytest.mark.parametrize(
    ("reference", "shape"),
    [
        ("kernels/softmax/problem.py:Softmax", {"rows": 3, "columns": 40}),
        ("kernels/rms_norm/problem.py:RmsNorm", {"rows": 3, "columns": 40}),
        ("kernels/matmul/problem.py:Matmul", {"m": 3, "n": 40, "k": 20}),
    ],
)
@pytest.mark.parametrize("dtype", UserProblem.dtypes)
def test_every_baseline_of_the_shipped_problems_is_correct(
    reference: str, shape: dict, dtype: str
) -> None:
    problem = create_problem(reference, dtype, ROOT)
    case = problem.case(shape, {})
    for kind in problem.input_kinds:
        made = InputPool(problem).get(case, kind, 5)
        for name, call in problem.baselines(case, dict(made.inputs)).items():
            for out, value in call().items():
                assert LIMITS.hold(errors_against(value, made.expected[out])), (name, kind)


def _shares(problem: UserProblem, case: Case, way: user_emulations.Way, seed: int) -> list[float]:
    """The errors as a share of the limits, for each kind of inputs."""
    dtype = getattr(torch, problem.dtype)
    found = []
    for kind in problem.input_kinds:
        made = _pool(problem).get(case, kind, seed)
        out = way(**{name: value.float() for name, value in made.inputs.items()})
        errors = errors_against(out.to(dtype), made.expected["out"])
        share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
        found.append(math.inf if math.isnan(share) else share)
    return found


@functools.cache
def _pool(problem: UserProblem) -> InputPool:
    return InputPool(problem)


@functools.cache
def _shipped(name: str, dtype: str) -> UserProblem:
    problem = create_problem(user_emulations.reference_name(name), dtype, ROOT)
    assert isinstance(problem, UserProblem)
    return problem


_SHAPES: dict[str, list[dict[str, int]]] = {
    "softmax": [{"rows": 9, "columns": 300}, {"rows": 1, "columns": 2}],
    "rms_norm": [{"rows": 9, "columns": 300}, {"rows": 1, "columns": 1}],
    "matmul": [{"m": 9, "n": 11, "k": 261}, {"m": 1, "n": 1, "k": 40}],
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dtype", UserProblem.dtypes)
@pytest.mark.parametrize("name", user_emulations.PROBLEMS)
def test_right_ways_of_the_shipped_problems_are_within_the_limits(name: str, dtype: str) -> None:
    """3 seeds here; benchmarks/lab/limits.py takes 100."""
    problem = _shipped(name, dtype)
    for shape in _SHAPES[name]:
        for way_name, way in user_emulations.HONEST[name].items():
            for seed in range(3):
                found = _shares(problem, problem.case(shape, {}), way, seed)
                assert max(found) <= 0.9, (way_name, shape, found)


@pytest.mark.parametrize("dtype", UserProblem.dtypes)
@pytest.mark.parametrize("name", user_emulations.PROBLEMS)
def test_wrong_ways_of_the_shipped_problems_exceed_them(name: str, dtype: str) -> None:
    problem = _shipped(name, dtype)
    ways = dict(user_emulations.WRONG[name])
    if dtype == "float32":
        ways |= user_emulations.WRONG_IN_FLOAT32[name]
    if dtype == "bfloat16":
        ways.pop("sums_in_bfloat16", None)
    for way_name, way in ways.items():
        for seed in range(3):
            found = _shares(problem, problem.case(_SHAPES[name][0], {}), way, seed)
            assert max(found) > 1, (way_name, found)


def test_large_inputs_are_made_smaller_where_results_would_not_fit_the_dtype() -> None:
    problem = _shipped("matmul", "float16")
    case = problem.case({"m": 40, "n": 40, "k": 2000}, {})
    for seed in range(5):
        inputs = problem.make_inputs(case, "large", seed)
        assert problem.reference(case, inputs)["out"].abs().max() < 65504
        assert inputs["a"].abs().max() > 8


@pytest.mark.parametrize("kind", ["large", "ramp", "spike"])
def test_inputs_stay_where_an_output_of_8_bits_reaches_its_largest_number(kind: str) -> None:
    path = "kernels/add_rms_norm/problem.py"
    fp8, wide = (
        create_problem(f"{path}:{n}", "float32", ROOT) for n in ("AddRmsNormFp8", "AddRmsNorm")
    )
    made = [
        problem.make_inputs(problem.case({"rows": 20, "columns": 64}, {}), kind, 3)
        for problem in (fp8, wide)
    ]
    assert torch.equal(made[0]["x"], made[1]["x"])
    out = fp8.reference(fp8.case({"rows": 20, "columns": 64}, {}), made[0])["out"]
    assert out.abs().max() > 447.0


def test_squares_of_large_inputs_are_more_than_half_precision_holds() -> None:
    problem = _shipped("softmax", "float16")
    case = problem.case({"rows": 64, "columns": 33}, {})
    for seed in range(20):
        inputs = problem.make_inputs(case, "large", seed)
        assert inputs["x"].square().isinf().any(), seed


def test_inputs_that_have_no_result_are_replaced_by_normal_ones(folder: Path) -> None:
    """A row of zeros divided by its norm has no result."""
    (folder / "problem.py").write_text(GOOD.replace("3.0 * x", "x / x.norm(dim=1, keepdim=True)"))
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 16, "columns": 8}, {})
    inputs = problem.make_inputs(case, "ramp", 0)
    assert torch.equal(inputs["x"], problem.make_inputs(case, "normal", 0)["x"])


def test_what_compute_overflows_to_excuses_nothing(folder: Path) -> None:
    """The limit is that of a float32 result, rounded once; in float16 compute itself overflows."""
    overflowing = "(x * 300).square().sum(1, keepdim=True).sqrt() * x.sign()"
    (folder / "problem.py").write_text(GOOD.replace("3.0 * x", overflowing))
    problem = create_problem("problem.py:Scale", "float16", folder)
    case = problem.case({"rows": 16, "columns": 8}, {})
    inputs = problem.make_inputs(case, "normal", 0)
    assert not problem.compute(**inputs)["out"].isfinite().all()
    reference = problem.reference(case, inputs)
    allowed = problem.tolerances(case, inputs, reference)["out"]
    assert (allowed < 0.002 * reference["out"].abs()).all()


def test_outputs_that_are_mostly_zero_get_no_boundless_limit(folder: Path) -> None:
    """The share of a zero that its deviation is has no bound."""
    text = GOOD.replace("3.0 * x", "(3.0 * x - (x + x + x)) + 0.25 * (x > 2)")
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 8, "columns": 128}, {})
    inputs = problem.make_inputs(case, "normal", 0)
    reference = problem.reference(case, inputs)
    assert 0 < (reference["out"].abs() > 0.1).sum() < 256
    assert problem.tolerances(case, inputs, reference)["out"].max() < 1e-4


def test_a_coarser_way_that_the_problem_calls_right_widens_the_limit(folder: Path) -> None:
    coarse = """
    def yardstick_of(self, x):
        return {"out": self.compute(x)["out"].bfloat16().float()}
"""
    (folder / "problem.py").write_text(GOOD + coarse)
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 16, "columns": 8}, {})
    made = InputPool(problem).get(case, "normal", 0)
    out = 3.0 * made.inputs["x"]
    assert LIMITS.hold(errors_against(out.bfloat16().float(), made.expected["out"]))
    assert not LIMITS.hold(errors_against(1.05 * out, made.expected["out"]))
    (folder / "problem.py").write_text(GOOD)
    plain = create_problem("problem.py:Scale", "float32", folder)
    made = InputPool(plain).get(case, "normal", 0)
    assert not LIMITS.hold(errors_against(out.bfloat16().float(), made.expected["out"]))


def test_parts_that_pytorch_compiles_do_not_change_the_limits(folder: Path) -> None:
    """Their operations are seen one by one, and nothing is compiled meanwhile."""
    compiled: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 16, "columns": 8}, {})
    inputs = problem.make_inputs(case, "normal", 0)
    reference = problem.reference(case, inputs)
    plain = rounding_errors(problem.compute, inputs, reference)
    within = rounding_errors(torch.compile(problem.compute, backend=backend), inputs, reference)
    assert torch.equal(within["out"], plain["out"])
    assert not compiled


COMPOSED = {
    "layer_norm": "torch.nn.functional.layer_norm(x, x.shape[-1:])",
    "gelu": "torch.nn.functional.gelu(x)",
    "log_softmax": "x.log_softmax(-1)",
    "cumulative": "x.cumsum(-1)",
    "variance": "x * x.var(-1, keepdim=True)",
    "attention": "torch.nn.functional.scaled_dot_product_attention(x, x, x)",
    "in place": "x.clone().mul_(2).add_(x.mean())",
    "einsum": "torch.einsum('rc,rd,rd->rc', x, x, x)",
    "sorted": "x.sort(-1).values",
}


@pytest.mark.parametrize("name", COMPOSED)
def test_limits_of_anything_that_pytorch_computes(folder: Path, name: str) -> None:
    """A float32 result passes; a result from inputs that are rounded to bfloat16 does not."""
    text = GOOD.replace("3.0 * x", COMPOSED[name]).replace(
        "def compute(self, x):\n", "def compute(self, x):\n        import torch\n"
    )
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 16, "columns": 8}, {})
    pool = InputPool(problem)
    for kind in problem.input_kinds:
        made = pool.get(case, kind, 0)
        out = problem.compute(**made.inputs)["out"]
        assert errors_against(out, made.expected["out"]).max < 0.6, kind
    made = pool.get(case, "normal", 0)
    rounded = {key: value.bfloat16().float() for key, value in made.inputs.items()}
    coarse = problem.compute(**rounded)["out"]
    assert errors_against(coarse, made.expected["out"]).max > 10


def _in_order(x: torch.Tensor) -> torch.Tensor:
    """The sum over the first dimension in float32, one term after the other."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=0))[-1]


def _batch_norm_in_order(x: torch.Tensor) -> torch.Tensor:
    centred = x - _in_order(x) / len(x)
    return centred / (_in_order(centred.square()) / len(x) + 1e-5).sqrt()


SUMS: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "convolution": (
        "torch.nn.functional.conv1d(x[:2000].T[:, None], x[:600, :1].T[None])[:, 0].T",
        "(1401, columns)",
        lambda x: _in_order(x[:2000].unfold(0, 600, 1).permute(2, 0, 1) * x[:600, :1, None]),
    ),
    "loss": (
        "torch.nn.functional.mse_loss(x.flatten(), x.flatten().roll(1))[None]",
        "(1,)",
        lambda x: _in_order((x.flatten() - x.flatten().roll(1)).square())[None] / x.numel(),
    ),
    "norm": (
        "torch.nn.functional.batch_norm(x, None, None, training=True)",
        "(rows, columns)",
        _batch_norm_in_order,
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_any_sum_may_be_added_in_order(folder: Path, name: str) -> None:
    written, shape, way = SUMS[name]
    text = GOOD.replace("3.0 * x", written).replace(
        '{"out": (rows, columns)}', f'{{"out": {shape}}}'
    )
    (folder / "problem.py").write_text(
        text.replace("def compute(self, x):\n", "def compute(self, x):\n        import torch\n")
    )
    problem = create_problem("problem.py:Scale", "float32", folder)
    made = InputPool(problem).get(problem.case({"rows": 20000, "columns": 4}, {}), "normal", 0)
    assert LIMITS.hold(errors_against(way(made.inputs["x"]), made.expected["out"]))
    assert LIMITS.hold(errors_against(problem.compute(**made.inputs)["out"], made.expected["out"]))


def _deviation(compute: Callable[..., torch.Tensor], **inputs: torch.Tensor) -> torch.Tensor:
    wide = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    reference = {"out": compute(**wide)}
    return rounding_errors(lambda **x: {"out": compute(**x)}, inputs, reference)["out"]


def test_sums_into_integers_are_made_once() -> None:
    """Counting the magnitudes of an operation's terms changes none of its tensors."""

    def mean(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(8, dtype=x.dtype).index_add_(0, place, x)
        count = torch.zeros(8, dtype=torch.int64).index_add_(0, place, torch.ones_like(place))
        return total / count

    generator = torch.Generator().manual_seed(0)  # of some draws it is 1.1e-6
    x, place = torch.randn(4096, generator=generator), torch.arange(4096) % 8
    assert float(_deviation(mean, x=x, place=place).max()) < 1e-6


WINDOW = torch.ones(1, 1, 11, 11)


@pytest.mark.parametrize(
    ("one_way", "another"),
    [
        (torch.trace, lambda x: x.diagonal().sum()),
        (
            lambda x: torch.nn.functional.avg_pool2d(x[None, None], 11, 1),
            lambda x: torch.nn.functional.conv2d(x[None, None], WINDOW.to(x.dtype) / 121),
        ),
        (
            lambda x: torch.nn.functional.conv_transpose2d(
                x.view(1, 64, 16, -1), WINDOW.to(x.dtype).expand(64, 1, 11, 11), groups=64
            ),
            lambda x: torch.nn.functional.conv2d(
                x.view(1, 64, 16, -1),
                WINDOW.to(x.dtype).expand(64, 1, 11, 11), padding=10, groups=64,
            ),
        ),
    ],
    ids=["trace", "pool", "transposed"],
)  # fmt: skip
def test_two_ways_to_write_a_sum_have_the_same_rounding_errors(
    one_way: Callable[..., torch.Tensor], another: Callable[..., torch.Tensor]
) -> None:
    x = torch.randn(256, 256)
    share = _deviation(one_way, x=x).mean() / _deviation(another, x=x).mean()
    assert 0.4 < float(share) < 2.5


def test_one_element_may_be_rounded_twice(folder: Path) -> None:
    """Of few elements all may be off by almost two roundings; of many not."""
    text = GOOD.replace("3.0 * x", "3.0 * x.mean(-1)")
    text = text.replace('{"out": (rows, columns)}', '{"out": (rows,)}')
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "bfloat16", folder)
    case = problem.case({"rows": 1, "columns": 7}, {})
    pool = InputPool(problem)
    for seed in range(100):
        made = pool.get(case, "normal", seed)
        twice = problem.compute(**made.inputs)["out"]
        assert LIMITS.hold(errors_against(twice, made.expected["out"])), seed


TYPED = """
from evotune.problems import Tensor, UserProblem

class Typed(UserProblem):
    sizes = ("rows",)
    dtypes = ("float32",)

    def inputs(self, rows):
        return {"x": (rows,), "picks": INPUT}

    def outputs(self, rows):
        return {"out": OUTPUT}

    def operations(self, rows):
        return rows

    def compute(self, x, picks):
        return {"out": x}
"""


@pytest.mark.parametrize(
    ("tensor", "output", "why"),
    [
        (
            'Tensor((rows,), "int4")',
            "(rows,)",
            "picks of inputs has the dtype 'int4', expected one",
        ),
        (
            'Tensor((rows,), "int32")',
            "(rows,)",
            "picks of inputs is int32 without values: state range",
        ),
        (
            'Tensor((rows,), "uint8", range(1 << 50))',  # no walk through all of them
            "(rows,)",
            "which do not fit uint8",
        ),
        (
            'Tensor((rows,), "uint8", range(300))',
            "(rows,)",
            "values range.0, 300., which do not fit",
        ),
        (
            'Tensor((rows,), "int64", range(-(1 << 62), 1 << 63))',  # range() cannot count them
            "(rows,)",
            "expected fewer than 2..63 of them",
        ),
        ('Tensor((rows,), "int8", range(200))', "(rows,)", "range.0, 200., which do not fit"),
        ('Tensor((rows,), "bool", range(3))', "(rows,)", "values range.0, 3., which do not fit"),
        ('Tensor((rows,), "int16")', "(rows,)", "picks of inputs is int16 without values"),
        ('Tensor((rows,), "complex64", (1, 2))', "(rows,)", "which complex numbers cannot lie"),
        ('Tensor((rows,), "int32", range(0))', "(rows,)", "expected some integers of an integer"),
        ('Tensor((rows,), "float16", range(3))', "(rows,)", "expected some integers of an integer"),
        ('Tensor((rows,), "float32", (0, 1))', "(rows,)", "expected a range, two positive numbers"),
        ('Tensor((rows,), "float16", "indices")', "(rows,)", "has indices of no integer type"),
        (
            'Tensor("rows", "float16")',
            "(rows,)",
            "gave the text 'rows' for picks, expected a tuple",
        ),
        (
            "(rows,)",
            'Tensor((rows,), "int32", range(3))',
            "out of outputs is an output, whose range",
        ),
    ],
)
def test_a_tensor_that_makes_no_sense_is_one_line(
    folder: Path, tensor: str, output: str, why: str
) -> None:
    text = TYPED.replace("INPUT", tensor).replace("OUTPUT", output)
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Typed", "float32", folder)
    with pytest.raises(ProblemMistake, match=why) as caught:
        problem.case({"rows": 4}, {})
    assert str(caught.value).startswith("problem.py:")
    assert "\n" not in str(caught.value)


def test_indices_without_a_method_that_makes_them_are_a_mistake(folder: Path) -> None:
    text = TYPED.replace("INPUT", 'Tensor((rows,), "int32", "indices")')
    (folder / "problem.py").write_text(text.replace("OUTPUT", "(rows,)"))
    problem = create_problem("problem.py:Typed", "float32", folder)
    case = problem.case({"rows": 4}, {})
    with pytest.raises(ProblemMistake, match="the problem must write make_indices"):
        problem.make_inputs(case, "normal", 0)


def test_a_baseline_of_another_type_is_told_the_type_of_its_output(folder: Path) -> None:
    text = GOOD.replace('{"out": (rows, columns)}', '{"out": Tensor((rows, columns), "uint8")}')
    text = text.replace("3.0 * x", "x > 0").replace(
        "import UserProblem", "import Tensor, UserProblem"
    )
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float32", folder)
    case = problem.case({"rows": 4, "columns": 5}, {})
    with pytest.raises(ProblemMistake, match="gave out as bool, expected uint8"):
        examine(problem, case)


def test_integer_outputs_must_be_exact(folder: Path) -> None:
    """Rounding in float16 changes most of these places; the yardstick excuses no integer."""
    text = GOOD.replace('{"out": (rows, columns)}', '{"out": Tensor((rows, columns), "int32")}')
    text = text.replace("3.0 * x", "x.softmax(-1).argsort(-1).int()")
    text = text.replace("import UserProblem", "import Tensor, UserProblem")
    (folder / "problem.py").write_text(text)
    problem = create_problem("problem.py:Scale", "float16", folder)
    case = problem.case({"rows": 4, "columns": 256}, {})
    made = InputPool(problem).get(case, "normal", 0)
    out = problem.reference(case, dict(made.inputs))["out"].int()
    assert LIMITS.hold(errors_against(out, made.expected["out"]))
    assert not LIMITS.hold(
        errors_against(problem.compute(**made.inputs)["out"], made.expected["out"])
    )
    out[2, 3] += 1
    assert not LIMITS.hold(errors_against(out, made.expected["out"]))


def test_a_wrong_flag_names_the_flags(folder: Path) -> None:
    text = TYPED.replace("INPUT", "(rows,)").replace("OUTPUT", "(rows,)")
    flagged = text.replace("sizes =", 'flags = ("has_bias",)\n    sizes =').replace(
        "self, rows)", "self, rows, has_bias)"
    )
    (folder / "problem.py").write_text(flagged)
    problem = create_problem("problem.py:Typed", "float32", folder)
    assert problem.case({"rows": 4}, {"has_bias": True}).label == "(4) has_bias"
    assert [each.label for each in problem.siblings(problem.case({"rows": 4}, {}))] == [
        "(4)",
        "(4) has_bias",
    ]
    for variant in ({"has_bias": 1}, {"bias": True}):
        with pytest.raises(ValueError, match=r"expected a variant \{has_bias: true\|false\}, got"):
            problem.case({"rows": 4}, variant)
