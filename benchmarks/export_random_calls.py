"""Makes random calls of an exported attention package, and compares each with SDPA and float64.

    python benchmarks/export_random_calls.py PACKAGE [--calls 20000] [--seed 0] [--minutes M]
        [--processes 1] [--first N] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`). Each call is made by SDPA, by
NAME.attention, by torch.ops.NAME.attention and by F.scaled_dot_product_attention while the package
is active. It must give

- a result within the gate's limits of float64, where a kernel served it,
- SDPA's bits, strides and gradients where none did,
- SDPA's exception with its message where SDPA raises one.

Calls run in child processes. A call that ends its process, loses the device or takes longer than
two minutes is made again by SDPA alone, several times, in a process of its own. If it ends that
process too, by a signal, a lost device or silence, it is one of SDPA's own crashes, which are
listed; otherwise it is a finding. The next call goes on in a new process. Prints one JSON record;
exit code 1 for a finding. `--first N --calls 1` makes one call again.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import call_contexts
import torch
from call_verdicts import RIGHT, DeviceLost, Judge
from exported import facts, opened
from random_calls import Calls

_A_CHILD = 250
_SILENT_S = 120.0
_MOST_FINDINGS = 200
_EXIT = "exit code"
_PARENTS, _ALONE = "EVOTUNE_BENCHMARK_CHILD", "SDPA alone"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--processes", type=int, default=1, help="so many at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then it ends")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.calls)
    if os.environ.get(_PARENTS):
        alone = os.environ[_PARENTS] == _ALONE
        for line in made(opened(options.package), options.seed, numbers, alone):
            print(json.dumps(line), flush=True)
        return 0
    record = campaign(options, numbers)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if record["findings"] or record["crashes"] else 0


def made(
    module: ModuleType, seed: int, numbers: Iterable[int], alone: bool = False
) -> Iterator[dict[str, Any]]:
    """For each call a line before it is drawn, one before it is made, and one with its verdicts; a
    line of misses at the end. `alone`: SDPA makes the calls, and nothing is compared."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)
    calls, judge = Calls(module, seed, call_contexts.WEIGHTED), Judge(module)
    for number in numbers:
        yield {"call": number}
        call = calls.call(number)
        yield {"call": number, "words": call.words}
        try:
            found = judge.repeated(call) if alone else judge.verdicts(call)
        except DeviceLost as error:
            yield {"call": number, "lost": str(error)}
            return
        wrong = {path: verdict for path, verdict in found.items() if verdict not in RIGHT}
        yield {
            "call": number,
            "right": {path: verdict for path, verdict in found.items() if verdict in RIGHT},
            **({"wrong": wrong, "words": call.words} if wrong else {}),
        }
    yield {"misses": module.info()["misses"]}


class Tally:
    """Counts verdicts and keeps findings."""

    def __init__(self) -> None:
        self.calls = 0
        self.verdicts: dict[str, collections.Counter[str]] = {}
        self.findings: list[dict[str, Any]] = []
        self.crashes: list[dict[str, Any]] = []
        self.own_crashes: list[dict[str, Any]] = []
        self.misses: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def add(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._add(line)

    def _add(self, line: dict[str, Any]) -> None:
        for kind, miss in line.get("misses", {}).items():
            known = self.misses.setdefault(kind, {"count": 0, "first": miss["first"]})
            known["count"] += miss["count"]
        if "lost" in line:
            self.crashes.append(line)
        if "right" in line:
            self.calls += 1
            for path, verdict in line["right"].items():
                self.verdicts.setdefault(path, collections.Counter())[verdict] += 1
        if "wrong" in line and len(self.findings) < _MOST_FINDINGS:
            self.findings.append({name: line[name] for name in ("call", "wrong", "words")})

    def record(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "verdicts": {
                path: dict(sorted(c.items())) for path, c in sorted(self.verdicts.items())
            },
            "misses": dict(sorted(self.misses.items())),
            "crashes": self.crashes,
            "SDPA's own crashes": self.own_crashes,
            "findings": self.findings,
        }


def campaign(options: argparse.Namespace, numbers: range) -> dict[str, Any]:
    """All calls, in as many processes as it takes."""
    started, tally = time.monotonic(), Tally()

    def part(first: int) -> None:
        at, stop = first, min(first + _A_CHILD, numbers.stop)
        while at < stop and time.monotonic() - started < options.minutes * 60:
            at = child(options, at, stop - at, tally)
        print(f"{tally.calls} calls, {len(tally.findings)} findings", file=sys.stderr)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(part, range(numbers.start, numbers.stop, _A_CHILD)))
    tally.findings.sort(key=lambda finding: finding["call"])
    about = facts(opened(options.package), "export_random_calls.py")
    return {
        **about,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
        **tally.record(),
    }


def child(options: argparse.Namespace, first: int, calls: int, tally: Tally) -> int:
    """Makes calls in a process of their own. Returns the number of the next call."""
    end = Ending(first)
    for line in lines_of(options, first, calls, end, "calls"):
        if "lost" not in line:  # whose it is, the call by SDPA alone tells
            tally.add(line)
    if end.words:
        crash = {"call": end.call, "ended": end.words, **end.said}
        alone = Ending(end.call)
        collections.deque(lines_of(options, end.call, 1, alone, _ALONE), maxlen=0)
        if alone.is_a_crash:
            tally.own_crashes.append({**crash, "alone": alone.words})
        else:
            tally.crashes.append(crash)
    return end.call + 1


@dataclass
class Ending:
    """The call that a child process made last, and how the process ended: "" if all is well."""

    call: int
    words: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def is_a_crash(self) -> bool:
        """False for an exception of this script's own, and for a call that could not be drawn."""
        return bool(self.words and self.said) and not self.words.startswith(_EXIT)


def lines_of(
    options: argparse.Namespace, first: int, calls: int, end: Ending, kind: str
) -> Iterator[dict[str, Any]]:
    """The lines of a child process that makes calls."""
    words = [str(options.package), "--seed", str(options.seed)]
    words += ["--first", str(first), "--calls", str(calls)]
    process = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        env={"OMP_WAIT_POLICY": "passive", "PYTHONFAULTHANDLER": "1", **os.environ, _PARENTS: kind},
    )
    finished = True
    for line in _lines(process):
        if line is None:
            process.kill()
            end.words = f"no answer for {_SILENT_S:.0f} s"
            break
        found = json.loads(line)
        end.call = found.get("call", end.call)
        if found.keys() <= {"call", "words"}:
            end.said = {name: found[name] for name in ("words",) if name in found}
        end.words = found.get("lost", end.words)
        finished = "right" in found or "misses" in found
        yield found
    code = process.wait()
    if code and not end.words:
        end.words = signal.Signals(-code).name if code < 0 else f"{_EXIT} {code}"
        end.words += ", between two calls" * finished


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes | None]:
    """The lines of its stdout; None where none comes in time."""
    assert process.stdout is not None
    pipe, kept = process.stdout.fileno(), b""
    while True:
        if not select.select([pipe], [], [], _SILENT_S)[0]:
            yield None
            return
        read = os.read(pipe, 1 << 16)
        if not read:
            return
        *lines, kept = (kept + read).split(b"\n")
        yield from lines


if __name__ == "__main__":
    sys.exit(main())
