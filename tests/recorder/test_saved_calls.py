"""Recordings as files of cases and as tables, and the spaces that they name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml

import evotune
from evotune.errors import SpaceError, UsageError
from evotune.recorder.calls import Calls
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import shipped_spaces
from evotune.space.reading.case_file import read_cases
from evotune.workers.executor import TIMED

_SPACE = shipped_spaces()["attention-cpu"]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def calls() -> Calls:
    """Three plain calls, two with padding, one with dropout, one in float64."""
    plain, wide = torch.randn(2, 4, 9, 64), torch.randn(2, 4, 9, 64).double()
    views = torch.randn(2, 9, 4, 64).transpose(1, 2)
    with evotune.recording(device="cpu") as found:
        for _ in range(3):
            F.scaled_dot_product_attention(views, views, views, is_causal=True)
        for _ in range(2):
            mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
            F.scaled_dot_product_attention(plain, plain, plain, attn_mask=mask)
        F.scaled_dot_product_attention(plain, plain, plain, dropout_p=0.5)
        F.scaled_dot_product_attention(wide, wide, wide)
    return found


@pytest.mark.parametrize("name", ["cases.yaml", "cases.json"])
def test_a_file_has_all_that_was_told_and_is_read_again(
    calls: Calls, name: str, tmp_path: Path
) -> None:
    calls.save(tmp_path / name)
    again = Calls.load(tmp_path / name, device="cpu")
    facts = [
        (c.count, c.entry.problem, c.entry.dtype, c.entry.shape, c.entry.variant, c.entry.call)
        for c in calls
    ]
    assert facts == [
        (c.count, c.entry.problem, c.entry.dtype, c.entry.shape, c.entry.variant, c.entry.call)
        for c in again
    ]
    assert len(facts) == 4
    assert str(again) == str(calls)
    assert again.text() == calls.text()


def test_the_file_in_yaml(calls: Calls, tmp_path: Path) -> None:
    calls.save(tmp_path / "cases.yaml")
    first, second, *_ = yaml.safe_load((tmp_path / "cases.yaml").read_text())
    sizes = {"batch": 2, "heads": 4, "kv_heads": 4, "seq_len_q": 9, "seq_len_k": 9, "head_dim": 64}
    told = {"function": "F.scaled_dot_product_attention", "device": "cpu"}
    assert first == {
        **{"problem": "attention", "count": 3, "dtype": "float32", "shape": sizes},
        **{"variant": {"causal": True, "layout": "blhd"}, "call": told},
    }
    mask = {"mask": "padding", "mask_batch": 2, "mask_heads": 1, "mask_rows": 1}
    assert second["variant"] == {"causal": False, **mask}


def test_cases_that_the_space_can_compute_are_tuned_for(calls: Calls, tmp_path: Path) -> None:
    calls.save(tmp_path / "cases.yaml")
    cases = read_cases(tmp_path / "cases.yaml")
    setup = load_kernel_setup(_SPACE, "cpu", compile_only=True, cases=cases)
    assert [case.label for case in setup.cases[TIMED]] == ["(2,4,9,64,blhd) causal"]
    whys = {each.why: each.count for each in setup.skipped}
    assert whys == {
        "kernel cpu does not compute mask (use attention-masks-cpu)": 2,
        "dropout 0.5: kernels have none (use model.eval())": 1,
        "dtype float64, where the space has float32": 1,
    }


def test_a_call_of_another_problem_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    shape = "{sequences: 2, heads: 4, tokens_q: 9}"
    path.write_text(f"- {{problem: attention_varlen, shape: {shape}}}\n")
    with pytest.raises(UsageError, match="a call of attention_varlen, where the space has atten"):
        load_kernel_setup(_SPACE, "cpu", compile_only=True, cases=read_cases(path))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{shape: {batch: 1}, problem: 3}", "expected a problem, found 3"),
        ("{shape: {batch: 1}, call: [1]}", "expected a mapping, found a list of 1"),
        ("{shape: {batch: 1}, calls: {}}", "unknown key 'calls' next to a shape"),
    ],
)
def test_a_mistake_in_a_recording_is_named(entry: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(f"- {entry}\n")
    with pytest.raises(SpaceError, match=rf"cases\.yaml:1:\d+: {words}"):
        Calls.load(tmp_path / "cases.yaml")


def test_the_table_tells_cases_masks_counts_and_spaces(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = str(calls).splitlines()
    assert lines[0].split() == ["case", "mask", "dtype", "count", "spaces,", "or", "why", "none"]
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in lines[2:]}
    causal = rows["(2,4,9,64,blhd) causal"]
    assert " float32 3 attention-cpu" in causal
    padded = next(line for line in lines if "padding 2x1x1x9" in line)
    assert " ".join(padded.split()).startswith(
        "(2,4,9,64) full padding 2x1x1x9 float32 2 attention-masks-cpu"
    )
    whole = " ".join(str(calls).split())
    assert "found dtype = float64" in whole
    assert lines[-1] == "7 calls of 4 cases"
    assert repr(calls) == "<7 calls of 4 cases>"


def test_rich_prints_the_table(calls: Calls) -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(calls)
    assert "attention-cpu" in console.export_text()


def test_spaces_are_named_for_a_device_that_is_not_here(calls: Calls) -> None:
    causal, *_ = calls
    assert "attention-cpu" in causal.spaces("cpu")
    assert not causal.spaces("h200")
    assert "dtype = float32" in causal.why_none("h200")
    x = torch.randn(1, 2, 9, 64, dtype=torch.bfloat16)
    (half,) = evotune.record(lambda: F.scaled_dot_product_attention(x, x, x))
    assert {"attention-wgmma", "attention-mma"} <= set(half.spaces("h200"))
    assert "attention-wgmma" not in half.spaces("l4")
    odd = torch.randn(1, 2, 9, 48, dtype=torch.bfloat16)
    (found,) = evotune.record(lambda: F.scaled_dot_product_attention(odd, odd, odd))
    assert "head_dim = 48" in found.why_none("l4")


def test_a_file_that_cannot_be_written_is_a_usage_error(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        calls.save(tmp_path / "missing" / "cases.yaml")


def test_a_share_is_kept(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 64, 64)
    calls = evotune.record(lambda: F.scaled_dot_product_attention(x, x, x), time=True)
    calls.save(tmp_path / "cases.json")
    (entry,) = json.loads((tmp_path / "cases.json").read_text())
    assert 0 < entry["call"]["share"] < 1
    (again,) = Calls.load(tmp_path / "cases.json")
    assert again.share == entry["call"]["share"]


def test_evotune_imports_no_torch_before_it_is_used() -> None:
    import subprocess
    import sys

    code = "import sys, evotune; evotune.record, evotune.Calls; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
