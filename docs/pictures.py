"""Makes the pictures of README and of the guides from a real run on this machine's CPU.

python docs/pictures.py [--space attention-cpu] [--trials 24] [--at 18]    # needs Chromium
python docs/pictures.py --of runs/ID     # the report's pictures alone, of a run that is there

docs/images/live.svg is the very panel that the terminal shows, as it was after trial --at, 80
columns wide; docs/images/report.png is the top of the HTML report of that run, docs/images/why.png
its section that explains the winner. Effects are those of the run's trials: to measure each choice
in turn takes longer than the run.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from evotune.cli.progress import LiveProgress, Standing  # noqa: E402
from evotune.explain.explaining import ExplainRequest, explain_run  # noqa: E402
from evotune.explain.report_parts import explained_html  # noqa: E402
from evotune.report.data import RunData  # noqa: E402
from evotune.runs.folder import RunFolder  # noqa: E402
from evotune.runs.observer import Progress  # noqa: E402
from evotune.runs.starting import RunRequest, start_run  # noqa: E402
from evotune.trial import Trial  # noqa: E402
from tests.browser import chromium  # noqa: E402

IMAGES = Path(__file__).resolve().parent / "images"
_COLUMNS = 80
_WIDTH, _HEIGHT = 1180, 900
_EXPLAINED = """(() => {
  const why = document.querySelector('.evotune-pictures').closest('section');
  const box = why.getBoundingClientRect();
  return [box.top + scrollY - 8, box.height + 16];
})()"""
# A picture asks nobody for a font.
_FORMAT = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Photographer(LiveProgress):
    """The live view; its picture is taken once, after the trial `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(Standing(), start=lambda: None)
        self._at = at
        self.picture = ""

    def told(self, trial: Trial, progress: Progress) -> None:
        super().told(trial, progress)
        if progress.told == self._at:
            console = Console(
                record=True,
                file=io.StringIO(),
                width=_COLUMNS,
                force_terminal=True,
                color_system="truecolor",
            )
            console.print(self)
            self.picture = console.export_svg(title="evotune run", code_format=_FORMAT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--space", default="attention-cpu")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--at", type=int, default=18)
    parser.add_argument("--of", type=Path, metavar="RUN", help="the folder of a run that is there")
    options = parser.parse_args()
    program = chromium.find()
    if program is None:
        raise SystemExit(f"needs one of {', '.join(chromium.NAMES)}")
    if options.of is not None:
        photograph(RunFolder(options.of.resolve()), program)
        return
    observer = Photographer(options.at)
    with tempfile.TemporaryDirectory() as folder:
        command = ("evotune", "run", options.space, "--trials", str(options.trials))
        request = RunRequest(
            options.space,
            "cpu",
            Path(folder) / "runs",
            options={"trials": options.trials},
            command=command,
        )
        run = start_run(request, observer).run
        explain_run(run, ExplainRequest(measure=True, effects=False), print)
        photograph(run, program)
    (IMAGES / "live.svg").write_text(observer.picture, encoding="utf-8")


def photograph(run: RunFolder, program: str) -> None:
    """Takes the pictures of a run's report."""
    os.chdir(run.path.parent.parent)  # so that its commands name no folder of this machine
    with tempfile.TemporaryDirectory() as folder, chromium.Browser(program) as browser:
        page = Path(folder) / "report.html"
        page.write_text(explained_html([RunData.load(run)]), encoding="utf-8")
        browser.look(width=_WIDTH)
        browser.open(page)
        browser.wait("document.querySelectorAll('.chart[data-drawn]').length > 0")
        browser.screenshot(IMAGES / "report.png", top=0, width=_WIDTH, height=_HEIGHT)
        top, height = browser.evaluate(_EXPLAINED)
        browser.screenshot(IMAGES / "why.png", top=int(top), width=_WIDTH, height=int(height))


if __name__ == "__main__":
    main()
