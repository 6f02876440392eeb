"""The modules that packages carry need torch and the standard library, nothing of evotune."""

from __future__ import annotations

import ast
import sys

from evotune.backends import registry
from tests.export.runtime.packages import RUNTIME

ALLOWED = {*sys.stdlib_module_names, "torch", "transformers"}


def test_they_import_nothing_else() -> None:
    sources = {path.name: path.read_text() for path in RUNTIME.glob("*.py")}
    for backend in registry.own():
        files = backend.exported_files("any")
        sources |= {name: data.decode() for name, data in files.items() if name.endswith(".py")}
    assert len(sources) > 10
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= ALLOWED, name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert str(node.module).partition(".")[0] in ALLOWED, name
