"""Random calls of packages: see benchmarks/lab/export_random_calls.py."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.export.making import ROOT
from tests.export.runtime.packages import attention_package, description, imported

Benchmarks = Callable[[str], ModuleType]
SCRIPT = ROOT / "benchmarks" / "lab" / "export_random_calls.py"


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """PyTorch warns of some kinds of tensors, and packages of misses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tallied(
    benchmark_module: Benchmarks, package: Path, calls: range, *, masks: bool = False
) -> Any:
    script = benchmark_module("export_random_calls")
    tally = script.Tally()
    with imported(package) as module:
        for line in script.made(module, 0, calls, masks=masks):
            tally.add(line)
    return tally


@pytest.mark.soak
def test_300_calls_are_right(benchmark_module: Benchmarks, attention_cpu: Path) -> None:
    tally = tallied(benchmark_module, attention_cpu, range(300))
    assert tally.calls == 300
    assert tally.findings == tally.crashes == []
    served = tally.verdicts["hook"]["within the limit of float64"]
    assert served > 50
    assert {"grad", "layout", "mask", "dtype", "dropout"} <= tally.misses.keys()


def test_200_calls_with_masks_are_right(benchmark_module: Benchmarks, masks_cpu: Path) -> None:
    tally = tallied(benchmark_module, masks_cpu, range(200), masks=True)
    assert tally.findings == tally.crashes == []
    assert tally.masked["calls"] > 190
    assert tally.masked["served"] > 0.6 * tally.masked["calls"]
    assert {"layout", "mask", "alignment"} <= tally.misses.keys()


def with_argument(kind: str, value: Any) -> list[dict[str, Any]]:
    """The kernels of a package that pass another value to their kernel."""
    kernels: list[dict[str, Any]] = description("any")["kernels"]
    plan = kernels[0]["plan"]
    plan["arguments"] = [
        {**each, "value": value} if each["type"] == kind else each for each in plan["arguments"]
    ]
    return kernels


def test_a_wrong_kernel_is_found(benchmark_module: Benchmarks, tmp_path: Path) -> None:
    kernels = with_argument("float32", 0.3)
    package = attention_package(tmp_path, tmp_path, "wrong_scale", kernels=kernels)
    tally = tallied(benchmark_module, package, range(60))
    wrong = [verdict for finding in tally.findings for verdict in finding["wrong"].values()]
    assert wrong
    assert all(verdict.startswith("off by") for verdict in wrong)


WITHOUT_ELEMENTS = (143, 319)
"""Numbers of calls of seed 0 on a CPU, of real numbers."""


def none_without_elements(q: Any, k: Any, v: Any, *others: Any, **named: Any) -> Any:
    """SDPA as cuDNN's kernels make it: but for the math backend, it gives None."""
    plain = all(isinstance(t, torch.Tensor) and t.device.type == "cpu" for t in (q, k, v))
    if plain and torch.backends.cuda.flash_sdp_enabled() and 0 in (*q.shape, *k.shape, *v.shape):
        return None
    return torch._C._nn.scaled_dot_product_attention(q, k, v, *others, **named)


def test_results_of_the_operator_that_sdpa_does_not_give_are_held_to_the_reference(
    benchmark_module: Benchmarks,
) -> None:
    script = benchmark_module("call_verdicts")

    def verdict(value: torch.Tensor, error: Exception | None = None, rows: int = 8) -> str:
        limits = script.Limit(SimpleNamespace(tensors=given(rows), options={}, context="plain"))
        known, found = script.Result(error=error), script.Result(value)
        return str(script.Judge._by_the_reference(known, found, limits))

    right, error = none_without_elements(*given(8)), RuntimeError("not aligned")
    assert verdict(right) == script.OTHER_BITS
    assert verdict(right, error) == script.INSTEAD
    assert verdict(1.01 * right) == verdict(1.01 * right, error) == ""
    empty = given(0)[0]
    assert verdict(empty, error, rows=0) == script.EMPTY
    assert verdict(empty, rows=0) == verdict(empty[:, :1], error, rows=0) == ""


@pytest.mark.parametrize("context", ["plain", "vmap"])
def test_gradients_that_sdpa_does_not_give_are_held_to_those_in_float64(
    benchmark_module: Benchmarks, context: str
) -> None:
    script = benchmark_module("call_verdicts")
    tensors = [tensor.requires_grad_() for tensor in given(8)]
    call = script.RandomCall({}, tensors, {}, context)
    limits = script.Limit(call)
    value = none_without_elements(*tensors)
    right = torch.autograd.grad(value.sum(), tensors)
    value = value[None] if context == "vmap" else value

    def verdict(*gradients: torch.Tensor | None, error: Exception | None = None) -> str:
        known = script.Result(None if error else value, () if error else right, error)
        found = script.Result(value, gradients)
        return str(script.Judge._by_the_reference(known, found, limits))

    assert verdict(*right) == script.OTHER_BITS
    assert verdict(*right, error=RuntimeError()) == script.INSTEAD
    wrong = [(*right[:2], 1.01 * right[2]), (*right[:2], None), right[:2], ()]
    assert [verdict(*each) for each in wrong] == [""] * 4
    assert [verdict(*each, error=RuntimeError()) for each in wrong] == [""] * 4


def test_a_call_that_the_formula_refuses_is_no_crash_of_the_judge(
    benchmark_module: Benchmarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("call_verdicts")
    tensors = [tensor.requires_grad_() for tensor in given(8)]
    limits = script.Limit(script.RandomCall({}, tensors, {}, "plain"))

    def refusing(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("8 GiB")

    monkeypatch.setattr(script, "_math", refusing)
    assert not limits.hold_gradients(script.Result(error=RuntimeError()), script.Result())


def test_bits_are_compared_some_elements_at_a_time(
    benchmark_module: Benchmarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("call_differences")
    monkeypatch.setattr(script, "_PART", 4)
    known = torch.arange(11.0)
    known[3] = math.nan
    other = known.clone()
    assert script.same_bits(known, other)
    assert script.same_bits(known[::2], other[::2])
    other[9] = 0.0
    assert not script.same_bits(known, other)
    assert not script.same_bits(known, known[:9])


def given(rows: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, rows, 16, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("package_gives_none", [False, True])
def test_where_sdpa_gives_none_the_package_must_give_a_tensor(
    benchmark_module: Benchmarks,
    attention_cpu: Path,
    monkeypatch: pytest.MonkeyPatch,
    package_gives_none: bool,
) -> None:
    script = benchmark_module("export_random_calls")
    monkeypatch.setattr(sys.modules["call_verdicts"], "_SDPA", none_without_elements)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", none_without_elements)
    tally = script.Tally()
    with imported(attention_cpu) as module:
        package = sys.modules[f"{module.__name__}._attention_package"]
        monkeypatch.setattr(package, "sdpa", none_without_elements)
        if package_gives_none:  # as an earlier one did
            calls = sys.modules[f"{module.__name__}._attention_calls"]
            monkeypatch.setattr(calls, "plain_attention", lambda *_: None)
        for number in WITHOUT_ELEMENTS:
            for line in script.made(module, 0, range(number, number + 1)):
                tally.add(line)
    assert tally.verdicts["hook"].keys() >= {"no tensor, as from SDPA"}
    by_math = "the math backend's bits, where SDPA gives no tensor"
    assert by_math in tally.verdicts["operator"]
    wrong = {path for finding in tally.findings for path in finding["wrong"]}
    assert wrong == ({"attention"} if package_gives_none else set()), tally.findings


CRASHING: dict[str, tuple[tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "zeros without memory": ((torch._efficientzerotensor((1, 1, 8, 8)),) * 3, {}),
    "a dropout below 0, of 1 or above": ((torch.zeros(1, 1, 8, 8),) * 3, {"dropout_p": 1.0}),
    "queries and keys of different sizes": (
        (torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 12), torch.zeros(1, 1, 8, 8)),
        {},
    ),
    "q, k or v begins at no multiple of 16 bytes": (
        (torch.zeros(65)[1:].view(1, 1, 8, 8), *(torch.zeros(1, 1, 8, 8),) * 2),
        {},
    ),
    "one query or key, and rows at no multiples of 16 bytes": (
        (torch.zeros(1, 1, 1, 8), *(torch.zeros(1, 1, 8, 9)[..., :8],) * 2),
        {},
    ),
    "more than 65,535 batches": ((torch.zeros(1, 1, 1, 8).expand(70_000, 1, 1, 8),) * 3, {}),
    "enable_gqa, and no head of keys or values": (
        (torch.zeros(1, 1, 8, 8), *(torch.zeros(1, 0, 8, 8),) * 2),
        {"enable_gqa": True},
    ),
}


def test_calls_that_crash_sdpa_are_told_by_rules(
    benchmark_module: Benchmarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = benchmark_module("sdpa_crashes")
    monkeypatch.setattr(rules, "_lies_on_a_gpu", lambda tensor: True)
    assert rules.RULES.keys() == CRASHING.keys()
    for name, (tensors, options) in CRASHING.items():
        assert rules.rule(tensors, options) == name
    assert not rules.rule((torch.zeros(1, 1, 8, 8),) * 3, {"dropout_p": 0.1})
    assert not rules.rule((torch.zeros(1, 1, 8, 0),) * 3, {})


def test_a_child_ends_when_its_time_is_over(
    benchmark_module: Benchmarks, attention_cpu: Path
) -> None:
    script = benchmark_module("export_random_calls")
    options = argparse.Namespace(package=attention_cpu, seed=0, processes=1, masks=False)
    child = script.Child(options, range(20_000), "package", time.monotonic() + 0.2)
    assert list(child.lines()) == []
    assert child.stopped
    tally = script.Tally()
    assert script.part_of(options, range(5, 9), tally, time.monotonic() + 0.2) == 5
    assert not tally.crashes


@pytest.mark.soak
def test_a_crash_is_a_finding_and_the_next_call_goes_on(tmp_path: Path) -> None:
    kernels = with_argument("int64", 0)
    kernels[0]["plan"]["arguments"][0] = {"type": "int64", "value": 0}  # q is null
    package = attention_package(tmp_path, tmp_path, "crashing", kernels=kernels)
    output = tmp_path / "found.json"
    words = [str(package), "--calls", "40", "-o", str(output)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    record = json.loads(output.read_text())
    assert {crash["ended"] for crash in record["crashes"]} == {"SIGSEGV"}
    assert record["calls"] + len(record["crashes"]) == 40


CRASHING_SDPA = """
import os, torch
from torch.nn import functional
real = torch._C._nn.scaled_dot_product_attention
made = [0]
def scaled_dot_product_attention(q, *others, **named):
    made[0] += 1
    if made[0] > CALLS:
        os.abort()
    return real(q, *others, **named)
torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention
functional.scaled_dot_product_attention = scaled_dot_product_attention
"""


@pytest.mark.soak
@pytest.mark.parametrize("calls", [0, 5])
def test_a_crash_of_sdpa_is_its_own_on_any_path(
    attention_cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CRASHING_SDPA.replace("CALLS", str(calls)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = [str(attention_cpu), "--calls", "4", "-o", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, check=False)
    record = json.loads((tmp_path / "found.json").read_text())
    assert (record["crashes"], record["findings"], done.returncode) == ([], [], 0)
    assert {crash["ended"] for crash in record["own_crashes"]} == {"SIGABRT"}
    by = {crash["by"] for crash in record["own_crashes"]}
    assert by == {"SDPA"} if calls == 0 else "SDPA in the place of hook" in by, by
    assert all("shapes" in crash["words"] for crash in record["own_crashes"])
    assert sum(record["verdicts"]["kernels"].values()) == len(record["own_crashes"])


@pytest.mark.soak
@pytest.mark.parametrize("masks", [False, True])
def test_20_000_calls_are_right(
    attention_cpu: Path, masks_cpu: Path, tmp_path: Path, masks: bool
) -> None:
    output = tmp_path / "found.json"
    words = [str(masks_cpu if masks else attention_cpu), "--seed", "1", "-o", str(output)]
    words += ["--masks"] if masks else []
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, check=False)
    assert done.returncode == 0, output.read_text()
    found = json.loads(output.read_text())
    assert found["calls"] == 20_000
    assert not masks or found["masked"]["served"] > 0.6 * found["masked"]["calls"]
