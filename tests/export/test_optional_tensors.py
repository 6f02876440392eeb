"""Packages of problems with inputs that a call may lack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evotune.errors import UsageError
from evotune.export.exporting import export_runs
from evotune.problems import create_problem
from evotune.runs.folder import RunFolder
from tests.export.runtime.packages import imported

from .making import fabricated

PROBLEM = """
from evotune.problems import Tensor, UserProblem


class Shifted(UserProblem):
    '''out = x + bias[pick], where there are such; without `doubled`, half of it.'''

    sizes = ("rows", "columns")
    constants = {"half": 0.5}
    flags = ("has_bias", "doubled")
    optional = ("bias", "pick")

    def inputs(self, rows, columns, has_bias, doubled):
        bias = {"bias": (columns,), "pick": Tensor((columns,), "int32", range(columns))}
        return {"x": (rows, columns), **(bias if has_bias else {})}

    def outputs(self, rows, columns, has_bias, doubled):
        return {"out": (rows, columns)}

    def operations(self, rows, columns, has_bias, doubled):
        return rows * columns

    def compute(self, x, bias=None, pick=None):
        return {"out": x if bias is None else x + bias[pick.long()]}
"""
SPACE = """
name: shifted
root: .
problem:
  name: problem.py:Shifted
  dtype: float32
  shapes: [{rows: 8, columns: 64}]
  variants: [{has_bias: true, doubled: true}, {has_bias: false, doubled: true}]
kernels:
  shift:
    source: shift.cpp
    entry: shift
    define: [doubled]
    arguments: [x, bias, pick, out, rows, columns]
parameters: {UNROLL: [1, 2]}
baseline: torch:best
"""
KERNEL = """
extern "C" void shift(const float* x, const float* bias, const int* pick, float* out, int rows, int columns) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      out[r * columns + c] = (DOUBLED ? 1.0f : 0.5f) * (x[r * columns + c] + (bias ? bias[pick[c]] : 0.0f));
}
"""  # noqa: E501


def shifted(folder: Path, problem: str = PROBLEM) -> RunFolder:
    (folder / "problem.py").write_text(problem)
    (folder / "space.yaml").write_text(SPACE)
    (folder / "shift.cpp").write_text(KERNEL)
    return fabricated(folder / "space.yaml", folder)


pytestmark = pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shifted")
    export_runs([shifted(made)], made / "pkg", "shifted_package")
    return made / "pkg" / "shifted_package"


@pytest.fixture
def package(folder: Path) -> Iterator[ModuleType]:
    with imported(folder) as module:
        yield module


def inputs(rows: int = 8, columns: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    pick = torch.randint(columns, (columns,), generator=generator, dtype=torch.int32)
    return x, torch.randn(columns, generator=generator), pick


def test_a_call_may_lack_them(package: ModuleType) -> None:
    x, bias, pick = inputs()
    wanted = x + bias[pick.long()]
    for given in ((x, bias, pick), (x, bias)):
        named = {} if len(given) == 3 else {"pick": pick}
        torch.testing.assert_close(package.shifted(*given, **named), wanted)
    assert torch.equal(package.shifted(x), x)
    assert torch.equal(package.shifted(x=x, bias=None, pick=None), x)
    assert torch.equal(package.shifted(x, doubled=False), x / 2)
    assert torch.equal(package.shifted(x, doubled=None), x)
    torch.testing.assert_close(package.shifted(x, bias, pick, doubled=False), wanted / 2)
    assert package.info()["calls"] == 7
    assert package.info()["misses"] == {}
    operators = getattr(torch.ops, package.__name__)
    assert torch.equal(operators.shifted(x), x)
    torch.testing.assert_close(operators.shifted(x, bias, pick, doubled=True), wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pick": None}, "a call must give all or none of bias, pick"),
        ({"bias": torch.ones(3)}, "the kernels take x (rows, columns)"),
        ({"pick": torch.full((64,), 64, dtype=torch.int32)}, "pick holds 64"),
    ],
)
def test_a_call_that_fits_no_case_goes_to_the_fallback(
    package: ModuleType, change: dict[str, Any], words: str
) -> None:
    x, bias, pick = inputs()
    with pytest.raises((AttributeError, IndexError, RuntimeError)):  # of `compute`
        package.shifted(**{"x": x, "bias": bias, "pick": pick, **change})
    assert package.info()["calls"] == 0
    (miss,) = package.info()["misses"].values()
    assert words in miss["first"]


def test_misses_are_cases_of_the_problem(package: ModuleType, folder: Path) -> None:
    problem = create_problem("problem.py:Shifted", "float32", folder.parents[1])
    x, bias, pick = inputs(rows=100_000)
    package.shifted(x, bias, pick)
    package.shifted(x)
    missed = [problem.case(each["shape"], each["variant"]).label for each in package.misses()]
    assert missed == ["(100000,64) has_bias doubled", "(100000,64) doubled"]


def test_the_fallback_may_lack_them_too(package: ModuleType) -> None:
    x, bias, pick = inputs()
    wide = x.double().requires_grad_()
    torch.testing.assert_close(package.shifted(wide, bias, pick), wide + bias[pick.long()])
    assert torch.equal(package.shifted(wide), wide)
    assert package.info()["calls"] == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's
def test_the_operator_keeps_its_promises(package: ModuleType) -> None:
    overload = getattr(torch.ops, package.__name__).shifted.default
    words = "Tensor x, Tensor? bias=None, Tensor? pick=None, *, "
    assert words in str(overload._schema)
    for given in (inputs(), inputs()[:1]):
        torch.library.opcheck(overload, given, {"doubled": False})
    compiled = torch.compile(lambda x: package.shifted(x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(inputs()[0]), inputs()[0] + 1)
    assert package.check()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("if has_bias else", "if has_bias and doubled else", "each input must always be present"),
        (
            '{"x": (rows, columns),',
            '{"x": (rows, columns + doubled),',
            "a flag must not change shapes",
        ),
        (
            'return {"out": (rows, columns)}\n',
            'return {"out": (rows, columns), **({"bias": (rows,)} if doubled else {})}\n',
            "",
        ),
    ],
)
def test_other_flags_are_refused_in_one_line(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    if not words:  # outputs
        text = PROBLEM.replace('optional = ("bias", "pick")', 'optional = ("bias", "pick", "sum")')
        text = text.replace(before, after.replace('"bias"', '"sum"'))
        words = "a package takes no outputs that may be left out"
    else:
        text = PROBLEM.replace(before, after)
    assert text != PROBLEM
    run = shifted(tmp_path, text)
    with pytest.raises(UsageError, match=words) as caught:
        export_runs([run], tmp_path / "pkg")
    assert "\n" not in str(caught.value)
