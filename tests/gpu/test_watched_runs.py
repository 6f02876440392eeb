"""Watched runs on a GPU that another process uses too: writes that came too late are not judged."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from evotune.backends.base.session import Intervention
from evotune.backends.cuda.discovery import open_profile
from evotune.workers.device_worker import open_session

pytestmark = pytest.mark.gpu

PLACES, IN_A_ROW = 3, 12
RUNS, MOST_RUNS, SETTLED = 600, 20_000, 180
"""Runs go on until so many writes have settled: beside another process few may."""
ELEMENTS, WRITTEN = 1 << 20, 1024
BUSY = """
import random, time
import torch
a = torch.randn(1024, 1024, device="cuda")
print("ready", flush=True)
while True:
    for _ in range(random.randint(1, 40)):
        a @ a
    torch.cuda.synchronize()
    time.sleep(random.random() / 2000)
"""


@pytest.fixture(params=["alone", "beside another process"])
def neighbours(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "alone":
        yield
        return
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        yield
        busy.kill()


@pytest.mark.usefixtures("neighbours")
def test_the_last_call_has_met_writes_that_are_settled() -> None:
    session = open_session(open_profile("cuda:0", compile_only=False))
    x = torch.zeros(PLACES, ELEMENTS, device=session.torch_device)
    y = torch.zeros_like(x)
    calls = [partial(torch.add, x[p], 1, out=y[p]) for p in range(PLACES) for _ in range(IN_A_ROW)]
    sampler = session.sampler(calls)
    call_us = min(sampler.time_us() for _ in range(100))
    rng = random.Random(0)
    settled = late = run = 0
    while run < RUNS or (settled < SETTLED and run < MOST_RUNS):
        run += 1
        new = torch.full((1, WRITTEN), float(run), device=session.torch_device)
        first = rng.randrange(0, ELEMENTS - WRITTEN)
        interventions = [
            Intervention(
                p * IN_A_ROW,
                (p + 1) * IN_A_ROW,
                rng.choice((rng.random() * 0.9, 1 - (rng.randint(1, 6) + 0.5) / IN_A_ROW)),
                [(each[p, first : first + WRITTEN][None], new) for each in (x, y)],
            )
            for p in range(PLACES)
        ]
        judged = sampler.watch(interventions, call_us)
        call_us = min(call_us, sampler.time_us())
        for p, needed_us in enumerate(judged):
            sure = needed_us <= call_us
            # An output that still equals the input was written after the last call.
            settled += sure
            part = slice(first, first + WRITTEN)
            late += sure and bool((y[p, part] != x[p, part] + 1).any())
        sampler.run()
    print(f"{settled} of {run * PLACES} settled, {late} of them late")
    assert late == 0
    assert settled >= SETTLED
