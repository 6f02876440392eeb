"""The static view of machine code: SASS in small texts of our own, PTX, and a real cubin."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from evotune.backends.base.evidence import (
    GPU_CLASSES,
    EvidenceRequest,
    StaticView,
    count,
    innermost_loops,
)
from evotune.backends.base.launch import CompileFailure, CompileJob, LaunchPlan
from evotune.backends.cuda import gpu_evidence, gpu_profiles, ptx_view, static_view
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.backends.cuda.ptx_view import classify as ptx_class
from evotune.backends.cuda.ptx_view import read_functions as read_ptx
from evotune.backends.cuda.static_view import (
    NoStaticView,
    classify,
    find_disassembler,
    is_waiting,
    read_functions,
    static_views,
)
from tests.patience import PATIENCE_S

# A kernel's main loop: it waits in two places, one of them behind the end of the function.
SASS = """\
\t.section\t.text.attend,"ax",@progbits
\t.align\t128
attend:
.text.attend:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   IMAD.MOV.U32 R2, RZ, RZ, RZ ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0030*/              @!P0 BRA `(.L_x_9) ;
.L_x_2:
        /*0040*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, gsb0 ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0060*/                   MUFU.EX2 R9, R7 ;
        /*0070*/                   FFMA R5, R6, R5, R9 ;
        /*0080*/              @!PT LDS RZ, [RZ] ;
        /*0090*/                   STL [R1], R5 ;
        /*00a0*/               @P1 BRA `(.L_x_1) ;
        /*00b0*/                   STG.E desc[UR6][R2.64], R5 ;
        /*00c0*/                   EXIT ;
.L_x_9:
        /*00d0*/                   IMAD.U32 R3, RZ, RZ, UR5 ;
        /*00e0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*00f0*/              @!P0 BRA `(.L_x_9) ;
        /*0100*/                   BRA `(.L_x_2) ;
.L_x_20:
        /*0110*/                   BRA `(.L_x_20);
        /*0120*/                   NOP;

\t.section\t.text.merge,"ax",@progbits
merge:
.text.merge:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/               @P0 EXIT ;
.L_x_3:
        /*0020*/                   UBLKCP.S.G [UR8], [UR6], UR4 ;
        /*0030*/               @P0 BRA.U.ANY `(.L_x_3) ;
        /*0040*/                   EXIT ;
"""

KERNEL = """\
extern "C" __global__ void exponentials(float *out, int n) {
    __shared__ float tile[256];
    tile[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        float y;
        asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(tile[(threadIdx.x + i) & 255]));
        sum = sum * y + 1.0f;
    }
    out[threadIdx.x] = sum;
}
"""


def test_sass_is_counted_by_class_in_each_function() -> None:
    functions = read_functions(SASS)
    assert set(functions) == {"attend", "merge"}
    assert count(functions["attend"]) == {
        **{"other": 1, "fma": 3, "barrier": 3, "branch": 5, "tensor": 1, "mufu": 1, "local": 1},
        "global_store": 1,
    }
    assert count(functions["merge"]) == {"global_load": 1, "branch": 3, "async_copy": 1}


def test_the_main_loop_contains_its_waits_and_a_waterfall_is_no_loop() -> None:
    functions = read_functions(SASS)
    (loop,) = innermost_loops(functions["attend"], is_waiting)
    assert count([functions["attend"][number] for number in loop])["tensor"] == 1
    assert {functions["attend"][number].kind for number in loop} >= {"barrier", "local", "mufu"}
    assert innermost_loops(functions["merge"], is_waiting) == []


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        *(("HMMA.16816.F32", "tensor"), ("UTCHMMA", "tensor"), ("MUFU.EX2", "mufu")),
        *(("IMAD.WIDE.U32", "fma"), ("HFMA2.BF16_V2", "fma"), ("LOP3.LUT", "alu")),
        *(("LDSM.16.M88.4", "shared_load"), ("ATOMS.ADD", "shared_store")),
        *(("LDGSTS.E.BYPASS.128", "async_copy"), ("UTMALDG.4D", "async_copy")),
        *(("RED.E.ADD.F32", "global_store"), ("BAR.SYNC.DEFER_BLOCKING", "barrier")),
        *(("LDL.64", "local"), ("SHFL.BFLY", "other"), ("UIADD3", "other"), ("BSSY", "branch")),
    ],
)
def test_opcodes_have_the_class_of_their_pipe(opcode: str, kind: str) -> None:
    assert classify(opcode) == kind
    assert kind in GPU_CLASSES


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        *(("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "tensor"),),
        *(("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "tensor"),),
        *(("wgmma.wait_group.sync.aligned", "barrier"), ("ex2.approx.ftz.f32", "mufu")),
        *(("cp.async.cg.shared.global", "async_copy"), ("cp.async.wait_group", "barrier")),
        *(("cp.async.bulk.tensor.4d.shared::cluster.global.tile", "async_copy"),),
        *(("mbarrier.try_wait.parity.shared::cta.b64", "barrier"), ("bar.sync", "barrier")),
        *(("ld.shared.v4.u32", "shared_load"), ("ld.global.nc.v4.f32", "global_load")),
        *(("ldmatrix.sync.aligned.m8n8.x4.shared", "shared_load"), ("ld.param.u64", "other")),
        *(("st.shared.f32", "shared_store"), ("red.global.add.f32", "global_store")),
        *(("st.global.v4.f32", "global_store"), ("fma.rn.f32", "fma"), ("mul.wide.s32", "fma")),
        *(("add.s32", "alu"), ("add.f32", "fma"), ("bra", "branch"), ("ld.local.f32", "local")),
    ],
)  # fmt: skip
def test_ptx_opcodes_have_classes_too(opcode: str, kind: str) -> None:
    assert ptx_class(opcode) == kind


def test_loops_and_operands_in_braces_are_found_in_ptx() -> None:
    text = """
    .visible .entry attend(.param .u64 a)
    {
        .reg .pred %p<2>;
        mov.u32 %r1, 0;  // not ex2.approx
    $L__BB0_1:
        // begin inline asm
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2},
            %rd1, %rd2, 1, 1, 1, 0, 0;
        // end inline asm
        { .reg .b16 x; ex2.approx.ftz.f32 %f3, %f3; }
        @%p1 bra $L__BB0_1;
        ret;
    }
    .entry merge() { ret; }
    """
    functions = read_ptx(text)
    assert set(functions) == {"attend", "merge"}
    (loop,) = innermost_loops(functions["attend"], is_waiting)
    assert count([functions["attend"][i] for i in loop]) == {"tensor": 1, "mufu": 1, "branch": 1}


def request(folder: Path, arch: str = "sm_90a") -> EvidenceRequest:
    """The request for a cubin of KERNEL, compiled here."""
    (folder / "k.cu").write_text(KERNEL)
    job = CompileJob("cuda", str(folder), "k.cu", (), (), arch, "")
    resources = NvrtcCompiler().compile(job, folder / "k.cubin", PATIENCE_S)
    assert not isinstance(resources, CompileFailure)
    return EvidenceRequest(
        profile=gpu_profiles.named("h200"),
        dtype="float32",
        binary=str(folder / "k.cubin"),
        plan=LaunchPlan("exponentials", (), (), ()),
        tensors=(),
        resources=resources,
        compile=job,
    )


def view(folder: Path) -> StaticView:
    return static_views(request(folder))["exponentials"]


def test_a_cubin_shows_its_loop(tmp_path: Path) -> None:
    if not find_disassembler():
        pytest.skip("no nvdisasm is installed")
    found = view(tmp_path)
    assert found.source.startswith("nvdisasm ")
    assert found.loop_instructions["mufu"] == found.instructions["mufu"] == 1
    assert found.loop_instructions["shared_load"] == 1
    assert "barrier" not in found.loop_instructions
    assert found.static_shared_bytes == 1024
    assert found.registers > 0
    assert found.code_bytes == 16 * sum(found.instructions.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_cubin_states_the_registers_that_its_log_states(tmp_path: Path, arch: str) -> None:
    asked = request(tmp_path, arch)
    logged = asked.resources["entries"]["exponentials"]["registers"]
    assert gpu_evidence.read_registers(Path(asked.binary)) == {"exponentials": logged}
    assert gpu_evidence.with_registers({}, Path(asked.binary)) == {
        "entries": {"exponentials": {"registers": logged}}
    }
    assert gpu_evidence.with_registers(asked.resources, Path(asked.binary)) == asked.resources


@pytest.mark.parametrize("size", [0, 3, 64, 700])
def test_a_file_that_is_no_whole_cubin_states_nothing(tmp_path: Path, size: int) -> None:
    asked = request(tmp_path)
    (tmp_path / "cut").write_bytes(Path(asked.binary).read_bytes()[:size])
    assert gpu_evidence.read_registers(tmp_path / "cut") == {}
    assert gpu_evidence.read_registers(tmp_path / "missing") == {}
    assert gpu_evidence.with_registers({"registers": 9}, tmp_path / "cut") == {"registers": 9}


def test_ptx_is_read_where_no_disassembler_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_view, "find_disassembler", lambda: "")
    found = view(tmp_path)
    assert (found.source, found.code_bytes) == ("ptx", 0)
    assert found.loop_instructions["mufu"] == 1
    assert found.instructions["barrier"] == 1


def test_where_one_disassembler_does_not_know_the_gpu_another_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A toolkit's on PATH may be older than that of a wheel."""
    newer = find_disassembler()
    if not newer:
        pytest.skip("no nvdisasm is installed")
    older = tmp_path / "old" / "nvdisasm"
    older.parent.mkdir()
    older.write_text(
        """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 10.2, V10.2.89";;
  *) echo "nvdisasm fatal   : SM90 is not a known architecture" >&2; exit 1;;
esac
"""
    )
    older.chmod(older.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{older.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(Path(newer).parents[1]))
    assert find_disassembler() == str(older)
    assert view(tmp_path).source == static_view.disassembler_version(newer)


def test_the_reason_why_there_is_no_ptx_need_not_be_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = ("sh", "-c", r"printf 'cannot open \351t\351\n' >&2; exit 1")
    monkeypatch.setattr(ptx_view, "module_command", lambda *_: failing)
    job = CompileJob("cuda", str(tmp_path), "k.cu", (), (), "sm_80", "")
    with pytest.raises(ptx_view.NoPtx, match="cannot open \ufffdt\ufffd"):
        ptx_view.compiled_ptx(job, tmp_path / "job", 60.0)


def test_without_both_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "nvdisasm"
    broken.write_text("#!/bin/sh\necho 'nvdisasm fatal   : unknown architecture' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    asked = EvidenceRequest(
        profile=gpu_profiles.named("h200"),
        dtype="float16",
        binary="x.cubin",
        plan=LaunchPlan("f", (), (), ()),
        tensors=(),
    )
    monkeypatch.setattr(static_view, "find_disassembler", lambda: "")
    with pytest.raises(NoStaticView, match=r"no nvdisasm was found; fix: pip install"):
        static_views(asked)
    monkeypatch.setattr(static_view, "find_disassembler", lambda: str(broken))
    with pytest.raises(NoStaticView, match="nvdisasm failed: nvdisasm fatal : unknown arch"):
        static_views(asked)
