"""Makes random calls of an exported attention package, and compares each with SDPA and float64.

    python benchmarks/lab/export_random_calls.py PACKAGE [--calls 20000] [--seed 0] [--minutes M]
        [--processes 1] [--first N] [--masks] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`). Each call is made by SDPA, by
NAME.attention, by torch.ops.NAME.attention and by F.scaled_dot_product_attention while the package
is active. It must give

- a result within the gate's limits of float64, where a kernel served it,
- SDPA's bits, strides and gradients where none did,
- SDPA's exception with its message where SDPA raises one.

Calls run in child processes, which say each path before they take it. A crash, a lost device or a
path that takes longer than two minutes ends the child, and the next call goes on in a new one. It
is a finding, listed under `crashes`, unless PyTorch does the same without the package:
`own_crashes` lists two kinds of calls. In the first, SDPA alone ended the child (`by`: "SDPA"). In
the second, the package's path ended it, and so did the same calls with SDPA in its place ("SDPA in
the place of PATH"). Of such a call, kernels alone are judged.

With `--masks` each call has a mask: three in four have nothing unusual, and the others are as
without it. `masked` has the number of calls with a mask, and of those that a kernel served.

Most calls of a kind that is known to crash SDPA (sdpa_crashes.py) are drawn again: `left_out`.
`--minutes` ends a campaign before its last call; `left` are the [first, last] calls not made.
Prints one JSON record; exit code 1 for a finding. `--first N --calls 1` makes one call again.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import call_contexts
import torch
from call_verdicts import JUDGE, KERNELS, RIGHT, SDPA, SERVED, DeviceLost, Judge
from exported import facts, opened
from random_calls import Calls, RandomCall

_A_CHILD = 1250
_SILENT_S = 120.0
_AFTER_S = 60.0  # to find out whose fault a crash was, after the time is over
_MOST_FINDINGS = 200
_PARENTS = "EVOTUNE_BENCHMARK_CHILD"
_PACKAGE, _SDPA_ALONE, _WITHOUT_SDPA = "package", "sdpa alone", "without sdpa"
_DRAWING = "drawing"
_KEPT_BYTES = 2 << 30  # of a GPU, by a process that lies between two calls
Line = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--processes", type=int, default=1, help="so many at once")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it ends")
    parser.add_argument("--masks", action="store_true", help="each call has a mask")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.calls)
    if os.environ.get(_PARENTS):
        faulthandler.enable()
        package, manner = opened(options.package), os.environ[_PARENTS]
        child_calls = made(package, options.seed, numbers, manner, options.masks)
        for line in child_calls:
            print(json.dumps(line), flush=True)
        return 0
    record = campaign(options, numbers)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if record["findings"] or record["crashes"] else 0


def made(
    module: ModuleType, seed: int, numbers: range, manner: str = _PACKAGE, masks: bool = False
) -> Iterator[Line]:
    """For each call a line before it, one before each path that is printed at once, and one with
    its verdicts; a line of misses at the end."""
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)

    def say(path: str) -> None:
        if os.environ.get(_PARENTS):
            print(json.dumps({"path": path}), flush=True)

    calls, judge = Calls(module, seed, call_contexts.WEIGHTED, masks), Judge(module, say)
    for number in numbers:
        yield {"call": number, "path": _DRAWING}
        call = calls.call(number)
        yield {"words": call.words, "left_out": call.left_out}
        try:
            found = _verdicts(judge, call, manner)
        except DeviceLost as error:
            yield {"call": number, "lost": str(error)}
            return
        words, is_masked = call.words, call.options.get("attn_mask") is not None
        del call
        if torch.cuda.is_available() and torch.cuda.memory_reserved() > _KEPT_BYTES:
            torch.cuda.empty_cache()  # several processes share the GPU
        wrong = {path: verdict for path, verdict in found.items() if verdict not in RIGHT}
        yield {
            "call": number,
            "right": {path: verdict for path, verdict in found.items() if verdict in RIGHT},
            **({"masked": found.get("hook") == SERVED} if is_masked else {}),
            **({"wrong": wrong, "words": words} if wrong else {}),
        }
    yield {"misses": module.info()["misses"]}


def _verdicts(judge: Judge, call: RandomCall, manner: str) -> dict[str, str]:
    if manner == _SDPA_ALONE:
        judge.sdpa_alone(call)
        return {}
    if manner == _WITHOUT_SDPA:
        return {KERNELS: judge.without_sdpa(call)}
    return judge.verdicts(call)


@dataclass
class Tally:
    """Counts verdicts and keeps findings."""

    calls: int = 0
    verdicts: dict[str, collections.Counter[str]] = field(default_factory=dict)
    findings: list[Line] = field(default_factory=list)
    crashes: list[Line] = field(default_factory=list)
    own_crashes: list[Line] = field(default_factory=list)
    misses: dict[str, Line] = field(default_factory=dict)
    left_out: collections.Counter[str] = field(default_factory=collections.Counter)
    left: list[list[int]] = field(default_factory=list)
    masked: dict[str, int] = field(default_factory=lambda: {"calls": 0, "served": 0})
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, line: Line) -> None:
        """Counts one line of a child. A call counts when its verdicts come."""
        with self._lock:
            self._add(line)

    def _add(self, line: Line) -> None:
        for kind, miss in line.get("misses", {}).items():
            known = self.misses.setdefault(kind, {"count": 0, "first": miss["first"]})
            known["count"] += miss["count"]
        self.left_out.update(line.get("left_out", ()))
        if "masked" in line:
            self.masked["calls"] += 1
            self.masked["served"] += line["masked"]
        if "right" in line:
            self.calls += 1
            for path, verdict in line["right"].items():
                self.verdicts.setdefault(path, collections.Counter())[verdict] += 1
        if "wrong" in line and len(self.findings) < _MOST_FINDINGS:
            self.findings.append({name: line[name] for name in ("call", "wrong", "words")})

    def crashed(self, crash: Line, own: bool) -> None:
        with self._lock:
            (self.own_crashes if own else self.crashes).append(crash)

    def record(self) -> Line:
        def sorted_by_call(found: list[Line]) -> list[Line]:
            return sorted(found, key=lambda each: int(each["call"]))

        return {
            "calls": self.calls,
            "masked": self.masked,
            "verdicts": {
                path: dict(sorted(c.items())) for path, c in sorted(self.verdicts.items())
            },
            "misses": dict(sorted(self.misses.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "left": sorted(self.left),
            "own_crashes": sorted_by_call(self.own_crashes),
            "crashes": sorted_by_call(self.crashes),
            "findings": sorted_by_call(self.findings),
        }


def campaign(options: argparse.Namespace, numbers: range) -> Line:
    """All calls, in as many processes as it takes."""
    started, tally = time.monotonic(), Tally()
    ends = started + 60 * options.minutes
    step = min(_A_CHILD, max(1, math.ceil(len(numbers) / options.processes)))

    def part(first: int) -> None:
        at, stop = first, min(first + step, numbers.stop)
        while at < stop and time.monotonic() < ends:
            at = part_of(options, range(at, stop), tally, ends)
        if at < stop:
            tally.left.append([at, stop - 1])
        print(f"{tally.calls} calls, {len(tally.findings)} findings", file=sys.stderr)

    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(part, range(numbers.start, numbers.stop, step)))
    about = facts(opened(options.package), "export_random_calls.py")
    return {
        **about,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
        **tally.record(),
    }


def part_of(options: argparse.Namespace, numbers: range, tally: Tally, ends: float) -> int:
    """Makes calls in a process of their own until `ends`, a time of time.monotonic, and finds out
    whose fault its end was. Returns the number of the next call."""
    child = Child(options, numbers, _PACKAGE, ends)
    for line in child.lines():
        tally.add(line)
    if child.ended and not child.stopped:
        crash = {"call": child.at, "by": child.path, "ended": child.ended, "words": child.words}
        ends += _AFTER_S
        own = _by_sdpa_alone(options, range(numbers.start, child.at + 1), child.path, ends)
        tally.crashed({**crash, "by": own or child.path}, bool(own))
        if own:
            _judge_kernels(options, child.at, tally, ends)
    return child.at if child.stopped else child.at + 1


def _by_sdpa_alone(options: argparse.Namespace, numbers: range, path: str, ends: float) -> str:
    """How SDPA ended the process by itself; "" where the package took part. First the last call is
    repeated, then all calls of the process."""
    if path in (SDPA, _DRAWING, JUDGE):
        return SDPA if path == SDPA else ""
    for repeated in dict.fromkeys((numbers[-1:], numbers)):
        child = Child(options, repeated, _SDPA_ALONE, ends)
        for _ in child.lines():
            pass
        if child.ended and not child.stopped and child.path == SDPA:
            return f"{SDPA} in the place of {path}"
    return ""


def _judge_kernels(options: argparse.Namespace, number: int, tally: Tally, ends: float) -> None:
    child = Child(options, range(number, number + 1), _WITHOUT_SDPA, ends)
    for line in child.lines():
        tally.add({name: value for name, value in line.items() if name != "left_out"})
    if child.ended and not child.stopped:
        crash = {"call": number, "by": child.path, "ended": child.ended, "words": child.words}
        tally.crashed(crash, own=False)


class Child:
    """A process that makes calls.

    - at, path, words: of the call that it makes.
    - ended: how it ended before its time; "" for a child that did all it should.
    - stopped: its time was over.
    """

    def __init__(
        self, options: argparse.Namespace, numbers: range, manner: str, ends: float
    ) -> None:
        words = [str(options.package), "--seed", str(options.seed)]
        words += ["--first", str(numbers.start), "--calls", str(len(numbers))]
        words += ["--masks"] if options.masks else []
        threads = max(1, (os.cpu_count() or 1) // options.processes)
        usual = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdout=subprocess.PIPE,
            env={**usual, **os.environ, _PARENTS: manner},
        )
        self._ends = ends
        self.at, self.path, self.words = numbers.start, _DRAWING, {}
        self.ended, self.stopped = "", False

    def lines(self) -> Iterator[Line]:
        """The lines that are to be counted."""
        for text in self._texts():
            line = json.loads(text)
            self.at, self.path = line.get("call", self.at), line.get("path", self.path)
            self.words = line.get("words", self.words)
            self.ended = line.get("lost", self.ended)
            yield line
        code = self._process.wait()
        if code and not self.ended:
            self.ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _texts(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        pipe, kept = self._process.stdout.fileno(), b""
        while True:
            left_s = max(0.0, self._ends - time.monotonic())
            is_silent = not select.select([pipe], [], [], min(_SILENT_S, left_s))[0]
            self.stopped = time.monotonic() >= self._ends
            if self.stopped or is_silent:
                self._process.kill()
                self.ended = f"no answer for {_SILENT_S:.0f} s"
                return
            read = os.read(pipe, 1 << 16)
            if not read:
                return
            *lines, kept = (kept + read).split(b"\n")
            yield from lines


if __name__ == "__main__":
    sys.exit(main())
