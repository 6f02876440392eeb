"""No module outside a backend's folder knows a backend or a language by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import evotune
from evotune.backends import registry
from evotune.languages import own_languages

PACKAGE = Path(evotune.__file__).parent
ROOMS = PACKAGE / "backends"
EXCEPTIONS = {
    # The torch device on which a problem's tensors are made.
    "problems/problem.py": {"cpu"},
    "problems/attention.py": {"cpu"},
    "problems/user.py": {"cpu"},
    "problems/ragged_attention.py": {"cpu"},
    "problems/examination.py": {"cpu"},
    "problems/row_tolerances.py": {"cpu"},
    "verify/pool.py": {"cpu"},
    "verify/gate.py": {"cpu"},
    "formats/describing.py": {"cpu"},
    "formats/flashinfer_export.py": {"cpu"},
    "formats/foreign_reference.py": {"cpu"},
    "formats/gpumode.py": {"cpu"},
    "formats/reference_modes.py": {"cuda"},
    # Names of languages in FlashInfer-Bench's files.
    "formats/flashinfer_bench.py": {"cpp", "cuda", "triton"},
    "formats/flashinfer_solutions.py": {"triton"},
    # A word in Linux's /proc/stat.
    "backends/base/cpu_cores.py": {"cpu"},
    # Each of these API classes is for one language.
    "space/objects/kernel_objects.py": {"cpp", "cuda", "triton", ".cpp", ".cu"},
    # All of these libraries are for CUDA GPUs.
    "problems/libraries/calling.py": {"cuda"},
    # The name of a module that PyTorch needs.
    "util/commands.py": {"triton"},
    # Part of a help text.
    "cli/options.py": {"auto|cpu[:N]|cuda:N|NAME"},
}
"""File -> the literals that it may contain."""
CUDA_ONLY = "extras/kernel_tuner/"
"""This folder imports scripts whose kernels are all CUDA."""
ALSO_OTHERS = {".py", "python"}
"""Words that also mean something else: a suffix of other files, the version of an interpreter."""


def names() -> set[str]:
    found = {backend.name for backend in registry.own()}
    for language in own_languages():
        found |= {language.name, *language.suffixes}
    return found - ALSO_OTHERS


def modules() -> Iterator[tuple[str, ast.Module]]:
    rooms = [ROOMS / backend.name for backend in registry.own()]
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = any(path.is_relative_to(room) for room in rooms) or "templates" in path.parts
        name = path.relative_to(PACKAGE).as_posix()
        if not inside and not name.startswith(CUDA_ONLY):
            yield name, ast.parse(path.read_text())


def literals(tree: ast.Module) -> Iterator[str]:
    """All string literals except the docstrings of modules, functions and fields."""
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in words and isinstance(node.value, str):
            yield node.value


def is_named(literal: str, known: set[str]) -> bool:
    """Whether the literal names a backend or a language, or requests a device. No sentence does."""
    parts = {part for word in literal.split("|") for part in (word, word.partition(":")[0])}
    return " " not in literal and not parts.isdisjoint(known)


def test_no_literal_of_a_backend_or_a_language_stands_outside_its_folder() -> None:
    known = names()
    assert {"cpu", "cuda", "cpp", "triton", ".cu", ".cpp"} <= known
    found = {
        name: strangers
        for name, tree in modules()
        if (
            strangers := {word for word in literals(tree) if is_named(word, known)}
            - EXCEPTIONS.get(name, set())
        )
    }
    assert found == {}


def test_no_module_outside_imports_from_a_backends_folder() -> None:
    rooms = tuple(f"evotune.backends.{backend.name}" for backend in registry.own())
    for name, tree in modules():
        for node in ast.walk(tree):
            imported = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            assert not [each for each in imported if each.startswith(rooms)], name


@pytest.mark.parametrize("backend", registry.own(), ids=lambda backend: backend.name)
def test_a_folder_has_the_name_of_its_backend(backend: registry.Backend) -> None:
    assert (ROOMS / backend.name / "__init__.py").is_file()
