"""A run's folder: its name, its files, its lock, and how to find it by what a user typed.

runs/<id>/store.sqlite       outcomes, confirmations, snapshots of the search
runs/<id>/sources/           the space and every kernel source, as they were at the start
runs/<id>/environment.json   versions, device, flags, command
runs/<id>/lock               held (flock) by the process that works on the run
runs/<id>/logs/              logs of compilers and workers; scratch files
runs/<id>/quarantine/        a script for each configuration that ended two workers

A family's folder has `family.json` in place of a store, and the folders of its runs in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from evotune.errors import EnvironmentProblem, RunLocked, UsageError
from evotune.trial import Trial
from evotune.util.files import require_regular

_SCRIPT = """\
#!/bin/sh
# Trial {number} ({kind}) ended two workers, the second one all by itself.
# This tries its configuration alone, in a fresh process, and leaves the run as it is.
cd "$(dirname "$0")/.." && exec {python} -P -m evotune verify . --config {configuration}
"""

_STARTED = re.compile(r"\d{8}-\d{6}-\d{6}-")
"""The beginning of a new run's name: the time of its start, in UTC."""
_LOOKING_S = 0.2  # far longer than a look at who holds the lock takes


FAMILY = "attention"
"""The name of the family of all shipped attention spaces."""
FAMILY_FILE = "family.json"
"""The file in a family's folder with its cases, spaces, budget and state
(`portfolios/family_file.py`)."""


class RunFolder:
    """Paths inside one run's folder, or a family's."""

    def __init__(self, path: Path) -> None:
        # Absolute: compilers and workers run in other folders.
        self.path = path.absolute()

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def store(self) -> Path:
        return self.path / "store.sqlite"

    @property
    def sources(self) -> Path:
        return self.path / "sources"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run's lock in the block. Raises RunLocked, with the holder's pid, if another
        process has it, and EnvironmentProblem if the file system has no locks or `lock` is no
        regular file."""
        handle = self._open_lock(os.O_RDWR | os.O_CREAT)
        try:
            if not _takes_lock(handle):
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise RunLocked(f"run {self.id} is being worked on by process {holder}")
            with _naming(self.path / "lock"):
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)  # closing releases the lock; so does the end of the process

    def _open_lock(self, flags: int) -> int:
        """The lock's file descriptor. Anything but a file is closed again: opening a pipe in the
        usual way would wait."""
        lock = self.path / "lock"
        with _naming(lock):
            handle = os.open(lock, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
            try:
                require_regular(os.fstat(handle), lock)
            except OSError:
                os.close(handle)
                raise
            return handle

    def holder(self) -> int | None:
        """The pid of the process that works on the run now; None if there is none."""
        try:
            handle = self._open_lock(os.O_RDONLY)
        except EnvironmentProblem:
            return None
        try:
            # Shared, so that two processes that look at once do not take each other for a holder.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(handle, 32, 0).decode(errors="replace").strip()
            return int(text) if text.isdigit() else 0
        except OSError:  # a file system without locks
            return None
        finally:
            os.close(handle)
        return None


@contextlib.contextmanager
def _naming(lock: Path) -> Iterator[None]:
    """An error of the system becomes an EnvironmentProblem that names the lock."""
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"the run's lock {lock} cannot be used: {error.strerror}"
        ) from error


def _takes_lock(handle: int) -> bool:
    """Takes the lock, and returns whether it could. `RunFolder.holder` has it for an instant, so
    this function retries for a moment."""
    deadline = time.monotonic() + _LOOKING_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        except OSError as error:
            raise EnvironmentProblem(
                f"the run's folder cannot be locked ({error.strerror}); fix: use a file system "
                "with locks (--runs-dir)"
            ) from error
        else:
            return True


def create_folder(
    runs_dir: Path, name: str, parts: Sequence[str] = ("sources", "logs")
) -> RunFolder:
    """Makes the folder of a new run, with the folders `parts` in it. Raises UsageError if that
    fails."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "run"
    now = datetime.now(UTC)
    path = runs_dir / f"{now:%Y%m%d-%H%M%S-%f}-{slug}"
    try:
        path.mkdir(parents=True)
        for part in parts:
            (path / part).mkdir()
    except OSError as error:
        raise UsageError(f"cannot create the run's folder {path}: {error.strerror}") from error
    return RunFolder(path)


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file and syncs it to the disk, because the store will rely on it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def find_run(text: str, runs_dir: Path) -> RunFolder:
    """The run that `text` names: an id, a unique prefix of an id, a path, or `latest` for the last
    one of `list_runs`. Raises UsageError if there is none, or if the text names a family."""
    path = Path(text)
    if (path / "store.sqlite").is_file():
        return RunFolder(path)
    if family := find_family(text, runs_dir):
        members = [str(family.path / run.id) for run in list_runs(family.path)]
        known = ", ".join(members) or "there is none yet"
        raise UsageError(f"{family.id} is a family of runs; name one of them: {known}")
    runs = list_runs(runs_dir)
    if text == "latest" and runs:
        return runs[-1]
    matches = [run for run in runs if run.id.startswith(text)] if text else []
    exact = [run for run in matches if run.id == text]
    if exact or len(matches) == 1:
        return (exact or matches)[0]
    if matches:
        names = ", ".join(run.id for run in matches[:5])
        raise UsageError(f"{text!r} fits {len(matches)} runs: {names}")
    if text and any(path.parent.name.startswith(text) for path in runs_dir.glob("*/sources")):
        raise UsageError(f"run {text} was killed before it began; start it again")
    known = {0: "there are none", 1: "1 run is there"}.get(len(runs), f"{len(runs)} runs are there")
    raise UsageError(f"no run {text!r} in {runs_dir} ({known})")


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """All runs of a folder: first the renamed ones, then the others, oldest first."""
    paths = [path.parent for path in runs_dir.glob("*/store.sqlite")]
    return [RunFolder(path) for path in sorted(paths, key=_order)]


def is_family(space: object) -> bool:
    """Whether `space` is the name of the family and not of a file."""
    return space == FAMILY and not Path(FAMILY).is_file()


def find_family(text: str, runs_dir: Path) -> RunFolder | None:
    """The family that `text` names: an id, a unique prefix of an id, or a path; None for anything
    else. `latest` names a family if no run of the folder began later."""
    if (Path(text) / FAMILY_FILE).is_file():
        return RunFolder(Path(text))
    families = list_families(runs_dir)
    if text == "latest" and families:
        runs = list_runs(runs_dir)
        newest = not runs or _order(runs[-1].path) < _order(families[-1].path)
        return families[-1] if newest else None
    matches = [family for family in families if family.id.startswith(text)] if text else []
    exact = [family for family in matches if family.id == text]
    if not exact and (len(matches) > 1 or any(r.id.startswith(text) for r in list_runs(runs_dir))):
        return None
    return next(iter(exact or matches), None)


def list_families(runs_dir: Path) -> list[RunFolder]:
    """All families of a folder, in the order of `list_runs`."""
    paths = [path.parent for path in runs_dir.glob(f"*/{FAMILY_FILE}")]
    return [RunFolder(path) for path in sorted(paths, key=_order)]


def _order(path: Path) -> tuple[bool, str]:
    return _STARTED.match(path.name) is not None, path.name


def quarantine(folder: Path, trial: Trial) -> None:
    """Writes the script `trial-N.sh`, which tries the configuration alone, into the folder.

    The script contains no text that a kernel or its worker printed, because it is executed.
    """
    folder.mkdir(exist_ok=True)
    script = folder / f"trial-{trial.number}.sh"
    script.write_text(
        _SCRIPT.format(
            number=trial.number,
            kind=trial.outcome.kind,
            python=shlex.quote(sys.executable),
            configuration=shlex.quote(trial.configuration.key),
        )
    )
