"""`evolution` with measurement noise: what its final pick is worth without the noise.

    python benchmarks/search_noise.py [FOLDER] [--repeats 10] [-o FILE]

In each repeat every configuration's time is drawn anew: the mean of as many of its recorded raw
samples as there are, drawn with replacement (Kernel Tuner's `time` is their mean). The search
sees those times. As a run does with its champions, the best of them are then measured anew, with
four times the samples (`TimingSettings.thorough` against the default), and the best of that is
the pick. `excess` is the recorded time of that pick over the recorded time of what a search
without noise picks with the same seed, minus one, by how many were confirmed: 1 is the search's
own pick, 3 is what a run confirms, more shows what that would be worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from evotune.device.recorded import RecordedSpace, read_recorded_space
from evotune.engine.replay import replay
from evotune.search.performance import PerformanceScale
from evotune.search.strategy import SearchSettings
from evotune.trial import Configuration

FOLDER = Path(__file__).parents[2] / "shared" / "recorded_spaces"
SMALLEST_BUDGET = 25
_CONFIRMED = (1, 3, 10, 30)
_CONFIRMING_SAMPLES = 4  # in times as many as the search takes


def raw_samples_ms(path: Path, recording: RecordedSpace) -> dict[Configuration, np.ndarray]:
    """The raw samples of every valid configuration of a Kernel Tuner cache."""
    cache = json.loads(gzip.decompress(path.read_bytes()))["cache"]
    names = [parameter.name for parameter in recording.space.parameters]
    by_values = {tuple(c[name] for name in names): c for c in recording.times_ms}
    samples = {}
    for entry in cache.values():
        configuration = by_values.get(tuple(entry[name] for name in names))
        if configuration is not None:
            samples[configuration] = np.array(entry["times"])
    return samples


def noisy(
    recording: RecordedSpace, samples: Mapping[Configuration, np.ndarray], seed: int
) -> RecordedSpace:
    rng = np.random.default_rng(seed)
    times = {c: float(rng.choice(raw, len(raw)).mean()) for c, raw in samples.items()}
    return dataclasses.replace(recording, times_ms=times)


def best_first(recording: RecordedSpace, evaluations: int, seed: int) -> list[Configuration]:
    run = replay(recording, "evolution", SearchSettings(seed=seed), evaluations, seed)
    valid = [(e.time_ms, e.configuration) for e in run if e.time_ms is not None]
    return [configuration for _, configuration in sorted(valid, key=lambda found: found[0])]


def confirmed(
    finalists: Sequence[Configuration], samples: Mapping[Configuration, np.ndarray], seed: int
) -> Configuration:
    """The best of them when measured anew."""
    rng = np.random.default_rng([seed, len(finalists)])
    times = [
        float(rng.choice(samples[c], _CONFIRMING_SAMPLES * len(samples[c])).mean())
        for c in finalists
    ]
    return finalists[int(np.argmin(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = {}
    for path in sorted(options.folder.glob("*/*.json.gz")):
        recording = read_recorded_space(path)
        budget = PerformanceScale(recording.times_ms.values()).budget
        if budget < SMALLEST_BUDGET:
            continue
        samples = raw_samples_ms(path, recording)
        noise = [float(raw.std() / raw.mean() / len(raw) ** 0.5) for raw in samples.values()]
        excess: dict[int, list[float]] = {count: [] for count in _CONFIRMED}
        for seed in range(options.repeats):
            finalists = best_first(noisy(recording, samples, seed), budget, seed)
            without = best_first(recording, budget, seed)[0]
            for count, found_excess in excess.items():
                chosen = confirmed(finalists[:count], samples, seed)
                ratio = recording.times_ms[chosen] / recording.times_ms[without]
                found_excess.append(round(ratio - 1, 5))
        name = f"{path.parent.name} {path.name.partition('.')[0]}"
        found[name] = {"median_noise_of_a_time": statistics.median(noise), "excess": excess}
        print(f"{name}: noise {statistics.median(noise):.2%}", flush=True)
        for count, values in excess.items():
            print(
                f"  {count} confirmed: excess mean {statistics.fmean(values):+.2%}, "
                f"median {statistics.median(values):+.2%}",
                flush=True,
            )
    if options.output:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python benchmarks/search_noise.py --repeats {options.repeats}",
            "spaces": found,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
