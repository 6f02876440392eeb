"""Runs the suite beside other work: no test may fail because the machine is busy.

    python benchmarks/busy_suite.py --beside 16 --pairs 6 --workers 6 --minutes 9
        -o benchmarks/results/busy_suite.json [-- PYTEST'S ARGUMENTS]
    python benchmarks/busy_suite.py --table FILE

`make test` has two workers on two cores. Here each pair of cores has as many `--workers` as are
asked for, and processes that spin, so that at least `--beside` others are busy on the two cores of
each test: the other workers of the pair count as well. The processes begin to spin once all workers
have collected the tests. FILE has one record for each test, and how many others were really busy on
its cores on average: a process that spins all the time had a share s of a core, so 2 / s were busy.

FILE's tests are not run again, so a campaign can be made in parts. A test that is cut off by
`--minutes` is run in the next part. `--again` runs the failed tests on a quiet machine: a test that
fails there too does not fail because the machine is busy.

This module is also pytest's plugin for such a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from spinning import CORES, Spun, pairs_of_cores, spinning

ROOT = Path(__file__).parents[1]
_HERE = str(Path(__file__).parent)
_SUITE = ("-m", "not gpu and not soak")
_SETTINGS = "EVOTUNE_BUSY_SUITE"  # names the file with the settings
_SHOWN_LINES = 60  # of a traceback
_LONG_S = 1.0  # within a shorter time the kernel's clock does not tell how busy others were


# --- The plugin: in the process that hands out the tests, and in each worker ----------------------


class Plugin:
    """Of a worker: it keeps to its pair of cores. Of the other process: it keeps the cores busy
    and writes the records."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._path = Path(settings["records"])
        self._worker = os.environ.get("PYTEST_XDIST_WORKER")
        self._pairs = settings["pairs"]
        self._workers = len(self._pairs) * settings["workers"]
        self._collected = 0
        self._busy = ExitStack()
        self._spinners: list[list[int]] = []
        self._last: dict[str, tuple[Spun, float | None]] = {}
        self._open: dict[str, dict[str, Any]] = {}
        if self._worker is not None:
            number = int(self._worker.removeprefix("gw"))
            os.sched_setaffinity(0, self._pairs[number % len(self._pairs)])
            # The tests know nothing of this folder.
            sys.path[:] = [each for each in sys.path if each != _HERE]

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        done = set(self._settings["done"])
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid in done])
        items[:] = [each for each in items if each.nodeid not in done]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self._collected += 1
        if self._collected == self._workers:
            count = self._settings["spinning"]
            self._spinners = self._busy.enter_context(spinning(count, self._pairs))
            print(f"{len(ids)} tests; {count} processes spin on each pair", flush=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst of a test's three reports, and writes it after the last."""
        if self._worker is not None:
            return
        record = self._open.setdefault(
            report.nodeid, {"test": report.nodeid, "outcome": report.outcome, "seconds": 0.0}
        )
        record["seconds"] = round(record["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            record["outcome"] = report.outcome
        if report.failed:
            lines = report.longreprtext.splitlines()
            record["why"] = "\n".join([record.get("why", ""), *lines[-_SHOWN_LINES:]]).strip()
        if report.when == "teardown":
            record["beside"] = self._beside(getattr(report, "node", None))
            with self._path.open("a") as file:
                file.write(json.dumps(self._open.pop(report.nodeid)) + "\n")

    def _beside(self, node: Any) -> float | None:
        """The other busy processes on the cores of this worker since its test before, on average.
        Of short tests the time before counts as well."""
        if not self._spinners or node is None:
            return None
        name = node.gateway.id
        now = Spun.so_far(self._spinners[int(name.removeprefix("gw")) % len(self._pairs)])
        before, value = self._last.setdefault(name, (now, None))
        if now.at_s - before.at_s > _LONG_S:
            value = before.beside(now)
            self._last[name] = now, value
        return value

    def pytest_sessionfinish(self) -> None:
        self._busy.close()


def pytest_configure(config: pytest.Config) -> None:
    if _SETTINGS in os.environ:
        settings = json.loads(Path(os.environ[_SETTINGS]).read_text())
        config.pluginmanager.register(Plugin(settings))


# --- The campaign ---------------------------------------------------------------------------------


def read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {"about": {}, "results": []}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def run(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of the tests that were run; of each the last one."""
    failed = [each["test"] for each in results if each["outcome"] == "failed"]
    records = options.output.with_suffix(".part")
    records.write_text("")
    settings = {
        "records": str(records.absolute()),
        "pairs": pairs_of_cores(options.pairs),
        "workers": options.workers,
        "spinning": options.spinning,
        "done": [] if options.again else [each["test"] for each in results],
    }
    start = f"import sys; sys.path.insert(0, {_HERE!r}); import pytest; sys.exit(pytest.main())"
    command = [sys.executable, "-c", start, "-p", "busy_suite", "-q", "-n"]
    command += [str(len(settings["pairs"]) * options.workers), "--dist", "worksteal"]
    command += [*_SUITE, *options.pytest, *(failed if options.again else [])]
    told = records.with_suffix(".settings")
    told.write_text(json.dumps(settings))
    environment = os.environ | {_SETTINGS: str(told.absolute())}
    with (
        _whole_group(command, environment) as process,
        contextlib.suppress(subprocess.TimeoutExpired),
    ):
        process.wait(60 * options.minutes)
    return [json.loads(line) for line in records.read_text().splitlines()]


@contextlib.contextmanager
def _whole_group(
    command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its children, which end with the block."""
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def table(found: dict[str, Any]) -> str:
    results = found["results"]
    counts = Counter(each["outcome"] for each in results)
    beside = [each["beside"] for each in results if each.get("beside") is not None]
    lines = [
        f"{len(results)} tests: " + ", ".join(f"{n} {what}" for what, n in counts.most_common())
    ]
    if beside:
        lines.append(f"others busy on the two cores of a test: {min(beside)} to {max(beside)}")
    for each in results:
        if each["outcome"] == "failed":
            quiet = {True: " (with nothing beside it too)", False: " (passes with nothing beside)"}
            lines.append(f"- {each['test']}{quiet.get(each.get('quiet_failed'), '')}")
    return "\n".join(lines)


def write(path: Path, found: dict[str, Any]) -> None:
    lines = ",\n".join(json.dumps(each) for each in found["results"])
    beside = path.with_suffix(".new")
    beside.write_text(f'{{"about": {json.dumps(found["about"])},\n"results": [\n{lines}\n]}}\n')
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=int, default=16, help="busy processes beside each test")
    parser.add_argument("--pairs", type=int, default=1, help="of cores")
    parser.add_argument("--workers", type=int, default=2, help="on two cores")
    parser.add_argument("--spinning", type=int, help="on two cores; by default --beside")
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument(
        "--again", action="store_true", help="run the failed tests on a quiet machine"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("busy_suite.json"))
    parser.add_argument("--table", type=Path, help="print that file's table, run nothing")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    options = parser.parse_args()
    if options.table:
        print(table(read(options.table)))
        return
    if options.spinning is None:
        options.spinning = options.beside
    if options.again:
        options.spinning = 0
    found = read(options.output)
    now = {each["test"]: each for each in run(options, found["results"])}
    if options.again:
        for each in found["results"]:
            if each["test"] in now:
                each["quiet_failed"] = now[each["test"]]["outcome"] == "failed"
                each["quiet_why"] = now[each["test"]].get("why", "")
    else:
        found["results"] += now.values()
        found["about"] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": f"python benchmarks/busy_suite.py --beside {options.beside} "
            f"--pairs {options.pairs} --workers {options.workers} --spinning {options.spinning}",
            "python": platform.python_version(),
            "cores": CORES * options.pairs,
        }
    write(options.output, found)
    print(table(found))


if __name__ == "__main__":
    main()
