"""Another project's tests of attention, run against a package: see
benchmarks/lab/export_flash_tests.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import shipped_spaces
from evotune.space.reading.case_file import read_cases
from evotune.workers.executor import TIMED
from tests.export.making import ROOT
from tests.export.runtime.packages import imported

SCRIPT = ROOT / "benchmarks" / "lab" / "export_flash_tests.py"
TESTS = """
import pytest
import torch
from flash_attn import (
    flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
)
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.flash_attn_interface import USE_TRITON_ROCM, _get_block_size_n, flash_attn_gpu
from flash_attn.layers.rotary import apply_rotary_emb


def reference(q, k, v, causal):
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(
            1 + k.shape[1] - q.shape[1]
        )
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("d", [32, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("kvpacked", [False, True])
@pytest.mark.parametrize("seqlen_q,seqlen_k", [(1, 40), (33, 33), (40, 64)])
def test_output(seqlen_q, seqlen_k, kvpacked, local, causal, d, dtype):
    q = torch.randn(2, seqlen_q, 4, d, dtype=dtype, requires_grad=True)
    kv = torch.randn(2, seqlen_k, 2, 4, d, dtype=dtype, requires_grad=True)
    named = {"causal": causal, "window_size": (5, 5) if local else (-1, -1)}
    named |= {"softcap": 0.0, "alibi_slopes": None, "deterministic": False}
    if kvpacked:
        out, lse, mask = flash_attn_kvpacked_func(q, kv, 0.0, return_attn_probs=True, **named)
    else:
        out = flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], 0.0, **named)
    wanted = reference(q, kv[:, :, 0], kv[:, :, 1], causal)
    gradient = torch.randn_like(out)
    ours, theirs = (torch.autograd.grad(each, (q, kv), gradient) for each in (out, wanted))
    for found, known in zip((out, *ours), (wanted, *theirs)):
        assert (found - known).abs().max() < 1e-5


def test_packed():
    qkv = torch.randn(2, 16, 3, 4, 32, device="cuda")
    out = flash_attn_qkvpacked_func(qkv, 0.0, causal=True)
    assert (out - reference(*qkv.unbind(2), True)).abs().max() < 1e-5


def test_of_something_else():
    flash_attn_varlen_func(pad_input)


@pytest.mark.skipif(USE_TRITON_ROCM, reason="never")
def test_of_compiled_code():
    flash_attn_gpu.fwd(1)


def test_dropout():
    flash_attn_qkvpacked_func(torch.randn(2, 16, 3, 4, 32), 0.17)


def test_that_fails():
    assert False
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder laid out like FlashAttention's repository."""
    for folder in ("flash_attn", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("import a_compiled_module")
    return tmp_path


@pytest.mark.soak
def test_the_claimed_tests_run_on_kernels_and_the_others_are_counted(
    attention_cpu: Path, checkout: Path
) -> None:
    (checkout / "tests" / "test_flash_attn.py").write_text(TESTS)
    words = [str(attention_cpu), "--flash-attention", str(checkout)]
    command = [sys.executable, str(SCRIPT), *words, "-o", str(checkout / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    record = json.loads((checkout / "found.json").read_text())
    # Of (1, 40) and (33, 33) all masks, of (40, 64) the full one; packed or not.
    assert (record["passed"], record["failed"]) == (5 * 2 + 1, 1)
    assert record["kernel_calls"] == {"views": 11}
    assert record["skipped"] == {
        "another dtype": 48,
        "another head_dim": 24,
        "window": 12,
        "causal mask at the last key": 2,
        "flash_attn_varlen_func": 1,
        "flash_attn_gpu": 1,
        "dropout": 1,
    }


def test_tokens_are_packed_and_put_back(benchmark_module: Callable[[str], ModuleType]) -> None:
    padding = benchmark_module("flash_padding")
    hidden = torch.arange(1.0, 13.0).view(2, 3, 2)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    tokens, places, begins, longest, lengths = padding.unpad_input(hidden, mask)
    assert tokens.tolist() == [[1, 2], [5, 6], [9, 10]]
    assert (places.tolist(), begins.tolist(), longest) == ([0, 2, 4], [0, 2, 3], 2)
    assert begins.dtype == lengths.dtype == torch.int32
    back = padding.pad_input(tokens, places, 2, 3)
    assert torch.equal(back, hidden * mask[..., None])
    *_, begins, longest, lengths = padding.unpad_input(hidden, mask, ~mask)
    assert (begins.tolist(), longest, lengths.tolist()) == ([0, 3, 6], 3, [2, 1])


def test_an_unserved_case_of_the_domain_fails(
    benchmark_module: Callable[[str], ModuleType],
    attention_cpu: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in = benchmark_module("flash_stand_in").StandIn
    with imported(attention_cpu) as module:
        functions = stand_in(module, anywhere=True)
        q = torch.randn(2, 16, 4, 32)
        functions.flash_attn_func(q, q, q)
        assert functions.served == {"views": 1}
        monkeypatch.setattr(
            module, "attention", lambda q, k, v, **_: torch.nn.functional.softmax(q, -1)
        )
        with pytest.raises(pytest.fail.Exception, match="no kernel served a case of the domain"):
            functions.flash_attn_func(q, q, q)
        with pytest.raises(pytest.skip.Exception, match="outside the domain"):
            functions.flash_attn_func(*[torch.randn(2, 16, 4, 40)] * 3)


def test_a_folder_without_the_tests_is_told_in_a_line(
    benchmark_module: Callable[[str], ModuleType],
    attention_cpu: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [SCRIPT.name, str(attention_cpu), "--flash-attention", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"test_flash_attn\.py is missing: [^\n]*$"):
        benchmark_module("export_flash_tests").main()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "count"), [(16, 16, 8), (6, 1, 8), (6, 2, 8), (6, 6, 4)]
)
def test_a_search_takes_the_cases_of_the_tests(heads: int, kv_heads: int, count: int) -> None:
    cases = read_cases(ROOT / "benchmarks" / "cases" / f"flash_tests_{heads}_{kv_heads}.yaml")
    space = shipped_spaces()["attention-mma"]
    setup = load_kernel_setup(space, "h100", compile_only=True, cases=cases)
    timed = setup.cases[TIMED]
    assert len(cases) == len(timed) == count
    assert setup.skipped == ()
    assert {case.symbols["head_dim"] for case in timed} == {32, 64, 96, 128}
    assert {(case.symbols["heads"], case.symbols["kv_heads"]) for case in timed} == {
        (heads, kv_heads)
    }
