"""Counters are read from ncu's table; a stand-in prints what ncu prints, so no GPU is needed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.backends.cuda import nsight
from evotune.backends.cuda.nsight import FORBIDDEN, NoCounters, profile, read_launches

# One launch of attention-mma's champion on an H200, as `ncu --csv --page raw` names and shows it.
FIGURES = {
    "gpu__time_duration.avg": ("ns", "6,208"),
    "launch__registers_per_thread": ("register/thread", "220"),
    "launch__shared_mem_per_block_static": ("byte/block", "0"),
    "launch__shared_mem_per_block_dynamic": ("Kbyte/block", "200.704"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "6.04"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "20.36"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": ("%", "13.2"),
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": ("%", "7.36"),
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active": ("%", "11.37"),
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": ("%", "14.63"),
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active": ("%", "14.63"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": ("%", "23.54"),
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed": ("%", "14.88"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "11.64"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "5.44"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "1.15"),
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": ("inst", "0.63"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1"),
    "smsp__inst_executed.sum": ("inst", "1,234,567"),
    "dram__bytes.sum": ("Mbyte", "1.5"),
    "lts__t_bytes.sum": ("byte", "4,000,000"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("", "400"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "1,000"),
    "memory_l1_wavefronts_shared": ("", "n/a"),
}
FIRST = {"ID": "0", "Kernel Name": "attend", "Block Size": "(128, 1, 1)", "Grid Size": "(16, 8, 1)"}


def table(*launches: Mapping[str, str]) -> str:
    """ncu's output for launches with FIGURES and these changes."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    names = [*FIRST, *FIGURES]
    writer.writerow(names)
    writer.writerow(["" for _ in FIRST] + [unit for unit, _ in FIGURES.values()])
    for changes in launches:
        row = {**FIRST, **{name: value for name, (_, value) in FIGURES.items()}, **changes}
        writer.writerow([row[name] for name in names])
    head = "==PROF== Connected to process 41 (/usr/bin/python3)\nlaunched\n==PROF== Disconnected\n"
    return head + text.getvalue()


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH; `stand_in` puts an ncu there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nsight, "_INSTALLED", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nsight.ncu_version.cache_clear()
    return tmp_path


def stand_in(folder: Path, output: str, *, status: int = 0, unless: str = "") -> Path:
    """An ncu that notes its arguments and prints `output`; with `unless` among its arguments it
    fails instead."""
    (folder / "output").write_text(output)
    path = folder / "ncu"
    path.write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/arguments
case "$*" in
  *--version*) echo "Version 2025.3.1.0 (build 36398880)"; exit 0;;
  *{unless or "no-such-argument"}*) echo "==ERROR== Failed to find metric x"; exit 1;;
esac
while read -r line; do echo "$line"; done < {folder}/output
exit {status}
"""
    )
    path.chmod(0o755)
    return path


def test_counters_of_a_launch(ncu: Path) -> None:
    stand_in(ncu, table({}))
    (found,) = profile("evotune.backends.cuda.profiled_launch", "JOB", os.environ)
    assert (found.kernel, found.grid, found.block, found.registers) == ("attend", 128, 128, 220)
    assert (found.static_shared_bytes, found.dynamic_shared_bytes) == (0, 200_704)
    counters = found.counters
    assert counters.source == "ncu 2025.3"
    assert counters.time_us == pytest.approx(6.208)
    assert counters.pipes == pytest.approx(
        {
            **{"tensor": 0.2036, "fma": 0.0736, "alu": 0.1137, "mufu": 0.1463, "lsu": 0.1463},
            **{"issue": 0.2354, "l2": 0.1164, "dram": 0.0544},
        }
    )
    assert counters.stalls == {"wait": 1.15, "short_scoreboard": 0.63}
    assert (counters.instructions, counters.dram_bytes) == (1_234_567, 1_500_000)
    assert (counters.shared_wavefronts, counters.shared_conflicts) == (1000, 400)
    assert counters.warps_active == pytest.approx(0.0604)
    assert counters.multiprocessors_busy == pytest.approx(0.632, abs=1e-3)
    arguments = (ncu / "arguments").read_text()
    assert "--clock-control none --cache-control none" in arguments
    assert arguments.rstrip().endswith("-m evotune.backends.cuda.profiled_launch JOB")


def test_conflicts_are_those_beyond_the_ideal_where_ncu_tells(ncu: Path) -> None:
    ideal = {"memory_l1_wavefronts_shared": "900"}
    assert "memory_l1_wavefronts_shared_ideal" not in FIGURES
    (found,) = read_launches(table(ideal), "ncu")
    assert (found.counters.shared_wavefronts, found.counters.shared_conflicts) == (900, 400)
    text = table(ideal).replace("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", nsight._IDEAL)
    (found,) = read_launches(text, "ncu")
    assert found.counters.shared_conflicts == 500


def test_a_share_over_the_whole_time_is_turned_into_one_over_the_time_with_work() -> None:
    """ncu tells shared memory's over the whole time; a multiprocessor has work for 63% of it."""
    name = "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
    known = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
    (found,) = read_launches(table({known: "20"}).replace(known, name), "ncu")
    assert found.counters.pipes["shared"] == pytest.approx(0.2 / (14.88 / 23.54))
    assert found.counters.pipes["l2"] == pytest.approx(0.1164)


def test_launches_keep_their_order(ncu: Path) -> None:
    found = read_launches(table({}, {"Kernel Name": "merge", "Grid Size": "(64, 1, 1)"}), "ncu")
    assert [(each.kernel, each.grid) for each in found] == [("attend", 128), ("merge", 64)]


@pytest.mark.parametrize("line", ['"a" and "b"', '"a", she said, "b"', '"ID"', f'"x"{",1" * 60}'])
def test_lines_of_the_program_that_begin_with_a_quote_are_no_part_of_the_table(line: str) -> None:
    rows = table({}, {"Kernel Name": "merge"}).splitlines()
    for place in (1, -2, -1):
        text = "\n".join([*rows[:place], line, *rows[place:]])
        found = read_launches(text, "ncu")
        assert [(each.kernel, each.registers) for each in found] == [
            ("attend", 220),
            ("merge", 220),
        ]
    assert read_launches(line, "ncu") == []


def test_an_ncu_that_lacks_a_metric_is_asked_for_the_others(ncu: Path) -> None:
    stand_in(ncu, table({}), unless="--metrics")
    assert len(profile("module", "JOB", os.environ)) == 1


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0.\n",
            FORBIDDEN,
        ),
        (
            "==PROF== Connected to process 7\n==ERROR== Profiling is not supported on device 0. "
            "It is newer than this version.\n",
            "ncu: Profiling is not supported on device 0. It is newer than this version.",
        ),
        (
            "==PROF== Connected to process 7\nTraceback (most recent call last):\n  File x\n"
            "RuntimeError: no kernel\nthe baseline flash does not run here\n"
            "==PROF== Disconnected\n==ERROR== The application returned an error code (1).\n",
            "ncu: The application returned an error code (1). The program said: RuntimeError: no "
            "kernel; the baseline flash does not run here",
        ),
        (
            "cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_INVALID_VALUE\n",
            "ncu saw no launch: cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_INVALID",
        ),
        ("", "ncu saw no launch: it ended with status 9"),
    ],
)
def test_a_failing_ncu_gives_a_reason(ncu: Path, output: str, words: str) -> None:
    stand_in(ncu, output, status=9)
    with pytest.raises(NoCounters) as error:
        profile("module", "JOB", os.environ)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


def test_another_program_of_that_name_is_passed_over(ncu: Path) -> None:
    """npm-check-updates is called ncu, too."""
    other = ncu / "ncu"
    other.write_text("#!/bin/sh\n[ $1 = --version ] && echo 16.14.0 || echo no option --csv >&2\n")
    other.chmod(0o755)
    with pytest.raises(NoCounters, match="was not found; fix: install it"):
        profile("module", "JOB", os.environ)
    (ncu / "bin").mkdir()
    stand_in(ncu / "bin", table({}))
    assert len(profile("module", "JOB", os.environ)) == 1


def test_without_ncu_the_reason_says_how_to_get_it(ncu: Path) -> None:
    with pytest.raises(NoCounters, match="was not found; fix: install it"):
        profile("module", "JOB", os.environ)
    (ncu / "ncu").write_text("no program")
    (ncu / "ncu").chmod(0o755)
    with pytest.raises(NoCounters, match="does not start: Exec format error"):
        profile("module", "JOB", os.environ)
    (ncu / "ncu").write_text("#!/bin/sh\necho 'libQt6Core.so.6 is missing' >&2\nexit 127\n")
    with pytest.raises(NoCounters, match=r"ncu failed: libQt6Core\.so\.6 is missing"):
        profile("module", "JOB", os.environ)
