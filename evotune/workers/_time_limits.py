"""The time limits of a device's requests: wide at first, then by the longest that trials took."""

from __future__ import annotations

from evotune.trial import Outcome
from evotune.workers.executor import WHEN_THERE_IS_TIME
from evotune.workers.messages import Request, TrialRequest

OPEN_TIMEOUT_S = 120.0
_HARNESS_TIMEOUT_S = 900.0  # for references and baselines, which evotune and PyTorch compute
_LEAST_HARNESS_TIMEOUT_S = 60.0
_KNOWN_AFTER = 5  # answers, after which time limits are multiples of the longest time
_THOROUGH_CASE_S = 30.0  # a champion's case is timed for ten seconds, and more than once
_LEAST_TIMEOUT_S = 20.0


class TimeLimits:
    """Learns from the trials of the search. `sanitizer_s`: what a champion's sanitizer may take."""

    def __init__(self, longest_trial_s: float, sanitizer_s: float) -> None:
        self._longest_trial_s = longest_trial_s
        self._sanitizer_s = sanitizer_s
        self._slowest_s = 0.0
        self._slowest_preparation_s = 0.0
        self._answers = 0

    def prepared(self, request: Request, seconds: float) -> None:
        """A trial's inputs and references took this long."""
        if _is_search_trial(request):
            self._slowest_preparation_s = max(self._slowest_preparation_s, seconds)

    def answered(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """A prepared trial took this long."""
        if _is_search_trial(request):
            self._answers += 1
            # A candidate that fails early says nothing of how long measuring takes.
            if outcome.ok:
                self._slowest_s = max(self._slowest_s, seconds)

    def harness_s(self, request: Request) -> float:
        """The limit on preparing a trial's inputs and references, where a worker can hang as well.
        It is wide at first; later it is 20 times the longest that this run's trials took, within
        bounds."""
        if self._answers < _KNOWN_AFTER or not _is_search_trial(request):
            return _HARNESS_TIMEOUT_S
        room_s = max(_LEAST_HARNESS_TIMEOUT_S, 20 * self._slowest_preparation_s)
        return min(_HARNESS_TIMEOUT_S, room_s)

    def trial_s(self, request: TrialRequest) -> float:
        """The limit on a trial once it is prepared. In the search it is wide at first; later it is
        10 times the longest that this run's passing trials took, within bounds."""
        if request.thorough or request.rival:
            cases = sum(case.role not in WHEN_THERE_IS_TIME for case in request.cases)
            further_s = request.served_s if request.only_served else self._sanitizer_s
            return self._longest_trial_s + _THOROUGH_CASE_S * cases + further_s
        if self._answers < _KNOWN_AFTER or not self._slowest_s:
            return self._longest_trial_s
        return min(self._longest_trial_s, max(_LEAST_TIMEOUT_S, 10 * self._slowest_s))


def _is_search_trial(request: Request) -> bool:
    return isinstance(request, TrialRequest) and not request.thorough
