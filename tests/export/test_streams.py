"""Packages under several threads at once: see benchmarks/lab/export_streams.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.export.runtime.packages import (
    CASE,
    attention_package,
    imported,
    region,
    strided_kernel,
)

Benchmarks = Callable[[str], ModuleType]
OPTIONS = argparse.Namespace(minutes=0.005, threads=4, streams=2, seed=0)


@pytest.mark.filterwarnings("ignore:.*not served")
def test_threads_get_the_bits_of_one_thread(
    benchmark_module: Benchmarks, attention_cpu: Path
) -> None:
    script = benchmark_module("export_streams")
    with imported(attention_cpu) as module, torch.no_grad():
        record = script.campaign(module, OPTIONS)
    assert (record["wrong"], record["errors"], record["not_served"]) == ({}, [], 0)
    assert record["calls"].keys() == {"attention", "hook", "operator"}


@pytest.mark.filterwarnings("ignore:.*not served")
def test_results_that_change_are_found(benchmark_module: Benchmarks, tmp_path: Path) -> None:
    kernel = strided_kernel()
    changes = "float(value / sum) + (++number > 150000)"
    kernel["source"] = "static long number;\n" + kernel["source"].replace(
        "float(value / sum)", changes
    )
    regions = [region(**CASE), region(causal=True, **CASE)]
    package = attention_package(tmp_path, tmp_path, "changing", kernels=[kernel], served=regions)
    script = benchmark_module("export_streams")
    with imported(package) as module, torch.no_grad():
        record = script.campaign(module, OPTIONS)
    assert record["wrong"]
