"""Measures the structure of the package `evotune`, and the modules that a trial passes.

    python benchmarks/structure.py [--list]

It counts the modules, their lines, the import circles (imports inside functions and for type
checkers included), the imports of the command line into other parts than the API, and the fields
with `Any` in what crosses a process or enters a run's store: in messages, facts, and all structs
inside them. Then it runs trials of a small space on the CPU, and notes in every process which
modules have a function that was called:

- by a trial: while eight trials in the middle of the search were asked, compiled, measured, told;
- by all of it: with the run's start, the opening of the device, the baselines and a leaderboard.

Code that runs while a module is imported does not count. `--list` names the modules.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import graphlib
import io
import json
import os
import runpy
import sys
import tempfile
import threading
import typing
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import grimp
import msgspec

import evotune
from evotune.backends.base import evidence
from evotune.cli.main import main as command_line
from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.starting import RunRequest, start_run
from evotune.store import facts
from evotune.trial import Outcome, Trial
from evotune.workers import child, messages

PACKAGE = Path(evotune.__file__).parent
BEHIND_THE_API = (
    "portfolios",
    "runs",
    "search",
    "workers",
    "store",
    "verify",
    "timing",
    "backends",
)
SPACE = "softmax-cpu"
TRIALS, LOOKAHEAD = 20, 4
FIRST, LAST = 8, 16  # the counted trials are told between these two
NOTES, SEARCHING = "notes", "searching"  # in the folder that all processes know
CHILD = "--child"
FOLDER = "EVOTUNE_STRUCTURE_FOLDER"


class Notes:
    """Notes each module of the package once for the trial and once for all of the run."""

    def __init__(self, folder: Path) -> None:
        self._searching = str(folder / SEARCHING)
        self._file = (folder / f"{NOTES}-{os.getpid()}").open("a", encoding="utf-8")
        self._known: dict[str, bool] = {}  # by file: whether a trial passed it

    def call(self, frame: FrameType, event: str, argument: object) -> None:
        """A profile function, see `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or self._known.get(code.co_filename) or code.co_name == "<module>":
            return
        if not code.co_filename.startswith(str(PACKAGE)):
            self._known[code.co_filename] = True
            return
        searching = os.path.exists(self._searching)
        if searching or code.co_filename not in self._known:
            self._known[code.co_filename] = searching
            self._file.write(json.dumps([code.co_filename, searching]) + "\n")
            self._file.flush()

    def start(self) -> None:
        threading.setprofile(self.call)
        sys.setprofile(self.call)


class Window(SilentObserver):
    """Says to all processes which trials count."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SEARCHING

    def told(self, trial: Trial, progress: Progress) -> None:
        if progress.told == FIRST:
            self._file.touch()
        elif progress.told == LAST:
            self._file.unlink()


def passed(folder: Path) -> tuple[set[str], set[str]]:
    """The modules that a trial passes, and those of the whole run with a leaderboard."""
    os.environ[FOLDER] = str(folder)
    child.module_command = _noting  # type: ignore[attr-defined]
    Notes(folder).start()
    try:
        request = RunRequest(
            SPACE,
            runs_dir=folder / "runs",
            options={"trials": TRIALS, "lookahead": LOOKAHEAD, "champions": 0},
        )
        run = start_run(request, Window(folder)).run
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            command_line(["top", run.id, "--runs-dir", str(folder / "runs")])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    trial, everything = set(), set()
    for path in folder.glob(f"{NOTES}-*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            file, searching = json.loads(line)
            name = str(Path(file).relative_to(PACKAGE))
            everything.add(name)
            if searching:
                trial.add(name)
    return trial, everything


def _noting(module: str, *arguments: str) -> list[str]:
    """The command line of a child process that notes its modules too."""
    return [sys.executable, "-P", __file__, CHILD, module, *arguments]


def noting_child(module: str, arguments: list[str]) -> None:
    """Runs the module as `python -m` does, and notes the modules that it passes."""
    sys.argv = [module, *arguments]
    Notes(Path(os.environ[FOLDER])).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@functools.cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("evotune", exclude_type_checking_imports=False, cache_dir=None)


def doors() -> list[str]:
    """The modules behind the API that the command line imports."""
    return sorted(
        f"{user} imports {module}"
        for module in imports().modules
        if module.split(".")[1:2] and module.split(".")[1] in BEHIND_THE_API
        for user in imports().find_modules_that_directly_import(module)
        if user.startswith("evotune.cli.")
    )


def circles() -> int:
    """The sets of modules that import one another."""
    graph = imports()
    needs = {
        module: {
            needed
            for needed in graph.find_modules_directly_imported_by(module)
            if not needed.startswith(f"{module}.")
        }
        for module in graph.modules
    }
    found = 0
    while True:
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            found += 1
            before, after = error.args[1][:2]
            needs[after].discard(before)
        else:
            return found


def untyped_fields() -> list[str]:
    """The fields whose type is `Any`, or holds it."""
    roots = [*vars(messages).values(), facts.Facts, Trial, Outcome]
    queue = [each for each in roots if is_record(each)]
    done: set[type] = set()
    found = []
    while queue:
        record = queue.pop()
        if record in done:
            continue
        done.add(record)
        for name, wanted in typing.get_type_hints(record, localns=vars(evidence)).items():
            parts = list(parts_of(wanted))
            queue += [part for part in parts if is_record(part)]
            if typing.Any in parts:
                found.append(f"{record.__qualname__}.{name}")
    return sorted(found)


def is_record(value: object) -> bool:
    return isinstance(value, type) and (
        issubclass(value, msgspec.Struct) or dataclasses.is_dataclass(value)
    )


def parts_of(wanted: object) -> Iterator[object]:
    """The type and all types inside it."""
    yield wanted
    for part in typing.get_args(wanted):
        yield from parts_of(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the modules that a trial passes")
    options = parser.parse_args()
    files = [path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts]
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    print(f"modules                          {len(files):6,}")
    print(f"lines                            {sum(lines):6,}")
    print(f"modules under 60 lines           {sum(count < 60 for count in lines):6,}")
    print(f"import circles                   {circles():6,}")
    print(f"doors past the API               {len(doors()):6,}")
    print(f"fields with Any                  {len(untyped_fields()):6,}")
    with tempfile.TemporaryDirectory() as folder:
        trial, everything = passed(Path(folder))
    print(f"modules that a trial passes      {len(trial):6,}")
    print(f"with its run and a leaderboard   {len(everything):6,}")
    if options.list:
        for name in sorted(everything):
            print(f"{'trial' if name in trial else 'run  '}  {name}")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        noting_child(sys.argv[2], sys.argv[3:])
    else:
        main()
