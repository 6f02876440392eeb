"""Delays and late copies in PTX: their places, their effect, and that the PTX assembles."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda import perturbed_build
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.cuda_session import perturbation_job
from evotune.backends.cuda.perturbed_build import with_delays
from evotune.backends.cuda.ptx_late_copies import UnknownCopy, with_late_copies
from evotune.util.channel import encode
from tests.patience import PATIENCE_S

from .one_thread import Thread

KERNEL = r"""
__device__ void copy(unsigned to, const float* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
               ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
extern "C" __global__ void through(float* out, const float* in, int count) {
  __shared__ float4 tile[2][64];
  const unsigned at = (unsigned)__cvta_generic_to_shared(&tile[0][threadIdx.x]);
  copy(at, in + 4 * threadIdx.x, 16);
  asm volatile("cp.async.commit_group;\n" ::: "memory");
  for (int i = 0; i < count; ++i) {
    const int next = i + 1;
    if (next < count)
      copy(at + 1024 * (next % 2), in + 256 * next + 4 * threadIdx.x, threadIdx.x < 60 ? 16 : 0);
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;\n" ::: "memory");
    __syncthreads();
    out[threadIdx.x] += tile[i % 2][63 - threadIdx.x].y;
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p bar.sync 1, 64;\n}\n"
                 ::"r"(count) : "memory");
  }
}
"""


def ptx_of(folder: Path, arch: str, source: str = KERNEL) -> str:
    (folder / "k.cu").write_text(source)
    made = NvrtcCompiler().ptx(CompileJob("cuda", str(folder), "k.cu", (), (), arch, ""))
    assert isinstance(made, str), made
    return made


def assemble(folder: Path, ptx: str, arch: str) -> None:
    found = importlib.util.find_spec("nvidia")
    roots = [Path(path) for path in (found.submodule_search_locations or ())] if found else []
    tools = [p for root in roots if (p := root / "cuda_nvcc" / "bin" / "ptxas").is_file()]
    if not tools:
        pytest.skip("ptxas is not installed")
    (folder / "k.ptx").write_text(ptx)
    command = [str(tools[0]), f"-arch={arch}", "k.ptx", "-o", "k.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_what_disturbs_compiles_and_ends_by_itself(tmp_path: Path, arch: str) -> None:
    made = NvrtcCompiler().compile(perturbation_job(arch), tmp_path / "p.cubin", PATIENCE_S)
    assert not isinstance(made, CompileFailure), made.log
    assert set(made["entries"]) == {
        *("evotune_take_bandwidth", "evotune_take_issue_slots"),
        *("evotune_take_room", "evotune_dirty"),
    }
    assert made["entries"]["evotune_dirty"]["registers"] > 200
    assert made["spill_store_bytes"] == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rewritten_ptx_assembles(tmp_path: Path, arch: str) -> None:
    ptx = ptx_of(tmp_path, arch)
    delayed, places = with_delays(ptx)
    assert places >= 3  # a wait, a barrier, and one under a predicate
    assemble(tmp_path, delayed, arch)
    late, copies = with_late_copies(ptx)
    assert copies >= 2
    assemble(tmp_path, late, arch)


def test_a_delay_stands_before_and_after_each_place_and_nothing_else_changes() -> None:
    ptx = "add.u32 %r1, %r1, 1;\n\t@!%p2 bar.sync \t0;\n\tmbarrier.init.shared.b64 [%r2], 1;\n"
    made, places = with_delays(ptx)
    assert places == 1
    before, _, after = made.partition("@!%p2 bar.sync \t0;")
    assert before.count("nanosleep") == after.count("nanosleep") == 1
    rest = "".join(part.split("}")[-1] for part in made.split("{"))
    assert with_delays("ret;\n") == ("ret;\n", 0)
    assert "mbarrier.init.shared.b64 [%r2], 1;" in rest


COPY = "cp.async.cg.shared.global [{to}], [{source}], 16;\n"
CLOSE = "cp.async.commit_group;\n"


def seen(body: str, source: bytes) -> tuple[list[bytes], int]:
    """The contents of shared memory at each `look`, and the number of copies left unchanged."""
    ptx, _ = with_late_copies(f".visible .entry k(\n)\n{{\n{body}}}\n")
    thread = Thread(ptx, bytearray(16 * 128), source)
    thread.run()
    return thread.seen, thread.left_as_they_were


def test_a_copy_lands_when_it_is_waited_for_and_not_before() -> None:
    source = bytes(range(1, 49))
    body = "mov.u64 %rd1, 0;\nmov.u32 %r1, 0;\n"
    for i in range(3):
        body += COPY.format(to=f"%r1+{16 * i}", source=f"%rd1+{16 * i}") + CLOSE
    body += "look;\ncp.async.wait_group 2;\nlook;\ncp.async.wait_group 1;\nlook;\n"
    body += "cp.async.wait_group 0;\nlook;\n"
    looks, left = seen(body, source)
    assert [look[:48].rstrip(b"\0") for look in looks] == [source[: 16 * i] for i in range(4)]
    assert left == 0


def test_what_is_not_in_a_closed_group_is_waited_for_by_wait_all_only() -> None:
    source = bytes(range(1, 17))
    body = "mov.u64 %rd1, 0;\nmov.u32 %r1, 32;\n" + COPY.format(to="%r1", source="%rd1")
    body += "cp.async.wait_group 0;\nlook;\ncp.async.wait_all;\nlook;\n"
    (before, after), _ = seen(body, source)
    assert not any(before)
    assert after[32:48] == source


def test_zeros_stand_behind_a_source_that_is_too_short() -> None:
    body = "mov.u64 %rd1, 0;\nmov.u32 %r1, 0;\nmov.u32 %r2, 5;\n"
    body += "cp.async.ca.shared.global.L2::128B [%r1], [%rd1], 8, %r2;\n"
    body += "cp.async.wait_all;\nlook;\n"
    (look,), _ = seen(body, bytes([7] * 16))
    assert look[:9] == bytes([7] * 5 + [0] * 4)


def test_more_copies_than_a_queue_holds_are_left_as_they_were() -> None:
    body = "mov.u64 %rd1, 0;\nmov.u32 %r1, 0;\n"
    body += COPY.format(to="%r1", source="%rd1") * 70
    body += CLOSE + "cp.async.wait_group 0;\nlook;\n"
    _, left = seen(body, bytes(16))
    assert left == 70 - 64


def test_a_predicate_holds_for_the_late_copy_too() -> None:
    body = "mov.u64 %rd1, 0;\nmov.u32 %r1, 0;\nmov.u32 %p1, 0;\n"
    body += "@%p1 " + COPY.format(to="%r1", source="%rd1") + "@!%p1 "
    body += COPY.format(to="%r1+16", source="%rd1") + "cp.async.wait_all;\nlook;\n"
    (look,), _ = seen(body, bytes([9] * 16))
    assert (look[:16], look[16:32]) == (bytes(16), bytes([9] * 16))


def test_a_kernel_whose_function_waits_for_its_copies_is_not_rewritten(tmp_path: Path) -> None:
    """The queue of copies is known to the kernel alone."""
    waits = '__device__ __noinline__ void wait() { asm volatile("WAIT;" ::: "memory"); }\n'
    for wait in ("cp.async.wait_group 1", "cp.async.wait_all", "cp.async.commit_group"):
        source = waits.replace("WAIT", wait) + KERNEL.replace("__syncthreads();", "wait();")
        ptx = ptx_of(tmp_path, "sm_80", source)
        assert ".func" in ptx
        with pytest.raises(UnknownCopy, match="a function that is called, not inlined, copies or"):
            with_late_copies(ptx)


def test_a_copy_in_an_unknown_form_is_not_rewritten() -> None:
    body = "cp.async.cg.shared.global [%r1], [%rd1], 16, %p1;\n"
    with pytest.raises(UnknownCopy, match="ignore its source"):
        with_late_copies(f".entry k(\n)\n{{\n{body}}}\n")


@pytest.mark.parametrize(
    ("assembled", "written"), [(b"code", "delays.cubin"), (None, "delays.ptx")]
)
def test_the_driver_assembles_what_nvjitlink_does_not(
    assembled: bytes | None, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").write_bytes(encode(perturbation_job("sm_80")))
    ptx = "bar.sync 0;\n"
    monkeypatch.setattr(NvrtcCompiler, "ptx", lambda compiler, job: ptx)
    monkeypatch.setattr(perturbed_build, "cubin_of", lambda made, arch: assembled)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "job"), str(tmp_path)])
    perturbed_build.main()
    content = (tmp_path / written).read_bytes()
    assert content == (assembled or with_delays(ptx)[0].encode()) + b"\0"
