"""The task of a test cluster's workers: trials of the synthetic recording, without a device."""

from __future__ import annotations

import time
from pathlib import Path

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.trial import Configuration
from evotune.util.channel import decode, encode
from evotune.workers.messages import (
    TO_CLUSTER_WORKER,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
    Refused,
)

RECORDING = Path(__file__).parents[1] / "data" / "synthetic_recording.json.gz"
_recordings: list[RecordedSpace] = []

RUN = ClusterRun(
    part="s",
    files={"space.yaml": b"x"},
    space_file="space.yaml",
    backend="cpu",
    device_name="cpu",
    device_arch="",
    allow_mixed=False,
    fixed_sampling=False,
    secret="",
)


def trial(message: bytes, *, journal: str, takes_s: float, refuse: str) -> bytes:
    """Takes `takes_s` and notes the trial's number in the journal. The worker named `refuse`
    answers that it has no device."""
    from distributed import get_worker

    told = decode(TO_CLUSTER_WORKER, message)
    assert isinstance(told, ClusterTrial)
    if get_worker().name == refuse:
        return encode(Refused("it has no device", get_worker().address))
    if not _recordings:
        _recordings.append(read_recorded_space(RECORDING))
    time.sleep(takes_s)
    with open(journal, "a") as file:
        file.write(f"{told.number}\n")
    outcome = _recordings[0].outcome(Configuration(told.configuration))
    return encode(ClusterTrialDone(outcome, get_worker().address))
