"""What workers of a test's cluster run: trials of the synthetic recording, without a device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from evotune.device.recorded import read_recorded_space
from evotune.trial import Configuration, Json

RECORDING = Path(__file__).parents[1] / "data" / "synthetic_recording.json.gz"
_recordings: list[Json] = []


def trial(payload: Mapping[str, Json]) -> dict[str, Json]:
    """Takes a moment; a worker whose address is in `refuse` has no device."""
    from distributed import get_worker

    if get_worker().name == payload["refuse"]:
        return {"refused": "it has no device", "worker": get_worker().address}
    if not _recordings:
        _recordings.append(read_recorded_space(RECORDING))
    time.sleep(payload["takes_s"])
    with open(payload["journal"], "a") as journal:
        journal.write(f"{payload['number']}\n")
    outcome = _recordings[0].outcome(Configuration(payload["configuration"]))
    return {"outcome": outcome.to_json()}
