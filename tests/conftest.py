from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import signal
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

import evotune
from evotune.backends.cpu import cpu_profile
from evotune.runs import confirming
from evotune.user_code import trust

# PyTorch's threads rest while they wait: spinning ones take the cores of the other tests, and a
# suite on two cores takes several times as long. This must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# What a shell starts with `&` ignores Ctrl-C, and so do its children: tests of Ctrl-C would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: how long an example takes depends on how busy the machine is.
settings.register_profile("evotune", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evotune")

_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "survival.json"

KeepResult = Callable[..., None]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and PyTorch's modules stay to the end: no collection of garbage need look
    at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests and their child processes neither use the user's agreements nor add to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVOTUNE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        patch.setattr(trust, "ask", lambda paths: True)
        yield


@pytest.fixture(scope="session", autouse=True)
def _confirming_takes_as_long_as_it_does() -> Iterator[None]:
    """Else a champion could stay unconfirmed because the machine is busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirming, "LEAST_EACH_S", 3600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _all_cores_are_free() -> Iterator[None]:
    """To look which are takes each run half a second, and the tests beside it would decide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_profile, "busy_shares", lambda look_s: {})
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals_are_heeded() -> Iterator[None]:
    """Heeds signals that are ignored behind `&` or nohup: child processes would inherit that."""
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agrees to the tests' kernels and problems, which lie in folders outside the working folder.
    The command line replaces `trust.ask`, so a command asks as it does for a user."""
    monkeypatch.setattr(trust, "ask", lambda paths: True)
    monkeypatch.setattr(trust, "_agreed", set())


@pytest.fixture
def nobody_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has agreed to execute any file, in this process or an earlier one."""
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "ask", lambda paths: False)
    monkeypatch.setattr(trust, "_agreed", set())


@pytest.fixture(scope="session")
def benchmark_module() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of benchmarks/ by its name."""
    folder = Path(__file__).parents[1] / "benchmarks"
    folders = [str(folder), str(folder / "lab")]
    sys.path[:0] = folders
    yield importlib.import_module
    for each in folders:
        sys.path.remove(each)


@pytest.fixture
def keep_result(request: pytest.FixtureRequest) -> KeepResult:
    """Keeps a campaign's figures as data, beside those of the other campaigns (`make soak`)."""

    def keep(**figures: object) -> None:
        results = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else {}
        name = request.node.name
        marker = "gpu" if request.node.get_closest_marker("gpu") else "soak"
        results[name] = {
            **figures,
            "command": f"python -m pytest -m {marker} -k {name}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "evotune": evotune.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        }
        _RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")

    return keep


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that `@pytest.mark.sweep(n)` leaves to `make soak`: all but n, which are
    spread evenly over the cases of the test."""
    cases: dict[tuple[pytest.Item | None, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") and not item.get_closest_marker("soak"):
            assert isinstance(item, pytest.Function)
            cases.setdefault((item.getparent(pytest.Module), item.originalname), []).append(item)
    for alike in cases.values():
        marker = alike[0].get_closest_marker("sweep")
        assert marker is not None
        soon = {round(place * len(alike) / marker.args[0]) for place in range(marker.args[0])}
        for number, item in enumerate(alike):
            if number not in soon:
                item.add_marker(pytest.mark.soak)
