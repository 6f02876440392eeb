"""Measures champions on cases: the gate checks each cell, and it is timed beside the baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from evotune.errors import SpaceError
from evotune.portfolios._cell_plans import CellPlans, cell_of
from evotune.portfolios.matrix_store import Cell, Matrix
from evotune.problems.problem import Case
from evotune.runs.baseline_choice import chosen_baseline
from evotune.runs.confirmed_champions import Champion
from evotune.workers.executor import CaseJob, Executor, Proposal
from evotune.workers.in_flight import speaks_for_its_code
from evotune.workers.local import LocalExecutor

_BASELINES = "baselines"
_AT_ONCE = 8
_IN_FLIGHT = 64
_SEEDS_APART = 12
"""Numbers of cells are multiples of it: so all get the same inputs, which are made once a case."""

OpenExecutor = Callable[[Champion], "contextlib.AbstractContextManager[LocalExecutor]"]


def opened_executor(champion: Champion) -> contextlib.AbstractContextManager[LocalExecutor]:
    """An executor alone on the device."""
    return champion.run.executor()


def measure_cells(
    matrix: Matrix,
    wanted: Sequence[tuple[Champion, Case]],
    plans: CellPlans,
    *,
    elapsed_s: Callable[[], float],
    out_of_time: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
    open_executor: OpenExecutor = opened_executor,
) -> None:
    """Measures every wanted cell that the matrix lacks, and keeps each as it is finished. Large
    cases come first, since time limits follow from the first cells. A cell whose worker was lost is
    tried anew the next time. Ends early when there is no time left."""
    missing = [
        (champion, case, job)
        for champion, case in sorted(wanted, key=_largest_first)
        if cell_of(champion, case) not in matrix.cells
        and (job := plans.job(champion, case)) is not None
    ]
    if not missing or out_of_time():
        return
    say(f"measuring {len(missing)} cells: champions on cases, in turn with the baseline")
    first = wanted[0][0]
    with open_executor(first) as executor:
        cases = list({case.label: case for _, case, _ in missing}.values())
        executor.baselines = known = _baselines(matrix, executor, first, cases)
        waiting = ((c, case, job) for c, case, job in missing if known.get(case.label))
        _run(matrix, executor, waiting, elapsed_s, out_of_time)


def _run(
    matrix: Matrix,
    executor: Executor,
    waiting: Iterator[tuple[Champion, Case, CaseJob]],
    elapsed_s: Callable[[], float],
    out_of_time: Callable[[], bool],
) -> None:
    flying: dict[int, Cell] = {}
    number = 0
    while True:
        while len(flying) < _IN_FLIGHT and not out_of_time():
            item = next(waiting, None)
            if item is None:
                break
            champion, case, job = item
            number += _SEEDS_APART
            flying[number] = cell_of(champion, case)
            executor.submit(Proposal(number, champion.configuration, (job,)))
        if not flying:
            return
        for done, outcome in executor.poll(0.5):
            cell = flying.pop(done)
            if speaks_for_its_code(outcome):
                matrix.add(cell, outcome, elapsed_s())


def _largest_first(cell: tuple[Champion, Case]) -> tuple[int, str]:
    champion, case = cell
    return -champion.problem.flops(case), case.label


def _baselines(
    matrix: Matrix, executor: LocalExecutor, champion: Champion, cases: Sequence[Case]
) -> dict[str, str]:
    """The baseline of each case by its label, chosen once; "" where none runs on this device."""
    document = champion.run.setup.document
    with matrix.store.trusting_facts():
        known = {str(k): str(v) for k, v in matrix.store.meta(_BASELINES, {}).items()}
    new = [case for case in cases if case.label not in known]
    for at in range(0, len(new), _AT_ONCE):
        some = new[at : at + _AT_ONCE]
        timings = executor.time_baselines(some).timings
        for case in some:
            try:
                known[case.label] = chosen_baseline(document, case, timings)
            except SpaceError:
                known[case.label] = ""
        matrix.store.set_meta(_BASELINES, known)
    return known


def baselines_of(matrix: Matrix) -> Mapping[str, str]:
    """The baselines that were chosen."""
    with matrix.store.trusting_facts():
        return dict(matrix.store.meta(_BASELINES, {}))
