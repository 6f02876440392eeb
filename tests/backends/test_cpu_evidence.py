"""Evidence of a C++ kernel: its machine code, counters by a stand-in for perf, and ceilings."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from evotune.backends import registry
from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import CPU_CLASSES, Ceilings, EvidenceRequest
from evotune.backends.base.launch import Argument, CompileFailure, CompileJob, LaunchPlan
from evotune.backends.cpu import counted_run, cpu_ceiling_run, cpu_evidence, cpu_profile
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_evidence import NoDisassembly, NotCounted
from evotune.problems.problem import ELEMENT_BYTES, TensorSpec
from evotune.util.channel import encode
from tests.patience import PATIENCE_S

SOURCE = """\
extern "C" void scale(const float* x, float* out, int count) {
#pragma omp parallel for
  for (int i = 0; i < count; ++i) out[i] = x[i] * 3.0f + 1.0f;
}
"""
COUNT = 4096
TENSORS = (TensorSpec("x", (COUNT,), "float32"), TensorSpec("out", (COUNT,), "float32", True))
ARGUMENTS = (Argument("tensor", "x"), Argument("tensor", "out"), Argument("int32", value=COUNT))
PLAN = LaunchPlan("scale", ARGUMENTS, (), ())
CEILINGS = Ceilings(kind="measured", fma_flops=1e12, dram_bytes_per_s=1e10)
is_x86 = pytest.mark.skipif(cpu_profile.profile().arch[:6] != "x86_64", reason="needs x86-64")

DISASSEMBLY = """\
kernel.so:     file format elf64-x86-64

Disassembly of section .plt:

0000000000001020 <GOMP_parallel@plt>:
    1020:\tjmp    *0x2fe2(%rip)        # 4008 <GOMP_parallel>

Disassembly of section .text:

0000000000001100 <attend>:
    1100:\tlea    0x39(%rip),%rdi        # 1140 <attend+0x40>
    1107:\tcall   1020 <GOMP_parallel@plt>
    110c:\tret
    110d:\tnopl   (%rax)
    1140:\tvmovups (%rdi),%zmm1
    1146:\tvmovaps %zmm9,0x40(%rsp)
    114e:\txor    %eax,%eax
    1150:\tvfmadd231ps (%rsi,%rax,4){1to16},%zmm1,%zmm2
    1158:\tvmaxps %ymm2,%ymm3,%ymm3
    115c:\tvaddss %xmm4,%xmm5,%xmm5
    1160:\tvmovaps 0x40(%rsp),%zmm9
    1168:\tadd    $0x1,%rax
    116c:\tcmp    %rdx,%rax
    116f:\tjne    1150 <attend+0x50>
    1171:\tvmovups %zmm2,(%rcx)
    1177:\tret
"""


@pytest.mark.parametrize("beginning", ["", "    1140:\tendbr64\n"])
def test_all_functions_of_a_library_are_read(beginning: str) -> None:
    """Where a compiler guards indirect calls (`-fcf-protection`), functions begin with endbr64."""
    text = DISASSEMBLY.replace("    1140:", beginning + ("    1144:" if beginning else "    1140:"))
    found = cpu_evidence.read_view(text, "objdump 2.40")
    assert found.loop_instructions == {
        **{"fma": 1, "vector": 1, "scalar": 1, "load": 1, "other": 2, "branch": 1}
    }
    assert found.vector_bits == {"512": 1, "256": 1, "scalar": 1}
    assert found.instructions["store"] == 2
    assert set(found.instructions) <= set(CPU_CLASSES)
    assert (found.spill_load_bytes, found.spill_store_bytes) == (64, 64)
    assert found.source == "objdump 2.40"


def test_another_processors_code_is_refused() -> None:
    with pytest.raises(NoDisassembly, match="only for x86-64"):
        cpu_evidence.read_view("kernel.so:     file format elf64-littleaarch64\n", "objdump 2.40")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    (folder / "k.cpp").write_text(SOURCE)
    job = CompileJob("cpp", str(folder), "k.cpp", (), (), cpu_profile.profile().arch, "")
    assert not isinstance(CpuCompiler().compile(job, folder / "k.so", PATIENCE_S), CompileFailure)
    return folder / "k.so"


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, for a stand-in."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cpu_evidence, "cpuinfo", lambda field: "")
    cpu_evidence.perf_version.cache_clear()
    return tmp_path


ANSWERS = """\
with open(control) as told, open(acknowledge, "w") as answer:
    for word in ("enable", "disable"):
        assert told.readline().strip() == word
        print("ack", file=answer, flush=True)
"""
PERF = f"""#!{sys.executable}
import subprocess, sys
from pathlib import Path
words = sys.argv[1:]
if words == ["--version"]:
    print("perf version 6.1.187")
    sys.exit()
table = Path(words[words.index("-o") + 1])
control, acknowledge = words[words.index("--control") + 1].removeprefix("fifo:").split(",")
program = subprocess.Popen(words[words.index("--") + 1:])
{ANSWERS}
program.wait()
table.write_text(Path(__file__).with_name("counts").read_text())
"""


def stand_in(folder: Path, counts: str, perf: str = PERF) -> None:
    (folder / "counts").write_text(counts)
    (folder / "perf").write_text(perf)
    (folder / "perf").chmod(0o755)


def case(binary: Path, *more: TensorSpec) -> bytes:
    return encode(SanitizedCase(str(binary), PLAN, (*TENSORS, *more)))


def test_counters_are_those_of_one_call(
    binary: Path, perf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(perf, "1e9,,instructions:u,5,100.00,,\n1e5,,LLC-load-misses,5,100.00,,\n")
    found = cpu_evidence.counters("kernel", case(binary), CEILINGS)
    assert found.source == "perf 6.1"
    assert found.instructions is not None
    assert found.dram_bytes is not None
    calls = 1e9 / found.instructions
    assert calls == pytest.approx(round(calls))
    assert found.dram_bytes == pytest.approx(64 * 1e5 / calls)
    assert found.pipes == {"dram": pytest.approx(found.dram_bytes / found.time_us * 1e6 / 1e10)}
    assert found.l2_bytes is None


@pytest.mark.parametrize(
    ("table", "errors", "words"),
    [
        ("<not supported>,,instructions,0,100.00,,\n", "", "gives no hardware counters"),
        ("<not counted>,,instructions,0,0.00,,\n", "", "this user may not read counters"),
        (
            "",
            "Error:\nAccess to performance monitoring and observability operations is limited.\n"
            "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting\n",
            "fix: sysctl kernel.perf_event_paranoid=2",
        ),
        ("", "Events disabled\nthe baseline x does not run here\n", "perf: the baseline x does"),
        ("", "", "perf counted nothing"),
    ],
)
def test_a_refusing_perf_gives_a_reason(table: str, errors: str, words: str) -> None:
    assert "instructions" not in cpu_evidence.read_counts(table)
    assert words in cpu_evidence.reason(table, errors)


def test_a_program_that_fails_gives_its_own_reason(binary: Path, perf: Path) -> None:
    """Its events are `<not counted>` too, since it never asks perf to count."""
    stand_in(perf, "<not counted>,,instructions,0,0.00,,\n", perf=PERF.replace(ANSWERS, ""))
    lengths = TensorSpec("lengths", (3,), "int64", is_index=True)
    with pytest.raises(NotCounted, match=r"^perf: only the problem knows the values of lengths"):
        cpu_evidence.counters("kernel", case(binary, lengths), CEILINGS)


def test_without_perf_the_reason_says_how_to_get_it(perf: Path) -> None:
    with pytest.raises(NotCounted, match="perf was not found; fix: install"):
        cpu_evidence.counters("kernel", b"", CEILINGS)


def test_a_counted_kernel_computes_on_buffers_of_its_own(binary: Path) -> None:
    call = counted_run.kernel_call(SanitizedCase(str(binary), PLAN, TENSORS))
    words = []
    found = counted_run.count(call, words.append)
    assert words == ["enable", "disable"]
    assert found["calls"] >= 1
    buffers = call.keeps  # type: ignore[attr-defined]
    x, out = (buffers[name].view(np.float32) for name in ("x", "out"))
    assert buffers["x"].ctypes.data % 64 == 0
    assert x.std() == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(out, 3 * x + 1, atol=1e-6)


def test_a_counted_kernel_may_have_tensors_of_every_type(binary: Path) -> None:
    tensors = tuple(TensorSpec(dtype, (3, 5), dtype) for dtype in ELEMENT_BYTES)
    lengths = TensorSpec("lengths", (3,), "int64", is_index=True)
    told = {"lengths": np.array([7, 8, 9]).tobytes()}
    call = counted_run.kernel_call(
        SanitizedCase(str(binary), PLAN, (*TENSORS, *tensors, lengths), told)
    )
    buffers = call.keeps  # type: ignore[attr-defined]
    assert {dtype: buffers[dtype].nbytes / 15 for dtype in ELEMENT_BYTES} == ELEMENT_BYTES
    assert all(buffers[dtype].any() for dtype in ELEMENT_BYTES)
    assert buffers["int32"].view(np.int32).max() < 8
    assert buffers["lengths"].view(np.int64).tolist() == [7, 8, 9]


@is_x86
def test_evidence_of_a_kernel_joins_its_parts(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_counters(*_: object) -> None:
        raise NotCounted("not here")

    monkeypatch.setattr(cpu_evidence, "measured", lambda profile: CEILINGS)
    monkeypatch.setattr(cpu_evidence, "counters", no_counters)
    request = EvidenceRequest(
        profile=cpu_profile.profile(),
        dtype="float32",
        binary=str(binary),
        plan=PLAN,
        tensors=TENSORS,
    )
    found = registry.named("cpu").gather_evidence(request)
    (launch,) = found.launches
    assert (launch.kernel, launch.threads) == ("scale", cpu_profile.threads())
    assert launch.static is not None
    assert launch.static.loop_instructions["fma"] >= 1
    assert found.ceilings == CEILINGS
    assert found.unavailable["counters"] == "not here"

    away = dataclasses.replace(cpu_profile.profile(), name="Another CPU", peak_gflops=100.0)
    found = registry.named("cpu").gather_evidence(
        msgspec.structs.replace(request, profile=away, binary="missing.so")
    )
    assert (found.ceilings.kind, found.ceilings.fma_flops) == ("model", 1e11)
    assert found.unavailable["ceilings"] == "this machine has no Another CPU"
    assert "missing.so" in found.unavailable["static"]


def test_ceilings_of_this_machine_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(cpu_evidence, "_measure", lambda threads: CEILINGS)
    assert cpu_evidence.measured(cpu_profile.profile()) == CEILINGS
    monkeypatch.delattr(cpu_evidence, "_measure")
    assert cpu_evidence.measured(cpu_profile.profile()) == CEILINGS


@is_x86
def test_the_loops_are_made_of_what_they_measure(tmp_path: Path) -> None:
    built = CpuCompiler().compile(cpu_ceiling_run.job(), tmp_path / "ceilings.so", PATIENCE_S)
    assert not isinstance(built, CompileFailure), built
    found = cpu_evidence.static_view(str(tmp_path / "ceilings.so"))
    assert found.loop_instructions["fma"] == 12
    bits = str(8 * int(cpu_profile.profile().attributes["simd_bytes"]))
    assert found.vector_bits[bits] == 12 + 4


def test_a_rate_that_could_not_be_measured_is_left_out() -> None:
    def function(value: float) -> object:
        class Function:
            restype = None

            def __call__(self, *_: object) -> float:
                return value

        return Function()

    library = SimpleNamespace(
        fma_rate=function(1e12),
        read_rate=function(2e11),
        copy_rate=function(0.0),
        region_seconds=function(1e-6),
    )
    found = cpu_ceiling_run.measure(library)
    assert json.loads(json.dumps(found)) == {
        "fma_flops": 1e12,
        "l2_bytes_per_s": 2e11,
        "launch_us": 1.0,
    }
