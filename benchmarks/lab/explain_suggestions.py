"""How many of the search model's suggestions are faster than the champion, on recorded spaces.

    python benchmarks/lab/explain_suggestions.py [FOLDER] [--repeats 20] [-o FILE]

FOLDER holds the recorded spaces (`*/*.json.gz`, default ../shared/recorded_spaces);
`results/attention_h200.t4.json.gz` is one more. On each space a search of 60 and of 120 trials is
replayed, by evolution and by random search. For each run the model predicts the gain of every
untried neighbour of the best trials. Of those whose gain is at least so many of its deviations, and
1%, the three greatest are looked up in the recording. `evotune explain` wants 1.96 deviations.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from search_peers import FOLDER

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.explain.predicting import Predictor, table_of
from evotune.explain.suggestions import untried_neighbours
from evotune.run_options import SearchSettings
from evotune.runs.replay import replay
from evotune.trial import Trial

ATTENTION = Path(__file__).parents[1] / "results" / "attention_h200.t4.json.gz"
STRATEGIES = ("evolution", "random")
TRIALS = (60, 120)
DEVIATIONS = (0.5, 1.0, 1.96)
MOST = 3
LEAST = math.log(1.01)

Candidate = tuple[float, float, float]
"""The predicted gain, its deviation, and the recorded gain: -inf for a failure."""


def searched(recording: RecordedSpace, strategy: str, trials: int, seed: int) -> list[Trial]:
    run = replay(recording, strategy, SearchSettings(seed=seed), trials, seed)
    return [
        Trial(number, each.configuration, recording.outcome(each.configuration))
        for number, each in enumerate(run)
    ]


def candidates(recording: RecordedSpace, trials: list[Trial]) -> Iterator[Candidate]:
    table = table_of(trials, recording.space.parameters)
    try:
        predictor = Predictor(table)
    except ValueError:  # too few valid trials
        return
    champion = max(table.valid, key=lambda trial: trial.outcome.fitness or -math.inf)
    pool = untried_neighbours(champion.configuration, recording.space, table)
    own = champion.outcome.fitness or 0.0
    for gain, configuration in zip(predictor.gains(champion, pool), pool, strict=True):
        if gain is not None:
            found = recording.outcome(configuration).fitness
            yield gain.mean, gain.deviation, -math.inf if found is None else found - own


def suggested(found: list[Candidate], deviations: float) -> list[Candidate]:
    good = [each for each in found if each[0] >= max(LEAST, deviations * each[1])]
    return sorted(good, reverse=True)[:MOST]


def measured_space(recording: RecordedSpace, repeats: int) -> dict[str, Any]:
    """By strategy, trials and deviations: the runs with a suggestion, the suggestions, and those
    that are faster than the champion."""
    counts: dict[str, Any] = {}
    for strategy, seed in itertools.product(STRATEGIES, range(repeats)):
        trials = searched(recording, strategy, max(TRIALS), seed)
        for count in TRIALS:
            found = list(candidates(recording, trials[:count]))
            for deviations in DEVIATIONS:
                picked = suggested(found, deviations)
                words = f"{strategy}, {count} trials, {deviations:g} deviations"
                own = counts.setdefault(words, {"runs": 0, "with": 0, "tried": 0, "right": 0})
                own["runs"] += 1
                own["with"] += bool(picked)
                own["tried"] += len(picked)
                own["right"] += sum(gain > 0 for _, _, gain in picked)
    return counts


def total(spaces: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for space in spaces.values():
        for words, counts in space.items():
            own = found.setdefault(words, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                own[name] += count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    spaces = {}
    for path in [*sorted(options.folder.glob("*/*.json.gz")), ATTENTION]:
        recording = read_recorded_space(path)
        name = f"{path.parent.name} {path.name.partition('.')[0]}"
        spaces[name] = measured_space(recording, options.repeats)
        print(name, spaces[name], flush=True)
    all_spaces = total(spaces)
    for words, counts in all_spaces.items():
        print(f"{words}: {counts}")
    if options.output:
        found = {
            "command": f"python benchmarks/lab/explain_suggestions.py --repeats {options.repeats}",
            "date": time.strftime("%Y-%m-%d"),
            "all": all_spaces,
            "spaces": spaces,
        }
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
