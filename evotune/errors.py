"""The errors that evotune raises on purpose, each with the exit code of the command that it ends.

    EvotuneError                1   no valid candidate, regression found
    ├── SpaceError              2   bad space (carries file:line:column, or an object's path)
    ├── UsageError              2   bad argument or an unknown run
    ├── ProblemMistake          2   a mistake in the Python file of a problem (names its line)
    ├── EnvironmentProblem      3   missing compiler, GPU or package (carries the fix)
    │   └── NoSuchGpu           3   no GPU, or not the model that was asked for
    ├── StoreError              4   a damaged run
    ├── RunLocked               5   another process runs this run
    └── Interrupted           130   stopped by a signal; resumable

A candidate that fails is never one of these: it is an `evotune.trial.Outcome`.
"""

from __future__ import annotations


class EvotuneError(Exception):
    """The base of all expected errors. `str(error)` is the one line that a user reads."""

    exit_code = 1


class SpaceError(EvotuneError):
    """A space that cannot be used, with its position when one is known.

    `line` and `column` count from 1, as editors do; 0 means the position is unknown. A space made
    of Python objects has a `place` instead: `Space.parameters["BLOCK"]`.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, file: str = "", line: int = 0, column: int = 0, place: str = ""
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.place = place
        position = place or file
        if line:
            position += f":{line}:{column}"
        super().__init__(f"{position}: {message}" if position else message)


class UsageError(EvotuneError):
    """An invalid argument, or one that names something that does not exist."""

    exit_code = 2


class ProblemMistake(EvotuneError):
    """A mistake in the Python file of a problem: `problem.py:LINE: what is wrong`."""

    exit_code = 2


class EnvironmentProblem(EvotuneError):
    """This machine lacks something. The message ends with the way to get it."""

    exit_code = 3


class NoSuchGpu(EnvironmentProblem):
    """The requested GPU is absent. `model`: the requested model, or "" for any GPU. Kernels can
    still be compiled for it."""

    def __init__(self, message: str, model: str = "") -> None:
        self.model = model
        super().__init__(message)


class StoreError(EvotuneError):
    """A run's store that is damaged or from another version of evotune."""

    exit_code = 4


class RunLocked(EvotuneError):
    """Another process works on the run."""

    exit_code = 5


class Interrupted(EvotuneError):
    """The user stopped the run; everything finished so far is kept."""

    exit_code = 130
