"""Measures the HTML report of a long run: its size, and the time to write and to open it.

    python benchmarks/report_html.py [--trials 10000] [--repeats 5] [-o FILE]

The run is made up: it has 14 parameters and two cases, and a fifth of the trials failed, each with
a different reason. The page is opened in headless Chromium with software rendering.

- opening: the time from the navigation until the page is laid out and the first screen's charts are
  drawn
- reading: the time from the navigation until the page's texts and tables are drawn
- longest frame: the longest time for which the page stands still while it is scrolled from top to
  bottom, which draws every chart
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from evotune.report.data import RunData  # noqa: E402
from evotune.report.html import html_page  # noqa: E402
from evotune.runs.folder import RunFolder  # noqa: E402
from evotune.store import RunStore  # noqa: E402
from evotune.trial import (  # noqa: E402
    Configuration,
    Measurement,
    Outcome,
    OutcomeKind,
    Trial,
)
from tests.browser import chromium  # noqa: E402

_FRAMES = """(() => {
  let last = performance.now();
  window.longestFrameMs = 0;
  (function next() {
    const now = performance.now();
    window.longestFrameMs = Math.max(window.longestFrameMs, now - last);
    last = now;
    requestAnimationFrame(next);
  })();
})()"""
_SCROLL_PX = 500
CASES = ("(1,8,512,64) full", "(1,8,512,64) causal")
PARAMETERS = 14
_FIRST_PAINT_MS = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def outcome(number: int, rng: random.Random) -> Outcome:
    stage_s = {"compile": rng.random(), "load": 0.01, "verify": 0.2, "measure": 0.1}
    if rng.random() < 0.2:
        reason = (
            f"({number},8,512,64) full, needle: error {rng.random():.6e} above {rng.random():.6e}"
        )
        return Outcome(OutcomeKind.WRONG_RESULT, reason=reason, stage_s=stage_s)
    speedup = rng.lognormvariate(0.1, 0.3)
    measurements = tuple(
        Measurement(
            case, 100 / speedup, 99 / speedup, "sdpa:flash", 100.0, speedup, speedup * 0.99,
            speedup * 1.01, 20,
            state={"sm_mhz": 1980 - rng.randrange(60), "power_w": 140 + 20 * rng.random(),
                   "temperature_c": 45 + rng.randrange(9), "throttled_by": []},
        )
        for case in CASES
    )  # fmt: skip
    return Outcome(
        OutcomeKind.OK,
        fitness=math.log(speedup),
        fitness_low=math.log(speedup * 0.99),
        fitness_high=math.log(speedup * 1.01),
        measurements=measurements,
        stage_s=stage_s,
        resources={"registers": 148, "spill_bytes": 0},
    )


def made_up_run(folder: Path, trials: int) -> RunData:
    rng = random.Random(0)
    run = RunFolder(folder)
    run.environment.write_text("{}")
    facts = {
        "space": "made-up",
        "kind": "kernel",
        "device": {"name": "made up"},
        "state": "finished:trials",
        "settings": {"strategy": "random", "seed": 0, "trials": trials},
    }
    with RunStore.create(run.store, facts) as store:
        for number in range(trials):
            values = {f"PARAMETER_{at}": 1 << rng.randrange(8) for at in range(PARAMETERS)}
            store.append(Trial(number, Configuration(values), outcome(number, rng)), 0.5 * number)
    return RunData.load(run)


def opening_s(page: Path, repeats: int) -> tuple[list[float], list[float]]:
    """The seconds until the charts are drawn, and those until the page can be read."""
    program = chromium.find()
    if program is None:
        raise SystemExit(f"needs one of {', '.join(chromium.NAMES)}")
    seconds, readable = [], []
    with chromium.Browser(program) as browser:
        for _ in range(repeats):
            browser.look()
            started = time.monotonic()
            browser.open(page)
            browser.wait("document.querySelectorAll('.chart[data-drawn]').length > 0")
            seconds.append(time.monotonic() - started)
            browser.wait(f"{_FIRST_PAINT_MS} > 0")
            readable.append(browser.evaluate(_FIRST_PAINT_MS) / 1000)
        if browser.errors:
            raise SystemExit(f"the page made errors: {browser.errors}")
    return seconds, readable


def longest_frame_ms(page: Path) -> float:
    """The longest frame while the page is scrolled through until every chart is drawn."""
    program = chromium.find()
    assert program is not None
    with chromium.Browser(program) as browser:
        browser.look()
        browser.open(page)
        browser.wait("document.querySelectorAll('.chart[data-drawn]').length > 0")
        browser.evaluate(_FRAMES)
        for top in range(0, browser.evaluate("document.body.scrollHeight"), _SCROLL_PX):
            browser.evaluate(f"window.scrollTo(0, {top})")
            time.sleep(0.5)
        browser.wait("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
        time.sleep(0.5)
        return float(browser.evaluate("window.longestFrameMs"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = made_up_run(Path(folder), options.trials)
        started = time.perf_counter()
        text = html_page([data])
        writing_s = time.perf_counter() - started
        page = Path(folder) / "report.html"
        page.write_text(text, encoding="utf-8")
        size_bytes = page.stat().st_size
        seconds, readable = opening_s(page, options.repeats)
        frames = [longest_frame_ms(page) for _ in range(3)]
    record = {
        "command": ["python", *sys.argv],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "trials": options.trials,
        "writing_s": round(writing_s, 2),
        "size_bytes": size_bytes,
        "opening_s": [round(value, 2) for value in seconds],
        "opening_median_s": round(statistics.median(seconds), 2),
        "reading_s": [round(value, 2) for value in readable],
        "reading_median_s": round(statistics.median(readable), 2),
        "longest_frame_ms": [round(value) for value in frames],
        "load": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
