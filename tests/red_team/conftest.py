from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cpu_kernels import one_thread

from .in_process import Teams, childless
from .pipeline import Pipeline


@pytest.fixture(scope="session", autouse=True)
def _children_find_evotune() -> Iterator[None]:
    """Child processes find evotune even if it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        patch.setenv("PYTHONPATH", path)
        yield


@pytest.fixture(scope="module")
def cheats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """One pipeline for all cheats: none may help or harm a later one."""
    pipeline = Pipeline(
        tmp_path_factory.mktemp("cheats"), "cheats_cpu.yaml", "cheats_cpu_attacks.yaml"
    )
    yield pipeline
    pipeline.close()


class Pipelines:
    """A pipeline for each group of spaces of one problem, opened when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, ...], Pipeline] = {}

    def of(self, *spaces: str) -> Pipeline:
        if spaces not in self._open:
            self._open[spaces] = Pipeline(self._folder / spaces[0], *spaces)
        return self._open[spaces]

    def close(self) -> None:
        for pipeline in self._open.values():
            pipeline.close()


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path_factory.mktemp("pipelines"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    """Kernels for the gate in this process."""
    with one_thread(), childless():
        yield Teams(tmp_path_factory.mktemp("teams"))
