"""Builds a portfolio: searches, measures the matrix, chooses kernels, learns and judges the rule.

Each step keeps what it finds, so the same command goes on after it was killed:

- a search is a run in the portfolio's folder,
- a cell of the matrix is kept as soon as it is measured,
- the choice and the rule follow from the matrix alone.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from evotune.errors import UsageError
from evotune.portfolios._case_searches import Observing
from evotune.portfolios._cell_measuring import OpenExecutor, opened_executor
from evotune.portfolios._portfolio_work import ELAPSED, PortfolioWork
from evotune.portfolios.matrix_store import Matrix, locked_matrix
from evotune.portfolios.portfolio_file import Portfolio, markdown, write_portfolio
from evotune.portfolios.request import PortfolioRequest
from evotune.runs.given_cases import kept_cases, skipped_in_words
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.runs.spaces import find_space, shipped_name
from evotune.space.specs import GivenCase
from evotune.trial import Json

MOST_CASES = 1000
"""A portfolio takes so many cases of a longer list: those of the greatest weight."""


def build_portfolio(
    request: PortfolioRequest,
    *,
    observing: Observing,
    say: Callable[[str], None] = lambda text: None,
    open_executor: OpenExecutor = opened_executor,
) -> Portfolio:
    """Builds the portfolio, or goes on with the one in the folder, and writes `portfolio.json`.

    KeyboardInterrupt where the user ended it; RunLocked while another process works on it.
    UsageError where the folder holds a portfolio of another space, device or list of cases, or for
    cases of which the space serves none, or for no kernels, trials or minutes; EvotuneError (exit
    1) where no search has a champion.
    """
    if not 0.0 <= request.held_out < 1.0:
        raise UsageError(f"the held-out share must be at least 0 and below 1: {request.held_out}")
    for name, count in (("kernels", request.most_kernels), ("trials", request.trials)):
        if not isinstance(count, int | None):
            raise UsageError(f"{name}: expected an integer, got {count!r}")
    for name, number in (
        ("kernels", request.most_kernels),
        ("trials", request.trials),
        ("minutes", request.minutes),
    ):
        if number is not None and not number > 0:
            raise UsageError(f"{name}: expected more than 0, got {number}")
    setup = load_kernel_setup(find_space(request.space), request.device)
    kept, skipped = kept_cases(setup.document, setup.planner.problem, request.cases, setup.profile)
    said = skipped_in_words(skipped, len(kept))
    if len(kept) > MOST_CASES:
        left = f"{len(kept) - MOST_CASES} of {len(kept)} cases are left out: those of least weight"
        said = "; ".join(filter(None, (said, left)))
        kept = tuple(sorted(kept, key=lambda case: -case.count)[:MOST_CASES])
    if said:
        say(said)
    facts = _facts(request, setup, kept, said)
    with locked_matrix(request.runs_dir, facts) as matrix:
        _require_same(request, matrix, facts)
        # A resumed portfolio knows only the cases that were kept.
        said = said or str(matrix.store.meta("skipped", ""))
        work = PortfolioWork(request, matrix, setup, kept, observing, say, open_executor)
        try:
            found = work.finished(said)
        finally:
            matrix.store.set_meta(ELAPSED, work.elapsed_s())
        write_portfolio(request.runs_dir, matrix, found, markdown(found))
        return found


def _facts(
    request: PortfolioRequest, setup: KernelSetup, kept: Sequence[GivenCase], skipped: str
) -> dict[str, Json]:
    digest = hashlib.sha256()
    for name, content in sorted(setup.files.items()):
        digest.update(hashlib.sha256(content).digest() + name.encode())
    path = find_space(request.space)
    return {
        "id": uuid.uuid4().hex,
        "request": {
            "space": shipped_name(path) or str(path.absolute()),
            "most_kernels": request.most_kernels,
            "held_out": request.held_out,
            "trials": request.trials,
            "minutes": request.minutes,
            "seed": request.seed,
            "device": request.device,
        },
        "files": digest.hexdigest(),
        "device": setup.profile.name,
        "cases": msgspec.to_builtins(list(kept)),
        "skipped": skipped,
    }


def _require_same(request: PortfolioRequest, matrix: Matrix, facts: Mapping[str, Json]) -> None:
    """UsageError when the folder's portfolio is another one. The number of kernels and the budget
    may change."""
    store = matrix.store
    with store.trusting_facts():
        before, now = store.meta("request"), facts["request"]
        differing = [
            words
            for words, same in (
                ("another space, or of other files of it", store.meta("files") == facts["files"]),
                ("another device", store.meta("device") == facts["device"]),
                ("other cases", store.meta("cases") == facts["cases"]),
                ("another seed", before["seed"] == now["seed"]),
                ("another held-out share", before["held_out"] == now["held_out"]),
            )
            if not same
        ]
        if differing:
            raise UsageError(
                f"{request.runs_dir} holds a portfolio of {' and '.join(differing)}: name "
                "another folder"
            )
        if before != now:
            store.set_meta("request", now)
