"""NVRTC, which needs no GPU: cubins for several architectures, ptxas's figures, failures."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda import compiler, gpu_profiles, stated_options
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.errors import EnvironmentProblem
from evotune.trial import Json, OutcomeKind
from tests.patience import PATIENCE_S

HEADER = "__device__ int three() { return 3; }\n"
SOURCE = """\
#include "three.cuh"
namespace { __device__ int hidden; }
extern "C" __global__ void first(int *out) { *out = three() * N + hidden++; }
extern "C" __global__ void second(float *out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[255 - threadIdx.x] + sizeof(__FILE__);
}
"""
OWN_TYPE = """\
namespace { struct Sizes { int rows; }; __device__ int hidden; }
extern "C" __global__ void first(Sizes sizes, int *out) { *out = sizes.rows + hidden++; }
"""
SPILLING = """\
extern "C" __global__ void spilling(float *out, int n) {
    float kept[64];
    for (int i = 0; i < 64; ++i) kept[i] = out[i * n + threadIdx.x];
    for (int step = 0; step < n; ++step)
        for (int i = 0; i < 64; ++i) kept[i] += kept[(i + 1) % 64] * out[step];
    for (int i = 0; i < 64; ++i) out[i * n + threadIdx.x] = kept[i];
}
"""


def compiled(
    folder: Path, source: str, *options: str, arch: str = "sm_89"
) -> dict[str, Json] | CompileFailure:
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels" / "k.cu").write_text(source)
    (folder / "kernels" / "three.cuh").write_text(HEADER)
    job = CompileJob("cuda", str(folder), "kernels/k.cu", (("N", 7),), options, arch, "")
    result = NvrtcCompiler().compile(job, folder / "k.cubin", PATIENCE_S)
    return result if isinstance(result, CompileFailure) else dict(result)


def failure(folder: Path, source: str, *options: str, arch: str = "sm_89") -> CompileFailure:
    result = compiled(folder, source, *options, arch=arch)
    assert isinstance(result, CompileFailure)
    return result


@pytest.mark.parametrize("name", gpu_profiles.names())
def test_a_kernel_compiles_for_every_named_gpu(tmp_path: Path, name: str) -> None:
    found = compiled(tmp_path, SOURCE, arch=gpu_profiles.named(name).arch)
    assert isinstance(found, dict)
    assert (tmp_path / "k.cubin").read_bytes()[:4] == b"\x7fELF"
    assert found["code_bytes"] == (tmp_path / "k.cubin").stat().st_size
    assert set(found["entries"]) == {"first", "second"}
    assert found["static_shared_bytes"] == found["entries"]["second"]["static_shared_bytes"] == 1024
    assert found["entries"]["first"]["static_shared_bytes"] == 0
    assert found["registers"] == max(e["registers"] for e in found["entries"].values()) > 0
    assert found["spill_store_bytes"] == found["spill_load_bytes"] == 0


def test_the_machine_code_does_not_depend_on_where_the_sources_lie(tmp_path: Path) -> None:
    compiled(tmp_path / "here", SOURCE)
    compiled(tmp_path / "far" / "away", SOURCE)
    codes = [(tmp_path / f / "k.cubin").read_bytes() for f in ("here", "far/away")]
    assert codes[0] == codes[1]


def test_spills_are_reported(tmp_path: Path) -> None:
    found = compiled(tmp_path, SPILLING, "--maxrregcount=24")
    assert isinstance(found, dict)
    assert found["registers"] <= 24
    assert found["spill_store_bytes"] > 0
    assert found["spill_load_bytes"] > 0
    assert found["stack_bytes"] > 0
    free = compiled(tmp_path, SPILLING)
    assert isinstance(free, dict)
    assert free["spill_store_bytes"] == 0


def test_headers_of_the_wheels_are_found(tmp_path: Path) -> None:
    headers = "#include <mma.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    found = compiled(tmp_path, headers + 'extern "C" __global__ void f(half *o) { *o = 1.5f; }')
    assert isinstance(found, dict), found


def test_an_error_in_the_source_names_its_place_under_the_root(tmp_path: Path) -> None:
    found = failure(tmp_path, '#include "three.cuh"\nextern "C" __global__ void f() { four(); }\n')
    assert found.kind is OutcomeKind.COMPILE_ERROR
    assert found.reason == 'kernels/k.cu(2): error: identifier "four" is undefined'
    assert str(tmp_path) not in found.log


def test_a_warning_about_an_error_is_not_the_reason(tmp_path: Path) -> None:
    source = "__device__ void g() { int error; }\n"
    source += 'extern "C" __global__ void f(int *out) { *out = missing; }\n'
    found = failure(tmp_path, source)
    assert 'variable "error" was declared' in found.log
    assert 'identifier "missing" is undefined' in found.reason


def test_an_error_in_a_header_names_its_place_under_the_root(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "bad.cuh").write_text("int int;\n")
    found = failure(tmp_path, '#include "bad.cuh"\nextern "C" __global__ void f() {}\n')
    assert found.reason.startswith("kernels/bad.cuh(1): error:")
    assert str(tmp_path) not in found.log


def test_static_shared_memory_that_does_not_fit_is_a_resource_limit(tmp_path: Path) -> None:
    source = SOURCE.replace("tile[256]", "tile[20000]")
    found = failure(tmp_path, source)
    assert found.kind is OutcomeKind.RESOURCE_LIMIT
    assert "uses too much shared data" in found.reason
    assert "\0" not in found.log


def test_a_source_that_is_not_text_is_a_compile_error(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_bytes(b"\xff\xfe\x00")
    job = CompileJob("cuda", str(tmp_path), "k.cu", (), (), "sm_89", "")
    found = NvrtcCompiler().compile(job, tmp_path / "k.cubin", PATIENCE_S)
    assert isinstance(found, CompileFailure)
    assert found.kind is OutcomeKind.COMPILE_ERROR


def test_an_architecture_that_nvrtc_does_not_know_is_the_machine_s_problem(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="does not compile for sm_77; fix:"):
        compiled(tmp_path, SOURCE, arch="sm_77")


def test_the_version_names_nvrtc_headers_and_flags() -> None:
    version = NvrtcCompiler().version()
    assert version.startswith("NVRTC 1")
    assert "(headers 1" in version
    assert "--std=c++17" in version


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--use_fast_math", True),
        ("--fmad=false", True),
        ("--maxrregcount=128", True),
        ("--maxrregcount=0", False),
        ("--include-path=/etc", False),
        ("-I/etc", False),
        ("--pre-include=/etc/passwd", False),
        ("--maxrregcount=64 -I/etc", False),
    ],
)
def test_options_come_from_a_list(option: str, allowed: bool) -> None:
    assert stated_options.is_allowed(option) is allowed


def test_without_cupy_the_fix_is_named() -> None:
    program = (
        "import sys; sys.modules['cupy'] = None\n"
        "from evotune.backends.cuda.compiler import NvrtcCompiler\n"
        "from evotune.errors import EnvironmentProblem\n"
        "try: NvrtcCompiler().version()\n"
        "except EnvironmentProblem as error: print(error)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.startswith("cannot compile CUDA kernels: CuPy is not installed; fix: pip ")
    assert "evotune[cuda12]" in done.stdout


@pytest.mark.parametrize("name", ['"kernels/three.cuh"', "<kernels/three.cuh>", "<three.cuh>"])
def test_a_header_is_found_only_where_the_cache_s_key_looks_for_it(
    tmp_path: Path, name: str
) -> None:
    found = failure(tmp_path, f"#include {name}\n")
    assert found.kind is OutcomeKind.COMPILE_ERROR
    assert "cannot open" in found.reason


def test_the_machine_code_is_whole(tmp_path: Path) -> None:
    """In an ELF file the last table of headers ends where the file ends."""
    compiled(tmp_path, SOURCE)
    code = (tmp_path / "k.cubin").read_bytes()
    ends = []
    for table_at, entry_at in ((32, 54), (40, 58)):  # program headers, section headers
        (offset,) = struct.unpack_from("<Q", code, table_at)
        entry_bytes, entries = struct.unpack_from("<HH", code, entry_at)
        ends.append(offset + entry_bytes * entries)
    assert max(ends) == len(code)


def test_whether_a_kernel_uses_mbarriers_is_noted(tmp_path: Path) -> None:
    waits = """
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
    """
    source = 'extern "C" __global__ void wait_mbarrier(unsigned at) {%s}'
    found = [compiled(tmp_path, source % body) for body in (waits, "")]
    assert [each["mbarriers"] for each in found if isinstance(each, dict)] == [1, 0]


def test_the_drivers_cache_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary that NVRTC takes from there has no log, so that its registers are not known."""
    given: list[str] = []
    nvrtc = compiler._nvrtc()
    compile_program = nvrtc.compileProgram

    def note(program: object, options: list[str]) -> None:
        given.extend(options)
        compile_program(program, options)

    monkeypatch.setattr(nvrtc, "compileProgram", note)
    compiled(tmp_path, SOURCE)
    assert ("--no-cache" in given) == (compiler.nvrtc_version() >= (12, 9))


def test_two_processes_make_the_same_machine_code(tmp_path: Path) -> None:
    """Runs and exports know a kernel by its bytes. NVRTC draws a part of a name in an anonymous
    namespace when the kernel's signature has a type from there."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.backends.test_cuda_compiler import OWN_TYPE, compiled\n"
        "compiled(Path(sys.argv[1]), OWN_TYPE)\n"
    )
    found = []
    for name in ("one", "two"):
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / name)],
            check=True,
            cwd=Path(__file__).parents[2],
        )
        found.append((tmp_path / name / "k.cubin").read_bytes())
    assert b"hidden" in found[0]
    assert found[0] == found[1]
