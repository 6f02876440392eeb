"""Runs FlashAttention's own forward tests against an exported attention package.

    python benchmarks/lab/export_flash_tests.py PACKAGE --flash-attention CHECKOUT [--most N]
        [--seed 0]
        [--served] [--path FOLDER] [--minutes M] [-o FILE]

PACKAGE is the package's module folder (DIR/NAME of `evotune export`), CHECKOUT a copy of
FlashAttention's repository, of which its tests/test_flash_attn.py runs, unchanged. These tests
import einops: FOLDER may have it. `flash_attn` is a stand-in. It calls the package's kernels on
every case of their domain; with --served, on the served cases alone. A test of a feature that the
package does not claim is skipped and counted by its reason, and so is a test that --most leaves
out. A test whose case lies in the domain and is served by no kernel fails. Backward passes are
PyTorch's. A package for a CPU runs the tests there.

The domain is that of the cases for which the package was tuned. A search takes cases of one number
of heads and of heads of keys, since parameters of its space depend on them. So each of the four
files in benchmarks/cases has a run of its own; together they have the head sizes, lengths and masks
of the tests:

    evotune run attention-mma --cases benchmarks/cases/flash_tests_6_1.yaml --trials 6
    (the same with flash_tests_6_2.yaml, flash_tests_6_6.yaml and flash_tests_16_16.yaml)
    evotune export RUN RUN RUN RUN -o DIR --name flash_tests

A run without a champion that is faster than SDPA in some case adds no kernel to the package.

Prints one JSON record; exit code 1 when a test failed or was not collected, or none ran on a
kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cuda_on_cpu import cuda_is_the_cpu
from exported import device_of, dtype_of, facts, opened
from flash_stand_in import StandIn, head_dims, install, unclaimed

_TESTS = Path("tests/test_flash_attn.py")
_MOST_FAILURES = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--flash-attention", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--most", type=int, help="run so many tests, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--path", type=Path, metavar="FOLDER", help="of further packages")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then it ends")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    tests = options.flash_attention / _TESTS
    if not tests.is_file():
        raise SystemExit(f"{tests} is missing: --flash-attention takes a copy of the repository")
    if options.path:
        sys.path.append(str(options.path))
    record = campaign(opened(options.package), options, tests)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    is_right = record["status"] == pytest.ExitCode.OK and record["passed"]
    return 0 if is_right and record["kernel_calls"] else 1


def campaign(module: ModuleType, options: argparse.Namespace, tests: Path) -> dict[str, Any]:
    stand_in = StandIn(module, anywhere=not options.served)
    install(stand_in)
    counts = Counts(module, options)
    started = time.monotonic()
    own = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=ignore"]
    on_cpu = device_of(module).type == "cpu"
    with cuda_is_the_cpu() if on_cpu else contextlib.nullcontext():
        status = pytest.main([*own, "--no-header", "--tb=line", str(tests)], plugins=[counts])
    return {
        **facts(module, "export_flash_tests.py"),
        "status": int(status),
        "seconds": round(time.monotonic() - started, 1),
        "passed": counts.outcomes["passed"],
        "failed": counts.outcomes["failed"],
        "failures": counts.failures,
        "kernel_calls": dict(stand_in.served),
        "skipped": dict(counts.skipped.most_common()),
    }


class Counts:
    """A plugin of pytest that leaves out what is not claimed, and counts."""

    def __init__(self, module: ModuleType, options: argparse.Namespace) -> None:
        self._dtype, self._head_dims = dtype_of(module), head_dims(module)
        self._options = options
        self._ends = time.monotonic() + 60 * options.minutes
        self.outcomes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.failures: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept = []
        for item in items:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            reason = unclaimed(parameters, self._dtype, self._head_dims)
            if reason:
                self.skipped[reason] += 1
            else:
                kept.append(item)
        if self._options.most is not None and len(kept) > self._options.most:
            self.skipped["left out by --most"] = len(kept) - self._options.most
            kept = random.Random(self._options.seed).sample(kept, self._options.most)
        items[:] = kept

    def pytest_runtest_setup(self, item: Any) -> None:
        if time.monotonic() > self._ends:
            pytest.skip("the time ran out")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self.skipped[str(reason).removeprefix("Skipped: ")] += 1
        elif report.failed or report.when == "call":
            self.outcomes[report.outcome] += 1
        if report.failed and len(self.failures) < _MOST_FAILURES:
            message = str(report.longrepr).splitlines()
            self.failures.append(
                f"{report.nodeid.partition('::')[2]}: {message[-1] if message else ''}"
            )


if __name__ == "__main__":
    sys.exit(main())
