"""Runs Kernel Tuner's and Optuna's strategies on a recorded space.

A run is a list of times in ms (None: failed), one for each distinct configuration that the strategy
asked for, in its order. A configuration that it asks for again costs nothing; a failed one costs as
much as any other. Needs the `bench` extra.

    python benchmarks/lab/search_peers.py RECORDING…

says whether Optuna's own sampler and the tables of `optuna_tables.py` give the same evaluations.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.trial import Value

Times = list[float | None]
_KERNEL_TUNER = {
    "kt:genetic_algorithm": "genetic_algorithm",
    "kt:pso": "pso",
    "kt:adaptive_tabu_greywolf": "adaptive_tabu_greywolf",
}

FOLDER = Path(__file__).parents[3] / "shared" / "recorded_spaces"
"""The recorded spaces that strategies are tuned on."""


class _OptunaUse(NamedTuple):
    """A way in which a user may describe the space to Optuna.

    - categories: values are categories; else they are their indices, which tells Optuna that their
      order means something
    - tells_outside: a suggestion outside the space is told as pruned; else it is drawn again
    """

    categories: bool
    tells_outside: bool


OPTUNA = {
    "optuna:tpe": _OptunaUse(categories=False, tells_outside=False),
    "optuna:tpe-pruned": _OptunaUse(categories=False, tells_outside=True),
    "optuna:tpe-categories": _OptunaUse(categories=True, tells_outside=False),
    "optuna:tpe-categories-pruned": _OptunaUse(categories=True, tells_outside=True),
}
PEERS = (*_KERNEL_TUNER, *OPTUNA)
_ATTEMPTS = 400  # after so many useless suggestions in a row, a random new member is taken


class _Ledger:
    """The time of each configuration, and the configurations that were asked for so far."""

    def __init__(self, recording: RecordedSpace) -> None:
        self.domains = {p.name: list(p.values) for p in recording.space.parameters}
        self.times_ms: dict[tuple[Value, ...], float | None] = {
            tuple(c.values()): recording.times_ms.get(c) for c in recording.space.enumerate()
        }
        self.asked: dict[tuple[Value, ...], float | None] = {}

    def pay(self, values: Sequence[Value]) -> float | None:
        key = tuple(values)
        return self.asked.setdefault(key, self.times_ms[key])


def peer_runs(
    name: str, recording: RecordedSpace, evaluations: int, seeds: Sequence[int]
) -> Iterator[Times]:
    """Yields one run for each seed."""
    if name in OPTUNA:
        run: Callable[[_Ledger, int, int], None] = functools.partial(_run_optuna, OPTUNA[name])
    else:
        run = _kernel_tuner_runner(_KERNEL_TUNER[name], recording)
    for seed in seeds:
        ledger = _Ledger(recording)
        run(ledger, evaluations, seed)
        yield list(ledger.asked.values())[:evaluations]


def _kernel_tuner_runner(
    strategy: str, recording: RecordedSpace
) -> Callable[[_Ledger, int, int], None]:
    from kernel_tuner import util
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.searchspace import Searchspace

    runner = _recorded_runner()
    members = _Ledger(recording)

    def is_member(values: Mapping[str, Value]) -> bool:
        return tuple(values[name] for name in members.domains) in members.times_ms

    # Building the space takes seconds, and all runs can share it: it holds no state of a run.
    space = Searchspace(members.domains, is_member, 1_000_000_000)
    if space.size != len(members.times_ms):
        raise AssertionError(f"{space.size} of {len(members.times_ms)} configurations")

    def run(ledger: _Ledger, evaluations: int, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        options = Options(
            strategy_options=Options(max_fevals=evaluations),
            objective=["time"],
            objective_higher_is_better=[False],
            budget=util.TuningBudget(None, evaluations),
            tune_params=ledger.domains,
            restrictions=is_member,
            verbose=False,
            cache={},
        )
        # A strategy that ends before its budget is spent is started again.
        for _ in range(50):
            asked = len(ledger.asked)
            strategy_map[strategy].tune(space, runner(ledger), options)
            if len(ledger.asked) >= evaluations or len(ledger.asked) == asked:
                break

    return run


def _recorded_runner() -> Callable[[_Ledger], Any]:
    """A Kernel Tuner runner that looks times up. It is made in a function because its base class is
    imported only when it is needed."""
    from kernel_tuner import util
    from kernel_tuner.runners.runner import Runner

    class RecordedRunner(Runner):  # type: ignore[misc]
        def __init__(self, ledger: _Ledger) -> None:
            super().__init__()
            self.ledger = ledger

        def get_device_info(self) -> None:
            return None

        def get_environment(self, tuning_options: Any) -> dict[str, Any]:
            return {}

        def run(self, parameter_space: Any, tuning_options: Any) -> list[dict[str, Any] | None]:
            results: list[dict[str, Any] | None] = []
            for values in parameter_space:
                if tuning_options.budget.is_done():
                    results.append(None)
                    continue
                tuning_options.budget.add_evaluations(tuple(values) not in self.ledger.asked)
                time_ms = self.ledger.pay(values)
                result: dict[str, Any] = dict(zip(self.ledger.domains, values, strict=True))
                if time_ms is None:
                    result["__error__"] = util.RuntimeFailedConfig()
                else:
                    result["time"] = time_ms
                results.append(result)
            return results

    return RecordedRunner


def optuna_run(
    name: str,
    sampler_class: type[Any] | None,
    recording: RecordedSpace,
    evaluations: int,
    seed: int,
) -> list[tuple[Value, ...]]:
    """The configurations that one run asked for. `sampler_class`: None for the tables."""
    ledger = _Ledger(recording)
    _run_optuna(OPTUNA[name], ledger, evaluations, seed, sampler_class)
    return list(ledger.asked)


def _run_optuna(
    use: _OptunaUse,
    ledger: _Ledger,
    evaluations: int,
    seed: int,
    sampler_class: type[Any] | None = None,
) -> None:
    """Runs Optuna's sampler until the evaluations are spent.

    A suggestion outside the space costs nothing. A recorded failure is told as pruned, and costs as
    much as any other. A suggestion that was told before is drawn again.
    """
    import optuna
    from optuna_tables import TabulatedTPESampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = (sampler_class or TabulatedTPESampler)(
        seed=seed, multivariate=True, constant_liar=False
    )
    study = optuna.create_study(sampler=sampler)
    rng = random.Random(seed)
    distributions: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(range(len(values)))
        if use.categories
        else optuna.distributions.IntDistribution(0, len(values) - 1)
        for name, values in ledger.domains.items()
        if len(values) > 1
    }
    names = list(ledger.domains)
    told: set[tuple[Value, ...]] = set()

    def suggested() -> dict[str, int]:
        trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
        relative = sampler.sample_relative(study, trial, distributions)
        return {
            name: relative[name]
            if name in relative
            else sampler.sample_independent(study, trial, name, distribution)
            for name, distribution in distributions.items()
        }

    while len(ledger.asked) < min(evaluations, len(ledger.times_ms)):
        study._thread_local.cached_all_trials = None  # as `study.ask` does before it samples
        for _ in range(_ATTEMPTS):
            indices = suggested()
            values = tuple(ledger.domains[name][indices.get(name, 0)] for name in names)
            if values not in told and (use.tells_outside or values in ledger.times_ms):
                break
        else:
            values = rng.choice([v for v in ledger.times_ms if v not in ledger.asked])
            indices = {n: ledger.domains[n].index(values[names.index(n)]) for n in distributions}
        told.add(values)
        time_ms = ledger.pay(values) if values in ledger.times_ms else None
        state = optuna.trial.TrialState
        study.add_trial(
            optuna.trial.create_trial(
                state=state.PRUNED if time_ms is None else state.COMPLETE,
                params=indices,
                distributions=distributions,
                value=time_ms,
            )
        )


def main(paths: Sequence[str]) -> None:
    """Prints for each use and three seeds whether both samplers give the same 60 evaluations, and
    how many times as fast the tables are."""
    from optuna.samplers import TPESampler

    for path in paths:
        recording = read_recorded_space(Path(path))
        for name, seed in itertools.product(OPTUNA, range(3)):
            runs, seconds = [], []
            for sampler in (TPESampler, None):
                began = time.perf_counter()
                runs.append(optuna_run(name, sampler, recording, 60, seed))
                seconds.append(time.perf_counter() - began)
            same = "the same" if runs[0] == runs[1] else "NOT THE SAME"
            print(f"{name} {path} {seed}: {same}, {seconds[0] / seconds[1]:.0f} times as fast")


if __name__ == "__main__":
    main(sys.argv[1:])
