"""What a run of callables exports: the best champion's configuration, as a file.

A callable is Python, with whatever it imports, and lives in the user's own program: a package of
machine code could not hold it. So the file has the values to pass to it, what was measured with
them, and a hash by which the program can tell whether its source is the one that was tuned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from evotune.backends import registry
from evotune.backends.base.sources import fingerprint
from evotune.errors import UsageError
from evotune.export.descriptions import json_text
from evotune.packages import __version__
from evotune.runs.confirmed_champions import Champion, champions_of
from evotune.runs.reopening import ReopenedRun
from evotune.runs.spaces import read_kernel_sources, source_path
from evotune.trial import Json

FILE = "configuration.json"


def is_configured(run: ReopenedRun) -> bool:
    """Whether the run's kernels are callables, of which only the configuration is exported."""
    return registry.named(run.setup.profile.backend).builds_in_worker


def best_of(runs: list[ReopenedRun]) -> Champion:
    """The best confirmed champion of the only run. Raises EvotuneError (exit 1) if there is none,
    UsageError for several runs."""
    if len(runs) > 1:
        raise UsageError("callables are exported one run at a time: each has its own configuration")
    return champions_of(runs[0])[0]


def configuration_file(champion: Champion) -> bytes:
    """The content of the file: JSON, and thereby YAML."""
    return json_text(_described(champion)).encode()


def _described(champion: Champion) -> Mapping[str, Json]:
    setup = champion.run.setup
    kernel = champion.run.planner.kernel_of(champion.configuration)
    sources = read_kernel_sources(setup.document, kernel)
    return {
        "evotune": __version__,
        "space": setup.name,
        "run": champion.key[0],
        "trial": champion.number,
        "device": setup.profile.name,
        "problem": dict(setup.problem_facts),
        "source": {
            "file": source_path(setup.document, kernel),
            "entry": kernel.entry,
            "sha256": fingerprint(sources),
            "files": {name: hashlib.sha256(text).hexdigest() for name, text in sources.items()},
        },
        "configuration": champion.configuration.to_json(),
        "measurements": [
            {
                "case": each.case,
                "baseline": each.baseline,
                "speedup": each.speedup,
                "speedup_low": each.speedup_low,
                "speedup_high": each.speedup_high,
                "held_out": each.held_out,
            }
            for each in champion.outcome.measurements
        ],
    }
