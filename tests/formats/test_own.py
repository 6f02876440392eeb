"""evotune's own format: which kernel and task files give, and that nothing is executed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import evotune
from evotune import formats
from evotune.api.gate_candidates import gated
from evotune.api.given_space import SpaceKeywords
from evotune.errors import UsageError
from evotune.formats import own
from evotune.space.objects import CppKernel, PythonCallable

PROBLEM = """
raise SystemExit("executed")
from evotune.problems import UserProblem

class Base(UserProblem):
    pass

class Sum(Base):
    shapes = [{"rows": 8, "columns": 64}, {"rows": 9, "columns": 3}]
"""
CPP = """
// extern "C" void old(const float* y) {}
extern "C" __attribute__((noinline)) void row_sum(const float *x /* in */, float out[], int rows,
                                                  int columns) {
}
static void helper(int a) {}
"""
TASK = """
name: sums
root: .
problem: {name: "problem.py:Sum", shapes: [{rows: 8, columns: 64}]}
kernels:
  row_sum: {source: own.cpp, entry: row_sum, arguments: [x, out, rows, columns]}
parameters: {PARTS: [1, 2]}
default: {PARTS: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "sum.cpp").write_text(CPP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cpp_file_and_a_problem(folder: Path) -> None:
    task = Path("problem.py:Sum")
    assert formats.detect(Path("sum.cpp"), task) == formats.EVOTUNE
    given = formats.load(Path("sum.cpp"), task, formats.EVOTUNE, folder)
    assert isinstance(given.kernel, CppKernel)
    assert (given.kernel.entry, given.kernel.arguments) == (
        "row_sum",
        ["x", "out", "rows", "columns"],
    )
    assert given.keywords["problem"] == "problem.py:Sum"
    assert given.keywords["shapes"] == [{"rows": 8, "columns": 64}, {"rows": 9, "columns": 3}]
    evotune.Space(kernel=given.kernel, parameters={"A": [1]}, **given.keywords)


def test_a_problem_has_the_shapes_of_its_base(folder: Path) -> None:
    with (folder / "problem.py").open("a") as file:
        file.write("\nclass More(Sum):\n    sizes = ()\n\nclass Wrong(Sum):\n    shapes = 3\n")
    given = own.load(Path("sum.cpp"), Path("problem.py:More"))
    assert len(given.keywords["shapes"]) == 2
    with pytest.raises(UsageError, match=r"Wrong\.shapes: expected a list such as"):
        own.load(Path("sum.cpp"), Path("problem.py:Wrong"))
    with pytest.raises(UsageError, match="must have one problem; it has Base, Sum, More, Wrong"):
        own.load(Path("sum.cpp"), Path("problem.py"))


def test_the_candidate_replaces_the_kernel_of_a_space(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    candidate = folder / "elsewhere" / "mine.cpp"
    candidate.write_text("// mine")
    given = own.load(candidate, Path("task.yaml"), shapes=[{"rows": 1, "columns": 2}])
    assert (given.kernel.source_text, str(given.kernel.source)) == ("// mine", "own.cpp")
    space = evotune.Space(kernel=given.kernel, **given.keywords)
    assert space.document.name == "sums"
    assert space.shapes == [{"rows": 1, "columns": 2}]
    assert space.written_files["own.cpp"] == b"// mine"


def test_a_function_becomes_a_callable_of_its_module(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "kernels.py").write_text(
        "raise SystemExit\ndef plain(x): ...\ndef maker(configuration, case): ...\n"
    )
    keywords: SpaceKeywords = {"problem": "problem.py:Sum", "root": folder}
    plain, _ = gated("package.kernels:plain", keywords)
    maker, _ = gated("package.kernels:maker", keywords)
    assert isinstance(plain, PythonCallable)
    assert isinstance(maker, PythonCallable)
    assert plain.source_text is not None
    assert "from package.kernels import plain" in plain.source_text
    assert maker.entry == "maker"
    assert maker.source == folder / "package" / "kernels.py"


def test_the_root_holds_the_candidate_and_the_problem(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("candidates")
    (elsewhere / "fast.py").write_text("def fast(x): ...\n")
    keywords: SpaceKeywords = {"problem": "problem.py:Sum", "root": folder}
    kernel, given = gated(elsewhere / "fast.py", keywords)
    root = Path(given["root"])
    problem = str(given["problem"]).partition(":")[0]
    assert root / problem == folder / "problem.py"
    assert isinstance(kernel, PythonCallable)
    assert (root / str(kernel.source)).parent == elsewhere


@pytest.mark.parametrize("name", ["0.py", "a.b.py", "cand-1.py", "fast.py"])
def test_a_python_file_may_have_any_name(folder: Path, name: str) -> None:
    (folder / name).write_text("def fast(x): ...")
    kernel, _ = gated(folder / name, {"root": folder})
    assert isinstance(kernel, PythonCallable)
    assert Path(str(kernel.source)).stem.isidentifier()
    assert str(kernel.source_text).startswith("def fast(x): ...\n\ndef ")


def local(x: object) -> object:
    return helper(x)


def helper(x: object) -> object:
    return [x, LIMIT]


LIMIT = 3


def test_a_function_of_a_script_is_taken_with_all_that_it_uses() -> None:
    def inner(x: object) -> object:
        return helper(x)

    kernel, _ = gated(inner, {})
    assert isinstance(kernel, PythonCallable)
    text = str(kernel.source_text)
    names: dict[str, object] = {}
    exec(compile(text, "text", "exec"), names)  # noqa: S102
    made = names[str(kernel.entry)]({}, {})  # type: ignore[operator]
    assert made(1) == [1, 3]
    named, _ = gated(local, {})
    assert f"from {__name__} import local" in str(named.source_text)  # type: ignore[union-attr]


@pytest.mark.parametrize("candidate", [lambda x: x, print, object()])
def test_what_has_no_source_is_refused(candidate: object) -> None:
    with pytest.raises(evotune.EvotuneError):
        evotune.gate(candidate, problem="attention", shapes=[])  # type: ignore[arg-type]
