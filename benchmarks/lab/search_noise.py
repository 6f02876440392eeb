"""Runs `evolution` with measurement noise, and shows its final pick's time without the noise.

    python benchmarks/lab/search_noise.py [FOLDER] [--repeats 10] [-o FILE]

Every sample is drawn from a configuration's recorded raw samples, with replacement. There are two
ways to make a time of samples:

- evotune: as in a run. `measure_paired` times each candidate against a baseline that does not vary,
  by the median over rounds, with more rounds for candidates that are in question. The best are
  confirmed, and the pick is the one with the highest lower bound.
- mean: as in Kernel Tuner. A time is the mean of as many samples as were recorded. The best are
  measured anew with four times the samples, and the pick is the best of these.

Each search's best are confirmed anew `--confirmations` times by each rule (`RULES`; the last one is
a run's). The results:

- excess: the pick's noiseless time over that of the pick of a search without noise and with the
  same seed, minus one. A noiseless time is the limit of the way's time for endless samples
- tried, own, best of 3: the excess of the best configuration that the search tried, of the one that
  it takes for the best, and of the best of its first three. An excess beyond that of "best of 3" is
  due to the confirmation
- beyond: the share of picks whose excess is more than 1%
- rounds: the rounds (`mean`: samples) that confirming a champion took
- taken: the rounds or samples that the search took
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.run_options import SearchSettings
from evotune.runs.replay import PerformanceScale
from evotune.search.catalog import create_strategy
from evotune.search.strategy import Strategy
from evotune.timing.paired import TimingSettings, measure_paired
from evotune.trial import Configuration, Measurement, Outcome, OutcomeKind, Trial

FOLDER = Path(__file__).parents[2] / "shared" / "recorded_spaces"
SMALLEST_BUDGET = 25
_CONFIRMING_SAMPLES = 4  # `mean` confirms with this many times the search's samples

Samples = Mapping[Configuration, NDArray[np.float64]]


def raw_samples_ms(path: Path, recording: RecordedSpace) -> Samples:
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to confirm champions. With `races`, each champion's timing knows the bound it has to
    beat."""

    champions: int
    timing: TimingSettings
    races: bool = False


_DECIDING = TimingSettings.thorough().deciding(1)
RULES = {
    "3, 60 rounds": Rule(3, TimingSettings.thorough()),
    "3, 240 rounds": Rule(3, dataclasses.replace(TimingSettings.thorough(), max_rounds=240)),
    "3, to 1%": Rule(3, _DECIDING),
    "5, to 1% if it may lead": Rule(5, _DECIDING, races=True),
    "10, to 1% if it may lead": Rule(10, _DECIDING, races=True),
    "3, to 1% if it may lead": Rule(3, _DECIDING, races=True),
}


class Stopwatch(Protocol):
    """Noisy times of configurations, in any unit; `taken` counts the rounds or samples."""

    taken: int

    def noiseless(self, configuration: Configuration) -> float: ...

    def time(self, configuration: Configuration, rival: float) -> float:
        """The time that the search sees; `rival` is the time of the last of the elites."""

    def confirm(self, configuration: Configuration, rule: Rule, leader: float) -> float:
        """The figure that ranks a finalist: lower is better. `leader` is the best one so far."""


class Mean:
    def __init__(self, samples: Samples, seed: int) -> None:
        self._samples = samples
        self._rng = np.random.default_rng(seed)
        self.taken = 0

    def noiseless(self, configuration: Configuration) -> float:
        return float(self._samples[configuration].mean())

    def time(self, configuration: Configuration, rival: float) -> float:
        return self._draw(configuration, 1)

    def confirm(self, configuration: Configuration, rule: Rule, leader: float) -> float:
        return self._draw(configuration, _CONFIRMING_SAMPLES)

    def _draw(self, configuration: Configuration, times: int) -> float:
        raw = self._samples[configuration]
        self.taken += times * len(raw)
        return float(self._rng.choice(raw, times * len(raw)).mean())


class Paired:
    """evotune's own protocol, with a baseline that always takes 1."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self._samples = samples
        self._rng = np.random.default_rng(seed)
        self.taken = 0

    def noiseless(self, configuration: Configuration) -> float:
        raw = self._samples[configuration]
        return float(np.median(raw[:, None] + raw)) / 2  # a round has two samples

    def time(self, configuration: Configuration, rival: float) -> float:
        settings = TimingSettings()
        return 1 / self._measure(configuration, settings, contender_speedup=1 / rival).speedup

    def confirm(self, configuration: Configuration, rule: Rule, leader: float) -> float:
        bound = 1 / leader if rule.races else 0.0
        return 1 / self._measure(configuration, rule.timing, leader_speedup=bound).speedup_low

    def _measure(
        self, configuration: Configuration, settings: TimingSettings, **speedups: float
    ) -> Measurement:
        found = measure_paired(
            _Drawn(self._samples[configuration], self._rng),
            _Constant(),
            case="",
            baseline_name="",
            settings=settings,
            **speedups,
        )
        self.taken += found.samples
        return found


class _Drawn:
    def __init__(self, raw: NDArray[np.float64], rng: np.random.Generator) -> None:
        self._raw = raw
        self._rng = rng

    def run(self) -> None: ...

    def time_us(self) -> float:
        return float(self._raw[self._rng.integers(len(self._raw))])


class _Constant:
    def run(self) -> None: ...

    def time_us(self) -> float:
        return 1.0


WAYS: Mapping[str, Callable[[Samples, int], Stopwatch]] = {"evotune": Paired, "mean": Mean}


def best_first(
    recording: RecordedSpace,
    evaluations: int,
    seed: int,
    time: Callable[[Configuration, Strategy], float],
) -> list[Configuration]:
    """The valid configurations that a search tried, fastest first by the times that it saw."""
    search = create_strategy("evolution", recording.space, SearchSettings(seed=seed, lookahead=0))
    seen = []
    for number in range(evaluations):
        configuration = search.ask(number, ())
        assert configuration is not None
        outcome = recording.outcome(configuration)
        if outcome.ok:
            seen.append((time(configuration, search), configuration))
            outcome = Outcome(OutcomeKind.OK, fitness=-math.log(seen[-1][0]))
        search.tell(Trial(number, configuration, outcome))
    return [configuration for _, configuration in sorted(seen, key=lambda found: found[0])]


def repeat(
    recording: RecordedSpace,
    watch: Stopwatch,
    rules: Mapping[str, Rule],
    *,
    evaluations: int,
    seed: int,
    confirmations: int,
) -> dict[str, Any]:
    def noisy(configuration: Configuration, search: Strategy) -> float:
        rival = math.inf if search.contender is None else math.exp(-search.contender)
        return watch.time(configuration, rival)

    tried = best_first(recording, evaluations, seed, noisy)
    taken = watch.taken
    without = best_first(recording, evaluations, seed, lambda c, search: watch.noiseless(c))[0]

    def excess(configuration: Configuration) -> float:
        return round(watch.noiseless(configuration) / watch.noiseless(without) - 1, 5)

    found = {"tried": min(map(excess, tried)), "own": excess(tried[0])}
    found["best of 3"] = min(map(excess, tried[:3]))
    confirmed = {}
    for name, rule in rules.items():
        before = watch.taken
        picks = [excess(pick(watch, rule, tried)) for _ in range(confirmations)]
        found[name] = round(statistics.fmean(picks), 5)
        rounds = (watch.taken - before) / confirmations / rule.champions
        confirmed[name] = {
            "beyond": statistics.fmean(each > 0.01 for each in picks),
            "rounds": round(rounds, 1),
        }
    return {"excess": found, "confirmed": confirmed, "taken": taken}


def pick(watch: Stopwatch, rule: Rule, tried: Sequence[Configuration]) -> Configuration:
    """Confirms the first few, and returns the best of them by their confirmations."""
    leader, best = math.inf, tried[0]
    for configuration in tried[: rule.champions]:
        time = watch.confirm(configuration, rule, leader)
        if time < leader:
            leader, best = time, configuration
    return best


def noise_of_a_time(samples: Samples, way: str, configurations: Sequence[Configuration]) -> float:
    """The relative standard deviation of the times that a search without a rival sees; the median
    over `configurations`."""
    spreads = []
    for number, configuration in enumerate(configurations):
        watch = WAYS[way](samples, number)
        times = [watch.time(configuration, math.inf) for _ in range(30)]
        spreads.append(statistics.stdev(times) / statistics.fmean(times))
    return round(statistics.median(spreads), 5)


def spaces(folder: Path) -> Iterator[tuple[str, RecordedSpace, Samples, int]]:
    for path in sorted(folder.glob("*/*.json.gz")):
        recording = read_recorded_space(path)
        budget = PerformanceScale(recording.times_ms.values()).budget
        if budget >= SMALLEST_BUDGET:
            name = f"{path.parent.name} {path.name.partition('.')[0]}"
            yield name, recording, raw_samples_ms(path, recording), budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--spaces", default="", help="by a part of the name")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--confirmations", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {way: {} for way in options.ways.split(",")}
    for name, recording, samples, budget in spaces(options.folder):
        if options.spaces not in name:
            continue
        fastest = sorted(samples, key=lambda c: recording.times_ms[c])[:20]
        for way, results in found.items():
            noise = noise_of_a_time(samples, way, fastest)
            rules = RULES if way == "evotune" else {"3": Rule(3, TimingSettings())}
            repeats = [
                repeat(
                    recording,
                    WAYS[way](samples, seed),
                    rules,
                    evaluations=budget,
                    seed=seed,
                    confirmations=options.confirmations,
                )
                for seed in range(options.repeats)
            ]
            results[name] = {"noise_of_a_time": noise, "repeats": repeats}
            print(f"{name}, {way}: noise {noise:.2%}", flush=True)
            for label in repeats[0]["excess"]:
                print(f"  {label}: {_text([r['excess'][label] for r in repeats])}", end="")
                known = [r["confirmed"][label] for r in repeats if label in r["confirmed"]]
                if known:
                    beyond, rounds = (
                        statistics.fmean(k[what] for k in known) for what in ("beyond", "rounds")
                    )
                    print(f", {beyond:.0%} beyond 1%, {rounds:.0f} rounds a champion", end="")
                print(flush=True)
            print(f"  search: {statistics.fmean(r['taken'] for r in repeats):.0f}", flush=True)
    if options.output:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python benchmarks/lab/search_noise.py --repeats {options.repeats}"
            f" --confirmations {options.confirmations}",
            "ways": found,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


def _text(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):+.2%} ± {error:.2%}, median {statistics.median(values):+.2%}"


if __name__ == "__main__":
    main()
