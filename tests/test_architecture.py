"""Rules of the code's structure: imports, names and sizes of modules."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import evotune

_ROOT = Path(__file__).parents[1]
_MOST_LINES = 800


@functools.cache
def graph() -> grimp.ImportGraph:
    """Imports inside functions count, and so do those for type checkers."""
    return grimp.build_graph("evotune", exclude_type_checking_imports=False, cache_dir=None)


def files() -> list[Path]:
    folders = (_ROOT / name for name in ("evotune", "benchmarks"))
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def test_no_imports_form_a_circle() -> None:
    needs = {
        module: {
            needed
            for needed in graph().find_modules_directly_imported_by(module)
            if not graph().find_children(module) or not needed.startswith(f"{module}.")
        }
        for module in graph().modules
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_module_has_the_name_of_another_one_in_its_folder() -> None:
    known = collections.defaultdict(list)
    for module in graph().modules:
        folder, _, name = module.rpartition(".")
        known[folder, name.lstrip("_")].append(module)
    assert not {name: modules for name, modules in known.items() if len(modules) > 1}


def test_no_folder_has_the_name_of_a_function_that_evotune_offers() -> None:
    """An import of the folder would take the function's place."""
    folders = {module.split(".")[1] for module in graph().modules if "." in module}
    offered = {name for name in evotune.__all__ if name.islower()}
    assert not folders & offered


def test_only_its_own_package_imports_a_module_with_an_underscore() -> None:
    wrong = [
        f"{user} imports {module}"
        for module in graph().modules
        if module.rpartition(".")[2].startswith("_") and module != "evotune.__main__"
        for user in graph().find_modules_that_directly_import(module)
        if not user.startswith(module.rpartition(".")[0])
    ]
    assert not wrong


def test_a_worker_that_compiles_starts_without_what_it_needs_not() -> None:
    """Each run starts one a core. NumPy, the language of expressions and the standard library's
    reader of packages' metadata (and of e-mail) each made their start longer."""
    needless = {"torch", "numpy", "importlib.metadata", "evotune.space.language"}
    code = f"import sys, evotune.workers.compile_worker; print(*{needless} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_module_is_short_enough_to_be_read_at_once() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    long = {str(p.relative_to(_ROOT)): n for p, n in lengths.items() if n > _MOST_LINES}
    assert not long


def test_nothing_follows_what_makes_a_module_a_program() -> None:
    """A program would run without the names that follow."""
    late = [
        str(path.relative_to(_ROOT))
        for path in files()
        if "templates" not in path.parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body[:-1]
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ]
    assert not late
