from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.export.runtime.calling import served_since
from tests.export.runtime.packages import attention_package, imported

_numbers = itertools.count()


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled kernels."""
    return tmp_path_factory.mktemp("binaries")


@pytest.fixture
def opened(tmp_path: Path, binaries: Path) -> Iterator[Callable[..., ModuleType]]:
    """Makes an attention package, with the given changes of its dispatch.json, and imports it."""
    with ExitStack() as stack:

        def make(**changes: Any) -> ModuleType:
            name = f"kept_{next(_numbers)}"  # operators of earlier tests stay registered
            package = attention_package(tmp_path, binaries, name, **changes)
            return stack.enter_context(imported(package))

        yield make


@pytest.fixture
def served(package: ModuleType) -> Callable[[], int]:
    """A function that gives the number of calls that a test's `package` has served since the last
    time."""
    return served_since(package)
