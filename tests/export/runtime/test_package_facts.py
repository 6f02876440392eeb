"""`info()` printed: a line or a few for each fact."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest

from evotune.export.runtime._checking import first_sentence
from tests.export.runtime.packages import CASE, region


def test_printed_facts_are_short_lines_and_the_values_stay_whole(
    opened: Callable[..., ModuleType],
) -> None:
    served = [region(**{**CASE, "batch": number}) for number in range(1, 31)]
    info = opened(served=served).info()
    lines = repr(info).splitlines()
    assert {name for name in info if any(line.startswith(name) for line in lines)} == set(info)
    assert max(map(len, lines)) <= 132
    assert len(lines) < 60
    assert "and 19 more" in lines[[line.split()[0] for line in lines].index("score_mods") - 1]
    assert len(json.loads(json.dumps(info))["served"]) == 30


def test_facts_are_told_while_another_thread_loads_a_file(
    opened: Callable[..., ModuleType],
) -> None:
    module = opened()
    modules = module._loaded._loaded._modules

    class File(str):
        __slots__ = ()

        def __hash__(self) -> int:  # as a thread may at that moment
            modules[f"other {len(modules)}", 0] = None
            return super().__hash__()

    modules[File("first"), 0] = None
    assert "first" in module.info()["loaded"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Torch not compiled with CUDA enabled", "Torch not compiled with CUDA enabled"),
        ("Cannot get a generator. PyTorch has two libraries: …", "Cannot get a generator"),
        ("out of memory\nat some place", "out of memory"),
        ("", ""),
    ],
)
def test_a_check_tells_the_first_sentence_of_an_error(said: str, told: str) -> None:
    assert first_sentence(RuntimeError(said)) == told
