"""Mistakes in each method of a user's problem: the exit code and the error line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import Result

from evotune.errors import ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import examine, mistake_of, tiny_case
from evotune.problems.loading import baseline_names
from evotune.workers.device_slot import ProblemSource
from evotune.workers.problem_check import check_problem

from .conftest import Invoke

SPACE = """\
name: scale
root: .
problem:
  name: problem.py:Scale
  dtype: float32
  shapes: [{rows: 40, columns: 8}]
  held_out: [{rows: 3, columns: 5}]
kernels:
  scale:
    source: scale.cpp
    entry: scale
    arguments: [x, out, {value: rows * columns, type: int32}]
parameters:
  UNROLL: [1, 2]
baseline: torch:best
budget: {trials: 1}
"""
KERNEL = """\
extern "C" void scale(const float* x, float* out, int count) {
    for (int i = 0; i < count; ++i) out[i] = 3.0f * x[i];
}
"""
PROBLEM = """\
from pathlib import Path

from evotune.problems import UserProblem


class Scale(UserProblem):
    sizes = ("rows", "columns")
    constants = {"factor": 3.0}

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return rows * columns

    def check(self, rows, columns):
        pass

    def compute(self, x):
        return {"out": 3.0 * x}

    def yardstick_of(self, x):
        return self.compute(x)

    def baselines_of(self, x):
        return {"torch:eager": lambda: self.compute(x)}
"""
DEFINITION = {  # method: the line of its `def`, the line of its body, the body
    "inputs": (10, 11, 'return {"x": (rows, columns)}'),
    "outputs": (13, 14, 'return {"out": (rows, columns)}'),
    "operations": (16, 17, "return rows * columns"),
    "check": (19, 20, "pass"),
    "compute": (22, 23, 'return {"out": 3.0 * x}'),
    "yardstick_of": (25, 26, "return self.compute(x)"),
    "baselines_of": (28, 29, 'return {"torch:eager": lambda: self.compute(x)}'),
}
RAISED = {
    'raise KeyError("x")': ": KeyError: 'x'",
    'int("one\\ntwo")': ": ValueError: invalid literal for int() with base 10: 'one\\ntwo'",
    "nothing.nowhere": ": NameError: name 'nothing' is not defined",
    "import sys; sys.exit(3)": " called sys.exit(3)",
    "raise KeyboardInterrupt": ": KeyboardInterrupt",
}
STRUCTURE = ("inputs", "outputs", "operations", "check")  # these need no PyTorch
WRONG = [  # method, the new body, the message; the error names the line of the `def`
    ("inputs", "return None", "inputs gave None, expected a dict, name -> shape"),
    ("inputs", "return ['x']", "inputs gave a list, expected a dict, name -> shape"),
    ("inputs", "return {3: (rows,)}", "inputs gave a dict, expected a dict, name -> shape"),
    ("inputs", "return {}", "inputs names no tensor, a kernel needs at least one"),
    ("inputs", "return {'x': (rows)}", "inputs gave 40 for x, expected a tuple of integers"),
    ("inputs", "return {'x': (rows, 0.5)}", "inputs gave (40, 0.5) for x, expected a tuple of int"),
    ("outputs", "return None", "outputs gave None, expected a dict, name -> shape"),
    ("outputs", "return {}", "outputs names no tensor, a kernel needs at least one"),
    ("outputs", "return {'out': '40'}", "outputs gave the text '40' for out, expected a tuple of"),
    ("inputs", "return {'rows': (rows,)}", "inputs names rows, which is also a symbol"),
    ("inputs", "return {'factor': (1,)}", "inputs names factor, which is also a symbol"),
    ("outputs", "return {'x': (rows, columns)}", "outputs names x, which is also an input: rename"),
    ("outputs", "return {'columns': (1,)}", "outputs names columns, which is also a symbol"),
    ("operations", "return None", "operations gave None, expected a number"),
    ("operations", "return '320'", "operations gave the text '320', expected a number"),
    ("operations", "return float('nan')", "operations gave nan, expected a number"),
    ("operations", "return -1", "operations gave -1, expected a number"),
    ("operations", "return [rows]", "operations gave a list, expected a number"),
    ("check", "return False", "check gave False, expected nothing: it raises ValueError"),
    (
        "compute",
        "import torch; return {'out': x + torch.rand_like(x)}",
        "compute gives different results on equal inputs, in out",
    ),
    ("compute", "return None", "compute gave None, expected a dict, name -> tensor"),
    ("compute", "return 3.0 * x", "compute gave a Tensor, expected a dict, name -> tensor"),
    ("compute", "return {'x': x}", "compute gave x; the outputs are out"),
    ("compute", "return {'out': 1.0}", "compute gave 1.0 for out, expected a tensor"),
    ("compute", "return {'out': x[0]}", "compute gave out of shape (5,), expected (3, 5)"),
    ("compute", "return {'out': x.T}", "compute gave out of shape (5, 3), expected (3, 5)"),
    ("compute", "return {'out': x.float()}", "compute gave out as float32 for inputs of float64"),
    (
        "compute",
        "return {'out': x.log()}",
        "compute gave NaN or infinity in out for normal inputs of",
    ),
    (
        "compute",
        "return {'out': x / 0}",
        "compute gave NaN or infinity in out for normal inputs of",
    ),
    ("yardstick_of", "return None", "yardstick_of gave None, expected a dict, name -> tensor"),
    ("yardstick_of", "return {'out': x[0]}", "yardstick_of gave out of shape (5,), expected (3, 5"),
    ("compute", "x *= 3.0; return {'out': x}", "compute changed its input x in place"),
    ("yardstick_of", "return {'out': x.mul_(3.0)}", "yardstick_of changed its input x in place"),
    (
        "baselines_of",
        "return {'torch:eager': lambda: {'out': x.mul_(3.0)}}",
        "torch:eager of baselines_of changed its input x in place",
    ),
    ("baselines_of", "return None", "baselines_of gave None, expected a dict, name -> function"),
    ("baselines_of", "return {}", "baselines_of names no baseline, expected at least one"),
    (
        "baselines_of",
        "return {'torch:eager': self.compute(x)}",
        "torch:eager of baselines_of is a dict, expected a function without arguments",
    ),
    (
        "baselines_of",
        "return {'torch:none': lambda: {}}",
        "torch:none of baselines_of gave nothing; the outputs are out",
    ),
    (
        "baselines_of",
        "return {'torch:half': lambda: {'out': x.half()}}",
        "torch:half of baselines_of gave out as float16, expected float32",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "scale.cpp").write_text(KERNEL)
    (tmp_path / "problem.py").write_text(PROBLEM)
    return tmp_path


def _spoil(folder: Path, method: str, body: str) -> None:
    _, line, right = DEFINITION[method]
    lines = PROBLEM.splitlines()
    assert lines[line - 1].strip() == right
    lines[line - 1] = f"        {body}"
    (folder / "problem.py").write_text("\n".join(lines) + "\n")


def _expect(result: Result, line: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: problem.py:{line}"), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize(
    ("method", "mistake"),
    [
        (method, mistake)
        for method in STRUCTURE
        for mistake in RAISED
        if (method, "ValueError" in RAISED[mistake]) != ("check", True)  # which refuses a shape
    ],
)
def test_what_a_method_raises_is_told_with_its_line(
    invoke: Invoke, folder: Path, method: str, mistake: str, command: str
) -> None:
    _spoil(folder, method, mistake)
    _expect(invoke(command, "space.yaml"), f"{DEFINITION[method][1]}{RAISED[mistake]}")
    assert not list(folder.glob("runs/*"))


@pytest.mark.parametrize(("method", "body", "line"), [c for c in WRONG if c[0] in STRUCTURE])
def test_a_wrong_type_is_told_with_the_line_of_the_def(
    invoke: Invoke, folder: Path, method: str, body: str, line: str
) -> None:
    _spoil(folder, method, body)
    _expect(invoke("check", "space.yaml", "--no-compile"), f"{DEFINITION[method][0]}: {line}")


@pytest.mark.parametrize(("method", "body", "line"), [c for c in WRONG if c[0] not in STRUCTURE])
def test_a_wrong_type_of_what_needs_pytorch_is_told_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, body: str, line: str
) -> None:
    """Calls the examination that `check` and the worker make, in this process."""
    monkeypatch.chdir(folder)
    _spoil(folder, method, body)
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    case = tiny_case(problem, [problem.case({"rows": 40, "columns": 8}, {})])
    assert case.label == "(3,5)"
    with pytest.raises(ProblemMistake) as caught:
        examine(problem, case)
    assert str(caught.value).startswith(f"problem.py:{DEFINITION[method][0]}: {line}")


def test_a_reference_that_changes_an_input_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    body = "return {'out': inputs['x'].mul_(3.0).double()}"
    own = f"    def reference(self, case, inputs):\n        {body}\n"
    (folder / "problem.py").write_text(PROBLEM + own)
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    with pytest.raises(ProblemMistake, match="30: reference changed its input x in place"):
        examine(problem, problem.case({"rows": 3, "columns": 5}, {}))


def test_a_problem_is_examined_in_inference_mode_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors do not count writes there."""
    monkeypatch.chdir(folder)
    (folder / "problem.py").write_text(PROBLEM)
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    with torch.inference_mode():
        examine(problem, problem.case({"rows": 3, "columns": 5}, {}))


NEEDS_PYTORCH = [
    ("compute", "nothing.nowhere", "23: NameError: name 'nothing' is not defined"),
    ("compute", "return {'out': x @ x}", "23: RuntimeError: "),
    ("compute", "import sys; sys.exit('no')", "23 called sys.exit('no')"),
    ("compute", "return {'x': x}", "22: compute gave x; the outputs are out"),
    ("baselines_of", "return {'torch:a': lambda: 1 / 0}", "29: ZeroDivisionError: "),
    ("baselines_of", "return {'torch:a': lambda y: y}", "28: TypeError: "),
]


@pytest.mark.parametrize(("method", "body", "line"), NEEDS_PYTORCH)
def test_an_error_behind_what_needs_pytorch_is_told_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, body: str, line: str
) -> None:
    """Calls the examination in this process."""
    monkeypatch.chdir(folder)
    _spoil(folder, method, body)
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    with pytest.raises((Exception, SystemExit)) as caught:
        examine(problem, problem.case({"rows": 3, "columns": 5}, {}))
    mistake = mistake_of(problem, caught.value)
    assert str(mistake).startswith(f"problem.py:{line}")


@pytest.mark.parametrize("command", ["check", pytest.param("run", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("method", "body", "line"),
    [
        pytest.param(*each, marks=() if each == NEEDS_PYTORCH[3] else pytest.mark.soak)
        for each in NEEDS_PYTORCH
    ],
)
def test_what_needs_pytorch_is_told_by_check_and_leaves_no_run(
    invoke: Invoke, folder: Path, command: str, *, method: str, body: str, line: str
) -> None:
    """A wrong result; `make soak` takes all."""
    _spoil(folder, method, body)
    _expect(invoke(command, "space.yaml"), line)
    assert not list(folder.glob("runs/*"))


def test_a_method_that_takes_no_such_size_is_told_with_the_sizes(
    invoke: Invoke, folder: Path
) -> None:
    text = PROBLEM.replace("def inputs(self, rows, columns)", "def inputs(self, rows)")
    (folder / "problem.py").write_text(text)
    result = invoke("check", "space.yaml")
    _expect(result, "10: TypeError: Scale.inputs() got an unexpected keyword argument 'columns'")
    assert "; it is called with rows, columns\n" in result.stderr


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('("rows", "columns")', '("rows")', "7: sizes is 'rows', expected a tuple of the names"),
        ('("rows", "columns")', "()", "7: Scale lacks sizes, the names that a shape must give"),
        (
            '{"factor": 3.0}',
            '["factor"]',
            "8: constants is ['factor'], expected a dict, name -> nu",
        ),
        ('{"factor": 3.0}', '{"factor": "3"}', "8: constants is {'factor': '3'}, expected a dict"),
        (
            '{"factor": 3.0}',
            '{"factor": float("nan")}',
            "8: constants is {'factor': nan}, expected",
        ),
        (
            '("rows", "columns")',
            '("rows", "rows")',
            "7: sizes names 'rows' again; each name stands",
        ),
        ("def compute", "def computes", "6: Scale lacks compute"),
        ("from pathlib import Path", "import nothing_like_this", "1: ModuleNotFoundError: No mod"),
        ("from pathlib import Path", "import sys; sys.exit()", "1 called sys.exit()"),
        ("from pathlib import Path", "raise KeyboardInterrupt", "1: KeyboardInterrupt"),
        ("class Scale(UserProblem):", "class Scale(UserProblem:", "6: SyntaxError: "),
    ],
)
def test_a_mistake_in_the_class_or_the_file_is_told_with_its_line(
    invoke: Invoke, folder: Path, before: str, after: str, line: str
) -> None:
    (folder / "problem.py").write_text(PROBLEM.replace(before, after))
    _expect(invoke("check", "space.yaml"), line)


@pytest.mark.parametrize(
    ("wrong", "own", "hint"),
    [
        ("torch:egaer", True, "torch:eager"),
        pytest.param("torch:compild", True, "torch:compiled", marks=pytest.mark.soak),
        pytest.param("trch:best", False, "torch:best", marks=pytest.mark.soak),
        pytest.param("torch:compiled", False, "", marks=pytest.mark.soak),
        pytest.param("fa4", True, "", marks=pytest.mark.soak),
    ],
)
def test_a_misspelt_baseline_is_told_with_those_of_the_problem(
    invoke: Invoke, folder: Path, wrong: str, own: bool, hint: str
) -> None:
    two = 'return {"torch:eager": self._f(x), "torch:compiled": self._f(x)}'
    two += "\n\n    def _f(self, x):\n        return lambda: self.compute(x)"
    text = PROBLEM.replace(DEFINITION["baselines_of"][2], two)
    (folder / "problem.py").write_text(
        text if own else PROBLEM.partition("    def baselines_of")[0]
    )
    (folder / "space.yaml").write_text(SPACE.replace("torch:best", wrong))
    result = invoke("check", "space.yaml", "--no-compile")
    assert (result.exit_code, result.stdout) == (2, "")
    known = "torch:best, torch:compiled, torch:eager" if own else "torch:best, torch:eager"
    end = f"did you mean '{hint}'?" if hint else f"known: best, {known}"
    line = f"space.yaml:15:11: unknown baseline '{wrong}'; {end}"
    assert result.stderr.splitlines()[-1].endswith(line)


@pytest.mark.parametrize("rows", [40, pytest.param(1 << 23, marks=pytest.mark.soak)])
def test_a_baseline_that_the_sizes_of_a_run_have_is_no_mistake(
    invoke: Invoke, folder: Path, rows: int
) -> None:
    """The tiny case has no such baseline. Of large sizes nothing is known without a run."""
    some = DEFINITION["baselines_of"][2] + " | self._more(x)"
    some += "\n\n    def _more(self, x):"
    some += '\n        return {"torch:rows": lambda: self.compute(x)} if len(x) % 8 == 0 else {}'
    (folder / "problem.py").write_text(PROBLEM.replace(DEFINITION["baselines_of"][2], some))
    text = SPACE.replace("torch:best", "torch:rows").replace("rows: 40", f"rows: {rows}")
    (folder / "space.yaml").write_text(text)
    assert invoke("check", "space.yaml", "--no-compile").exit_code == 0


@pytest.mark.soak
def test_on_another_device_a_problem_may_have_baselines_of_its_own(folder: Path) -> None:
    """The names that `baselines_of` gives on a CPU say nothing of a GPU."""
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    cases = [problem.case({"rows": 3, "columns": 5}, {})]
    source = ProblemSource("problem.py:Scale", "float32", folder)
    for timed, expected in ((True, ("torch:eager",)), (False, ())):
        assert check_problem(problem, source, cases, timed=timed).baselines == expected
    assert baseline_names(problem) == ()
    (folder / "problem.py").write_text(PROBLEM.partition("    def baselines_of")[0])
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    assert baseline_names(problem) == ("torch:eager",)


def test_a_process_that_ends_itself_is_told(invoke: Invoke, folder: Path) -> None:
    _spoil(folder, "compute", "import os; os._exit(5)")
    result = invoke("check", "space.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    line = "error: the process that tried problem.py:Scale ended with status 5\n"
    assert result.stderr.endswith(line)


@pytest.mark.parametrize(
    ("before", "after", "place", "words"),
    [
        ("{rows: 40,", "{row: 40,", "6:13", "unknown size 'row'; known: rows, columns"),
        ("{rows: 40, columns", "{columns", "6:12", "the shape lacks rows"),
        ("{rows: 40,", "{rows: 0,", "6:13", "expected rows to be an integer of at least 1, got 0"),
        ("{rows: 3,", "{rows: 3.5,", "7:15", "expected rows to be an integer of at least 1, got 3"),
        ("{rows: 3, ", "{rows: 3, depth: 1, ", "7:24", "unknown size 'depth'; known: rows"),
        ("  held", "  variants: [{fast: true}]\n  held", "7:15", "Scale has no variants, got"),
        ("float32", "float64", "5:3", "problem problem.py:Scale has no dtype 'float64'"),
        ("problem.py:Scale", "problem.py:Scaled", "4:3", "problem.py has no class Scaled"),
        ("problem.py:Scale", "scales", "4:3", "unknown problem 'scales'"),
    ],
)
def test_a_mistake_under_problem_points_at_its_key(
    invoke: Invoke, folder: Path, before: str, after: str, *, place: str, words: str
) -> None:
    assert SPACE.count(before) == 1
    (folder / "space.yaml").write_text(SPACE.replace(before, after))
    result = invoke("check", "space.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: space.yaml:{place}: {words}"), result.stderr


def test_a_shape_that_check_refuses_is_pointed_at(invoke: Invoke, folder: Path) -> None:
    _spoil(folder, "check", "if rows == 3: raise ValueError('no 3 rows')")
    result = invoke("check", "space.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: space.yaml:7:14: no 3 rows\n"


def test_a_problem_is_tried_without_pytorchs_compiler_and_its_prints_are_no_data(
    invoke: Invoke, folder: Path
) -> None:
    """PyTorch's compiler takes about as long to import as the rest of PyTorch."""
    printed = {
        "operations": "print('I am operations')",
        "compute": "import sys; print('I am compute, compiler:', 'torch._dynamo' in sys.modules)",
    }
    for method, statement in printed.items():
        body = DEFINITION[method][2]
        text = (folder / "problem.py").read_text()
        (folder / "problem.py").write_text(text.replace(body, f"{statement}; {body}", 1))
    result = invoke("check", "space.yaml", "--no-compile")
    assert result.exit_code == 0, result.stderr
    assert "I am" not in result.stdout
    assert "I am operations\n" in result.stderr
    assert "I am compute, compiler: False\n" in result.stderr
    assert "compiler: True" not in result.stderr
    listed = invoke("compile", "space.yaml", "--format", "json")
    assert (listed.exit_code, listed.stdout[0]) == (0, "[")


@pytest.mark.soak
def test_verify_tells_a_mistake_that_came_later(invoke: Invoke, folder: Path) -> None:
    """The run's problem file is unchanged, but another file that it depends on is gone."""
    _spoil(folder, "compute", "return {'out': 3.0 * x} if Path('good').exists() else {}")
    (folder / "good").touch()
    assert invoke("run", "space.yaml").exit_code == 0
    (folder / "good").unlink()
    result = invoke("verify", "latest")
    _expect(result, "22: compute gave nothing; the outputs are out")
