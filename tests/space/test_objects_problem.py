"""A problem given as a class: evotune writes it into a module, which its processes read."""

from __future__ import annotations

import functools
import importlib
import linecache
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from evotune.api.given_space import materialize
from evotune.errors import ProblemMistake, SpaceError
from evotune.problems import UserProblem, create_problem
from evotune.space.objects import CppKernel, Space
from evotune.user_code import trust

SCALE = """
class Scale(UserProblem):
    sizes = ("n",)

    def inputs(self, n):
        return {"x": (n,)}

    def outputs(self, n):
        return {"out": (n,)}

    def operations(self, n):
        return n

    def compute(self, x):
        return {"out": scaled(x)}
"""
HEAD = "from evotune.problems import UserProblem\n"
SCALED = "def scaled(x):\n    return 3.0 * x\n"


def space(kind: Any, **given: Any) -> Space:
    kernel = CppKernel(source_text="// none", entry="f", arguments=["x", "out", "n"])
    common = {"kernel": kernel, "parameters": {"A": [1]}, "shapes": [{"n": 8}]}
    return Space(problem=kind, **{**common, **given})


def result(made: Space, folder: Path) -> float:
    """The problem's output for 2.0, computed by the written module."""
    document = Space.from_yaml(materialize(made, folder)).document
    assert document.problem is not None
    problem = create_problem(document.problem.name, "float32", folder)
    assert type(problem) is not made.problem, "the class was read from the folder"
    case = problem.case({"n": 8}, {})
    return float(problem.reference(case, {"x": torch.full((8,), 2.0)})["out"][0])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes modules into the working folder and imports them."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    known = set(sys.modules)

    def write(text: str, name: str = "my_problem") -> ModuleType:
        (folder / f"{name}.py").write_text(text)
        return importlib.import_module(name)

    yield write
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and "here" in str(sys.modules[name]):
            del sys.modules[name]


def cell(text: str, number: int, shared: ModuleType) -> None:
    """Runs the text as a notebook runs a cell: it is in `linecache` and in no file."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    FunctionType(compile(text, name, "exec"), vars(shared))()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    shared = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", shared)
    return shared


def test_a_class_of_a_module_brings_what_it_uses(
    module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    module("FACTOR = 2.0\n\ndef doubled(x):\n    return FACTOR * x\n", "helpers")
    mine = module(
        "from __future__ import annotations\n"
        + HEAD
        + "import functools\nimport math\nimport xml.etree.ElementTree\nimport os.path as where\n"
        + "from collections.abc import Mapping\nfrom helpers import doubled\n\n"
        + "FACTOR_OF = {'a': (1, 1.5), 'inf': float('inf'), 'b': {1, 2}}\nUNUSED = object()\n\n"
        + "def scaled(x: Unknown) -> Mapping[str, float]:\n"
        + "    names = [math.e for math.e in ()]\n"
        + "    xml.etree.ElementTree.Element('a'), where.join('a', 'b'), Mapping\n"
        + "    return doubled(x) * FACTOR_OF['a'][1] if FACTOR_OF['inf'] > 9 else recursive(x)\n\n"
        + "@functools.cache\ndef recursive(x):\n    return scaled(recursive(x))\n\n"
        + "class Base(UserProblem):\n    dtypes = ('float32',)\n"
        + SCALE.replace("UserProblem", "Base")
    )
    assert result(space(mine.Scale), tmp_path / "out") == 6.0
    text = (tmp_path / "out" / "problem.py").read_text()
    assert "UNUSED" not in text
    assert "helpers import" not in text
    assert f"# {mine.__file__}:" in text, "where each part stands"


def test_lines_of_one_file_keep_their_numbers(
    module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    text = HEAD + "print('side effect')\n\n\n" + SCALED + "\n\n" + SCALE
    mine = module(text)
    made = space(mine.Scale)
    materialize(made, tmp_path)
    written = (tmp_path / "my_problem.py").read_text().splitlines()
    for number, line in enumerate(text.splitlines()):
        if number > 3:
            assert written[number] == line
    assert "side effect" not in "".join(written)


def test_a_mistake_in_a_class_is_told_at_the_caller_s_line(
    module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    text = HEAD + "\n\n" + SCALE.replace("scaled(x)", "colums")
    line = 1 + text.splitlines().index('        return {"out": colums}')
    made = space(module(text).Scale)
    with pytest.raises(ProblemMistake, match=rf"^my_problem\.py:{line}: NameError: .*colums"):
        result(made, tmp_path)


def test_a_class_of_a_notebook_s_cells(notebook: ModuleType, tmp_path: Path) -> None:
    cell(HEAD + "import math\nGAIN = 2.0", 1, notebook)
    cell("def scaled(x):\n    return GAIN * math.ceil(1.5) * x", 2, notebook)
    cell(SCALE, 3, notebook)
    assert result(space(notebook.Scale), tmp_path) == 8.0
    cell(SCALE.replace("scaled(x)", "x"), 3, notebook)
    assert result(space(notebook.Scale), tmp_path) == 2.0


def test_a_class_that_was_made_in_a_function(tmp_path: Path) -> None:
    gain = 2.5

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return gain * x

    class Local(UserProblem):
        sizes = ("n",)

        def inputs(self, n: int) -> dict:
            return {"x": (n,)}

        def outputs(self, n: int) -> dict:
            return {"out": (n,)}

        def operations(self, n: int) -> int:
            return n

        def compute(self, x: torch.Tensor) -> dict:
            text = """
left
"""
            return {"out": scaled(x) + len(text) - 6}

    assert result(space(Local), tmp_path) == 5.0


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "tune.py"
    script.write_text(
        "print('the script runs')\n"
        "import os\n"
        "from pathlib import Path\n"
        "from evotune.runs.inspect import try_problem\n"
        "from evotune.runs.setup import load_setup\n"
        "from evotune.api.given_space import materialize\n"
        "from evotune.space.objects import CppKernel, Space\n" + HEAD + SCALED + SCALE + "\n"
        "os.chdir('elsewhere')\n"
        "kernel = CppKernel(source_text='// none', entry='f', arguments=['x', 'out', 'n'])\n"
        "space = Space(kernel=kernel, problem=Scale, shapes=[{'n': 8}], parameters={'A': [1]})\n"
        "setup = load_setup(materialize(space, Path('out')), 'cpu')\n"
        "try_problem(setup)  # in a process of its own\n"
        "print(setup.space.size().valid, 'configuration')\n"
    )
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "the script runs\n1 configuration\n", done.stderr
    assert (tmp_path / "elsewhere" / "out" / "tune.py").is_file()


def test_a_class_typed_at_a_prompt_is_one_clear_error() -> None:
    text = (
        HEAD + SCALE.replace("\n\n    def", "\n    def").lstrip() + "\n"
        "from evotune.space.objects import CppKernel, Space\n"
        "from evotune.errors import SpaceError\n"
        "try:\n"
        "    Space(kernel=CppKernel('a.cpp', 'f'), problem=Scale, parameters={'A': [1]},"
        " shapes=[{'n': 1}])\n"
        "except SpaceError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout == (
        "Space.problem: the source of Scale cannot be read: it is in no file and in no cell of "
        'a notebook. Put it into a file, and pass problem="problem.py:Scale"\n'
    ), done.stderr


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("scaled = object()", "Scale uses the global scaled, <object object"),
        ("scaled = functools.partial(max, 1)", "Scale uses the global scaled, functools.partial"),
        ("scaled = [1, object()]", "Scale uses the global scaled, a list of 2"),
        ("scaled = lambda x: x", "the source of <lambda> cannot be read"),
        ("import beside as scaled", "Scale uses the module beside, which is not installed"),
        ("def other(x): return x\nscaled = other", "other is used by another name, scaled"),
        ("GAIN = 3\nfrom beside import gain as gain\ndef scaled(x): return GAIN * gain(x)",
         "Scale uses two different globals of the name GAIN"),
    ],
)  # fmt: skip
def test_a_global_that_cannot_be_handed_over_is_named(
    module: Callable[..., ModuleType], before: str, words: str
) -> None:
    module("GAIN = 2\ndef gain(x): return GAIN * x\n", "beside")
    mine = module(HEAD + "import functools\n" + before + "\n" + SCALE)
    with pytest.raises(SpaceError) as caught:
        space(mine.Scale)
    assert caught.value.place == "Space.problem"
    assert words in caught.value.message
    assert "\n" not in str(caught.value)


class NoProblem:
    def compute(self) -> None: ...


def test_a_class_that_is_no_problem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"^Space\.problem: .*functools.*partial"):
        space(functools.partial(UserProblem, "float32"))
    words = r"^Space\.problem: NoProblem does not derive from evotune\.Problem$"
    with pytest.raises(SpaceError, match=words):
        materialize(space(NoProblem), tmp_path)


@pytest.mark.usefixtures("nobody_agreed")
def test_the_caller_s_own_code_needs_no_agreement_and_a_foreign_file_does(
    module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    mine = module(HEAD + SCALED + SCALE)
    assert result(space(mine.Scale), tmp_path / "out") == 6.0
    trust._agreed.clear()  # as in a later process, which resumes the run
    create_problem("my_problem.py:Scale", "float32", tmp_path / "out")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "k.cpp").write_text("// foreign\n")
    (foreign / "p.py").write_text(HEAD + SCALED + SCALE + "# foreign\n")
    kernel = CppKernel("k.cpp", "f")
    made = space("p.py:Scale", kernel=kernel, root=foreign)
    with pytest.raises(
        SpaceError, match=r"^CppKernel: this would execute .*k\.cpp, which lies out"
    ):
        materialize(made, tmp_path / "out")
    with pytest.raises(SpaceError, match=r"^Space\.problem: this would execute .*p\.py"):
        materialize(made, tmp_path / "out", compile_only=True)


def test_a_problem_and_a_kernel_of_one_file_do_not_collide(
    module: Callable[..., ModuleType], tmp_path: Path
) -> None:
    from evotune.space.objects import Launch, TritonKernel

    mine = module(HEAD + SCALED + SCALE + "def kernel(): pass\n")
    kernel = TritonKernel("my_problem.py", "kernel", ["x", "out"], [Launch(["n"])])
    made = space(mine.Scale, kernel=kernel)
    assert result(made, tmp_path / "out") == 6.0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["my_problem.py", "my_problem_problem.py", "space.yaml"]
