"""A hundred thousand trials in one run (`make soak`)."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.starting import resume_run, start_run
from evotune.trial import Trial

from .runs import evotune, run_request, stored

pytestmark = pytest.mark.soak

TRIALS = 100_000
WARM = 1_000
PARAMETERS = {
    "block_x": [16, 32, 64, 128, 256],
    "block_y": [1, 2, 4, 8, 16],
    "tile_x": list(range(1, 11)),
    "tile_y": list(range(1, 11)),
    "vector": [1, 2, 4],
    "staging": [0, 1],
    "unroll": [2**n for n in range(8)],
}


class Watch(SilentObserver):
    """Notes resident memory and open files as trials are told, and when the first one was told."""

    def __init__(self) -> None:
        self.told_trials = 0
        self.seen: dict[int, tuple[float, int]] = {}
        self.first_told_s = self.first_told_cpu_s = 0.0
        self.made_s, self.made_cpu_s = time.monotonic(), time.process_time()

    def told(self, trial: Trial, progress: Progress) -> None:
        if not self.told_trials:
            self.first_told_s, self.first_told_cpu_s = time.monotonic(), time.process_time()
        self.told_trials += 1
        if self.told_trials in (WARM, TRIALS):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident_mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            self.seen[self.told_trials] = resident_mib, len(os.listdir("/proc/self/fd"))


def _recording(path: Path) -> Path:
    """120,000 configurations; a tenth of them failed."""
    rng = random.Random(0)
    cache = {}
    for values in itertools.product(*PARAMETERS.values()):
        time_ms = 1.0 + sum(abs(math.log2(1 + value) - 2) for value in values) + rng.random()
        failed = rng.random() < 0.1
        cache[",".join(map(str, values))] = {
            **dict(zip(PARAMETERS, values, strict=True)),
            "time": "RuntimeFailedConfig" if failed else round(time_ms, 5),
        }
    header = {"device_name": "none", "kernel_name": "large", "tune_params": PARAMETERS}
    path.write_text(json.dumps({**header, "tune_params_keys": list(PARAMETERS), "cache": cache}))
    return path


def test_a_hundred_thousand_trials(tmp_path: Path, keep_result: Callable[..., None]) -> None:
    space = _recording(tmp_path / "large.json")
    watch = Watch()
    started = time.monotonic()
    run = start_run(run_request(space, tmp_path / "runs", trials=TRIALS), watch).run
    whole_s = time.monotonic() - started
    (warm_mib, warm_files), (end_mib, end_files) = watch.seen[WARM], watch.seen[TRIALS]
    resumed = Watch()
    resume_run(run, resumed, trials=TRIALS + 10)
    resume_s = resumed.first_told_s - resumed.made_s
    resume_cpu_s = resumed.first_told_cpu_s - resumed.made_cpu_s
    started = time.monotonic()
    subprocess.run(evotune("top", run.path), check=True, capture_output=True)
    top_s = time.monotonic() - started
    top_cpu_s = sum(os.times()[2:4])  # of all child processes; there was only this one
    keep_result(
        trials=TRIALS,
        whole_s=round(whole_s, 1),
        resident_growth_mib=round(end_mib - warm_mib, 1),
        open_files_growth=end_files - warm_files,
        resume_to_first_trial_s=round(resume_s, 2),
        resume_to_first_trial_cpu_s=round(resume_cpu_s, 2),
        top_s=round(top_s, 2),
        top_cpu_s=round(top_cpu_s, 2),
        store_mib=round(run.store.stat().st_size / 2**20, 1),
    )
    assert stored(run) == TRIALS + 10
    assert end_mib - warm_mib < 50
    assert end_files == warm_files
