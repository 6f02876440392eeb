"""No modules import each other in a circle, even by imports inside functions."""

from __future__ import annotations

import graphlib

import grimp
import pytest


def test_no_imports_form_a_circle() -> None:
    """Imports inside functions count; imports for type checkers do not."""
    graph = grimp.build_graph("evotune", exclude_type_checking_imports=True, cache_dir=None)
    needs = {
        module: {
            needed
            for needed in graph.find_modules_directly_imported_by(module)
            if not graph.find_children(module) or not needed.startswith(f"{module}.")
        }
        for module in graph.modules
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
