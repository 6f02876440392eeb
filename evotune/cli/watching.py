"""`status --watch`: follows a running run from any terminal, by reading its store alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evotune.api.observing import Follower
from evotune.cli.progress import progress_observer
from evotune.cli.terminal import Terminal
from evotune.util.processes import interruptible

if TYPE_CHECKING:
    from evotune.api.run import RunFolder

_EVERY_S = 0.5


def watch(terminal: Terminal, run: RunFolder) -> None:
    """Follows the run until no process works on it any more, or until Ctrl-C."""
    from evotune.report import wording

    with interruptible(), progress_observer(terminal) as observer:
        follower = Follower(run, observer)
        follower.start()
        try:
            while True:
                working = run.holder() is not None
                state = follower.look()
                if not working:
                    break
                time.sleep(_EVERY_S)
        except KeyboardInterrupt:
            return
        stored = "killed" if state == "running" else state
        observer.finished(wording.state_text(stored), follower.elapsed_s)
