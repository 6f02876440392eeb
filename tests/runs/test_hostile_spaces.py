"""A space file with any mistakes soon gives either a space or a space error with its place."""

from __future__ import annotations

import random
import re
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from space.mutations import mutated

from evotune.errors import SpaceError, UsageError
from evotune.runs.setup import load_setup

ROOT = Path(__file__).parents[2]
_LIMIT_MIB = 256  # the process may grow by this much over all files
_WHOLE_FILE = ("the file is empty", "expected UTF-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like the project's own: kernels/ and search_spaces/ beside each other."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(ROOT / "kernels", folder / "kernels")
    (folder / "search_spaces").mkdir()
    return folder


def _kind(path: Path, device: str, rng: random.Random) -> str:
    error = _error(path, device, rng)
    if error is None:
        return "valid spaces"
    if isinstance(error, UsageError):
        assert "kernels; they cannot run on --device" in str(error)
        return "kernels of another device"
    assert "\n" not in str(error)
    assert error.file
    assert error.line or any(words in error.message for words in _WHOLE_FILE)
    return "space errors"


def _error(path: Path, device: str, rng: random.Random) -> SpaceError | UsageError | None:
    """The error, if any, of all that a run or `evotune compile` does before it compiles."""
    try:
        setup = load_setup(path, device, compile_only=True)
        setup.space.size()
        assert setup.planner is not None
        for configuration in (setup.space.default(), setup.space.sample(rng)):
            for case in setup.planner.proposal(0, configuration).cases:
                _check_defines(case.compile.defines)
    except (SpaceError, UsageError) as error:
        return error
    return None


def _check_defines(defines: Iterable[tuple[str, int]]) -> None:
    """Checks the defines: apart from file names, all of a space that reaches a compiler's command
    line."""
    for name, value in defines:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", name), name
        assert type(value) is int


def _campaign(folder: Path, texts: list[str], count: int, seed: int) -> dict[str, float]:
    path = folder / "search_spaces" / "mutated.yaml"
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    slowest_s = 0.0
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        data = mutated(rng, texts)
        path.write_bytes(data)
        device = "cpu" if b".cpp" in data else rng.choice(["h200", "l4"])
        started = time.process_time()
        try:
            found[_kind(path, device, rng)] += 1
        except Exception as error:
            raise AssertionError(f"file {number}, for {device}: {data!r}") from error
        slowest_s = max(slowest_s, time.process_time() - started)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    names = sorted(entry.name for entry in folder.iterdir())
    assert names == ["kernels", "search_spaces"], "nothing was run"
    assert grown_kib < _LIMIT_MIB * 1024
    return {**found, "slowest_s": round(slowest_s, 3), "grown_mib": round(grown_kib / 1024, 1)}


@pytest.mark.parametrize("count", [300, pytest.param(1_000, marks=pytest.mark.soak)])
def test_many_mutated_files(folder: Path, count: int) -> None:
    names = ("attention_scalar_cpu", "attention_scalar")
    texts = [(ROOT / "search_spaces" / f"{name}.yaml").read_text() for name in names]
    found = _campaign(folder, texts, count, seed=0)
    assert found["valid spaces"] > 0.04 * count
    assert found["space errors"] > 0.4 * count
    assert found["grown_mib"] < 100


@pytest.mark.soak
def test_a_hundred_thousand_mutated_files(folder: Path, keep_result: Callable[..., None]) -> None:
    paths = [*sorted((ROOT / "search_spaces").glob("*.yaml")), ROOT / "tests/space/attention.yaml"]
    texts = [path.read_text() for path in paths]
    total: Counter[str] = Counter()
    slowest_s = grown_mib = 0.0
    for seed in range(20):
        found = _campaign(folder, texts, 5_000, seed)
        slowest_s = max(slowest_s, found.pop("slowest_s"))
        grown_mib += found.pop("grown_mib")
        total.update({name: int(count) for name, count in found.items()})
        keep_result(
            files=total.total(), tracebacks=0, slowest_s=slowest_s, grown_mib=grown_mib, **total
        )
    assert grown_mib < _LIMIT_MIB


def test_an_argument_that_there_is_not_is_found_where_it_stands(folder: Path) -> None:
    text = (ROOT / "search_spaces" / "attention_scalar.yaml").read_text()
    path = folder / "search_spaces" / "misspelt.yaml"
    path.write_text(text.replace("softmax_scale", "softmax_scael"))
    with pytest.raises(
        SpaceError, match=r"misspelt\.yaml:\d+:\d+: unknown name 'softmax_scael'; did"
    ):
        load_setup(path, "h200", compile_only=True)
    path.write_text(text.replace("v, out,", "v, outt,"))
    with pytest.raises(SpaceError, match="unknown name 'outt'; did you mean 'out'"):
        load_setup(path, "h200", compile_only=True)
    path.unlink()
