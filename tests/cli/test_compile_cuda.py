"""`compile`, `check` and `run` of CUDA spaces on a machine without a GPU, end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

from .conftest import ROOT, start

SPACE = ROOT / "tests" / "data" / "cuda" / "cuda.yaml"


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """The space without the faults that keep a kernel from compiling."""
    text = SPACE.read_text().replace(
        "choices: [none, compile_error, endless, spills, static_shared]",
        "choices: [none, spills, static_shared]",
    )
    path = tmp_path / "sound.yaml"
    path.write_text(text.replace("problem:\n", f"root: {SPACE.parent}\nproblem:\n", 1))
    return path


def evotune(*arguments: object, cwd: Path) -> tuple[int, str, str]:
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_every_configuration_compiles_for_a_gpu_that_is_not_here(
    sound: Path, tmp_path: Path
) -> None:
    """24 of 54 are valid: THREADS 2048 and SHARED_KIB 200 cannot be launched on an L4."""
    code, out, err = evotune("compile", sound, "--device", "l4", "--all", cwd=tmp_path)
    assert code == 0, err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "outcome regs spill B shared B occ. s configuration"
    assert "24 of 24 compile" in lines[-3]
    assert "30 rejected before compiling" in lines[-2]
    assert "compiled for NVIDIA L4 in " in lines[-2]
    assert re.fullmatch(r"the default: \d+ registers, no spills, \d+% occupancy", lines[-1])
    assert any(
        line.startswith("resource_limit 64 ") and "after_compile: spill_bytes == 0" in line
        for line in lines
    )
    assert any("105536 bytes of shared memory (40000 of them static)" in line for line in lines)


def test_a_sample_has_the_default(sound: Path, tmp_path: Path) -> None:
    code, out, err = evotune("compile", sound, "--device", "L4", "--sample", 1, cwd=tmp_path)
    assert code == 0, err
    assert "1 of 1 compile" in out
    assert "the default: " in out


@pytest.mark.soak
def test_a_space_compiles_where_its_default_is_not_valid(sound: Path, tmp_path: Path) -> None:
    more = "constraints: [THREADS <= device.threads_per_block]\n"
    more += "default: {FAULT: none, SPLIT: 1, THREADS: 2048, SHARED_KIB: 0}\n"
    sound.write_text(sound.read_text() + more)
    code, out, err = evotune("compile", sound, "--device", "l4", "--sample", 3, cwd=tmp_path)
    assert code == 0, err
    assert "the default is not valid: THREADS <= device.threads_per_block" in out


@pytest.mark.soak
def test_all_figures_are_in_jsonl(sound: Path, tmp_path: Path) -> None:
    code, _, err = evotune(
        "compile", sound, "--device", "h200", "--all", "--format", "jsonl", "-o", "all.jsonl",
        cwd=tmp_path,
    )  # fmt: skip
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(rows) == 54
    plain = next(
        row
        for row in rows
        if list(row["configuration"].values()) == ["none", 2, 128, 64] and row["ok"]
    )
    figures = plain["resources"]
    assert figures["shared_bytes_total"] == 65_536
    assert figures["spill_bytes"] == 0
    assert figures["registers"] > 0
    assert figures["blocks_resident"] == 2  # merge_parts, with 1024 threads; the main kernel has 3
    assert figures["occupancy"] == pytest.approx(3 * 4 / 64)
    limited = [row for row in rows if row["outcome"] == "resource_limit"]
    assert limited
    assert all(row["compiled"] and not row["ok"] for row in limited)
    assert "36 of 36 compile" in err
    assert "18 rejected before compiling" in err


@pytest.mark.soak
def test_a_kernel_that_does_not_compile_ends_with_1(tmp_path: Path) -> None:
    text = SPACE.read_text().replace("none, compile_error, endless,", "none, compile_error,")
    text = text.replace("[0, 64, 200]", "[0]")
    space = tmp_path / "broken.yaml"
    space.write_text(text.replace("problem:\n", f"root: {SPACE.parent}\nproblem:\n", 1))
    code, out, _ = evotune("compile", space, "--device", "a100", "--all", cwd=tmp_path)
    assert code == 1
    assert "compile_error" in out
    assert "kernels/faulty.cu(5): catastrophic error: #error directive" in out
    assert str(SPACE.parent) not in out


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("run", SPACE, "--device", "l4"),
            "--device l4: this machine has no NVIDIA L4 (found: none",
        ),
        (("run", "--device", "h200"), "--device h200: this machine has no NVIDIA H200"),
        (("run", SPACE), "CUDA kernels need a GPU and no NVIDIA GPU is visible"),
        (("run", SPACE, "--device", "cuda:0"), "--device cuda:0: no NVIDIA GPU is visible"),
        (("compile", SPACE), "fix: name one, --device l4|a100|h100|h200"),
        (("check", SPACE), "fix: name one, --device l4|a100|h100|h200"),
    ],
)
def test_without_a_gpu_one_line_and_exit_3(
    tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    code, out, err = evotune(*arguments, cwd=tmp_path)
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "runs").exists()


def test_without_cupy_compiling_ends_with_3_and_the_fix(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package `cupy` that cannot be imported comes before the real one on the path."""
    (tmp_path / "hidden" / "cupy").mkdir(parents=True)
    (tmp_path / "hidden" / "cupy" / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named cupy', name='cupy')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    code, out, err = evotune("compile", sound, "--device", "l4", cwd=tmp_path)
    assert (code, out) == (3, "")
    said = err.splitlines()[-1]  # on a busy machine lines about its progress come before
    assert said.startswith("error: cannot compile CUDA kernels: CuPy is not installed; fix: pip")


def test_check_validates_for_a_named_gpu(sound: Path, tmp_path: Path) -> None:
    code, out, err = evotune("check", sound, "--device", "l4", cwd=tmp_path)
    assert code == 0, err
    assert "NVIDIA L4" in out
    assert "spill_bytes == 0 or THREADS > 128 (spilled registers go through memory)" in out
    assert "sm_80 or later" in out
