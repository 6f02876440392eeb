"""What is kept of a configuration that ended two workers: a script that tries it alone."""

from __future__ import annotations

import shlex
import sys

from evotune.engine.folder import RunFolder
from evotune.trial import Trial

_SCRIPT = """\
#!/bin/sh
# Trial {number} ({kind}) ended two workers, the second one all by itself.
# This tries its configuration alone, in a fresh process, and leaves the run as it is.
cd "$(dirname "$0")/.." && exec {python} -P -m evotune verify . --config {configuration}
"""


def quarantine(run: RunFolder, trial: Trial) -> None:
    """Writes `quarantine/trial-N.sh` into the run's folder.

    The words of the kernel or its worker do not get in: they are not ours, and it is executed.
    """
    run.quarantine.mkdir(exist_ok=True)
    script = run.quarantine / f"trial-{trial.number}.sh"
    script.write_text(
        _SCRIPT.format(
            number=trial.number,
            kind=trial.outcome.kind,
            python=shlex.quote(sys.executable),
            configuration=shlex.quote(trial.configuration.key),
        )
    )
