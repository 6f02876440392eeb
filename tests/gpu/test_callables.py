"""Python callables on a GPU: how each way to write one ends, and that their times are true."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.trial import Json
from tests.callables import CallableTrials, callable_trials

pytestmark = pytest.mark.gpu

EVOTUNE = [sys.executable, "-m", "evotune"]
SPACE = Path(__file__).parent / "data" / "callables" / "callables.yaml"

RIGHT = {
    "given": ("graph", "given"),
    "new": ("graph", "new"),
    "twice_as_long": ("graph", "given"),
    "joined_stream": ("graph", "given"),
    "own_stream": ("eager", "given"),
    "waits": ("eager", "given"),
    "raw_kernel": ("graph", "given"),
    "triton_launcher": ("graph", "given"),
    "compiled": ("graph", "new"),
}
"""How calls are made, and their outputs."""
NEEDS_TRITON = {"triton_launcher", "compiled"}
WRONG = ("wrong_result", "out is off by")
OTHERS = {
    "wrong": WRONG,
    "remembers": WRONG,
    "captures_old_results": WRONG,
    "skips_in_rows": ("wrong_result|nan", "never written|out is off by"),
    "changes_its_input": ("out_of_bounds", "changed its input x"),
    "raises": ("launch_error", r"behaviours.py:\d+: IndexError: out of tiles"),
    "illegal_address": ("illegal_access", "illegal memory access"),
    "device_assertion": ("launch_error", "device-side assert"),
    "no_room": ("device_oom", "out of memory"),
    "endless": ("timeout", "killed"),
    "exits": ("launch_error", "ended with status 3 while it was called"),
    "leaves_a_process": ("launch_error", "left a process running"),
    "keeps_the_gpu_busy": ("launch_error", "kept (the GPU|[0-9.]+ cores) busy"),
    "ends_before_its_work": (
        "wrong_result|nan|launch_error|nondeterministic",
        "never written|off by|after the end of a row|differ",
    ),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """One run of all: no failure may harm a later trial."""
    runs = ["--runs-dir", str(tmp_path_factory.mktemp("runs"))]
    command = [*EVOTUNE, "run", str(SPACE), "--device", "cuda:0", "--champions", "1", *runs]
    subprocess.run(command, check=True, timeout=1500)
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    found = [json.loads(line) for line in report.stdout.splitlines()]
    return {trial["configuration"]["BEHAVIOUR"]: trial for trial in found}


@pytest.mark.parametrize("behaviour", RIGHT)
def test_a_right_callable_passes(trials: dict[str, Json], behaviour: str) -> None:
    if behaviour in NEEDS_TRITON and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    trial = trials[behaviour]
    assert trial["outcome"] == "ok", trial["reason"]
    state = trial["measurements"][0]["state"]
    assert (state["calls"], state["outputs"]) == RIGHT[behaviour]
    assert {"sm_mhz", "power_w"} <= state.keys()


@pytest.mark.parametrize("behaviour", OTHERS)
def test_each_failure_is_named(trials: dict[str, Json], behaviour: str) -> None:
    trial, (kinds, reason) = trials[behaviour], OTHERS[behaviour]
    if behaviour == "ends_before_its_work" and trial["outcome"] == "ok":
        # The worker's copy waited for the work, so its time counts.
        times = [trials[each]["measurements"][0]["time_us"] for each in (behaviour, "given")]
        assert times[0] > 30 * times[1]
        return
    assert re.fullmatch(kinds, trial["outcome"]), trial["reason"]
    assert re.search(reason, trial["reason"]), trial["reason"]


def test_a_call_that_does_twice_the_work_takes_twice_the_time(trials: dict[str, Json]) -> None:
    once, twice = (
        trials[each]["measurements"][0]["time_us"] for each in ("given", "twice_as_long")
    )
    assert 1.7 < twice / once < 2.3


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    from evotune.backends.python.device_session import open_gpu_session

    folder = tmp_path_factory.mktemp("trials")
    with callable_trials(SPACE, folder, "cuda:0", open_gpu_session) as made:
        yield made


def test_the_zygote_never_opens_the_gpu(session: CallableTrials) -> None:
    """A forked process could not use it then."""
    session.run(BEHAVIOUR="given")
    zygote = session.session._start_zygote()
    assert "libcuda.so" not in Path(f"/proc/{zygote.pid}/maps").read_text()


def test_the_same_work_as_the_baseline_takes_the_same_time(session: CallableTrials) -> None:
    """`new` makes the baseline's two launches; the clocks of two processes agree."""
    logs = []
    for _ in range(5):
        outcome = session.run(BEHAVIOUR="new")
        assert outcome.ok, outcome.reason
        logs.append(math.log(outcome.measurements[0].speedup))
    assert abs(statistics.median(logs)) < 0.05
