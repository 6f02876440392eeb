"""Headers that CUDA sources include in angle brackets are found, or the message has the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda import compiler
from evotune.backends.cuda.compiler import (
    NvrtcCompiler,
    headers_version,
    missing_header,
    search_folders,
)
from evotune.trial import Json, OutcomeKind
from tests.patience import PATIENCE_S
from tests.sweeps import swept

EMPTY = 'extern "C" __global__ void f(float *x) {}\n'
HEADERS = {
    "cstdint": "std::uint8_t small = 255; uint64_t large = INT64_MAX; x[0] = small + large;",
    "stdint.h": "int32_t a = -1; uintptr_t b = 1; x[0] = a + b;",
    "cstddef": "std::size_t n = 3; std::ptrdiff_t d = -1; x[n] = d;",
    "cmath": "constexpr float most = INFINITY; x[0] = std::exp(x[1]) + std::fabs(x[2]) + most;"
    " x[4] = NAN; static_assert(sizeof(std::sqrt(1.0f)) == 4, ``); x[1] = M_PI;"
    " x[2] = std::isnan(x[3]);",
    "math.h": "x[0] = expf(x[1]) + fmaxf(x[2], x[3]) + HUGE_VALF;",
    "stdio.h": 'printf("%f", x[0]);',
    "cstdio": 'std::printf("%f", x[0]);',
    "cassert": "assert(x[0] > 0.0f);",
    "cfloat": "x[0] = FLT_MAX + DBL_EPSILON;",
    "climits": "x[0] = INT_MAX + CHAR_BIT;",
    "limits": "x[0] = std::numeric_limits<float>::infinity();",
    "algorithm": "x[0] = std::max(x[1], std::min(x[2], 1.0f)); std::swap(x[1], x[2]);",
    "type_traits": "static_assert(std::is_same<float *, decltype(x)>::value, ``);",
    "cstring": "int i; std::memcpy(&i, x, 4); x[1] = i;",
    "cooperative_groups.h": "cooperative_groups::this_thread_block().sync();",
    "cuda/pipeline": "auto p = cuda::make_pipeline(); p.producer_acquire(); p.producer_commit();",
    "cub/cub.cuh": "using R = cub::BlockReduce<float, 64>; __shared__ typename R::TempStorage s;"
    " x[0] = R(s).Sum(x[1]); x[1] = cub::ThreadLoad<cub::LOAD_CG>(x + 2);",
    "cub/block/block_scan.cuh": "using S = cub::BlockScan<int, 64>; (void)sizeof(S::TempStorage);",
    "cuda_fp16.h": "x[0] = __half2float(__float2half(x[1]));",
    "cuda_bf16.h": "x[0] = __bfloat162float(__float2bfloat16(x[1]));",
    "mma.h": "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;"
    " nvcuda::wmma::fill_fragment(c, x[0]);",
}


def _compile(folder: Path, text: str, arch: str = "sm_89") -> Json | CompileFailure:
    (folder / "k.cu").write_text(text)
    job = CompileJob("cuda", str(folder), "k.cu", (), (), arch, "")
    return NvrtcCompiler().compile(job, folder / "k.bin", PATIENCE_S)


LARGE = ("cuda/pipeline", "cub/cub.cuh", "cub/block/block_scan.cuh")
"""They take longest. `make test` compiles the others for sm_90a, and all together for sm_89."""


@pytest.mark.parametrize(
    ("header", "arch"),
    swept(
        [(header, arch) for arch in ("sm_90a", "sm_89") for header in HEADERS],
        lambda each: each[0] not in LARGE and each[1] == "sm_90a",
    ),
)
def test_a_header_is_found_and_what_it_declares_works(
    tmp_path: Path, header: str, arch: str
) -> None:
    body = HEADERS[header].replace("``", '""')
    made = _compile(tmp_path, f"#include <{header}>\n" + EMPTY.replace("{}", f"{{ {body} }}"), arch)
    assert not isinstance(made, CompileFailure), made.reason


def test_limits_of_floats_need_nothing_of_cccl(tmp_path: Path) -> None:
    """CCCL's own file has none from version 3 on: here it is left out."""
    limits = (
        *("FLT_MAX == 0x1.fffffep127f", "FLT_MIN == 0x1p-126f", "FLT_EPSILON == 0x1p-23f"),
        *("FLT_TRUE_MIN == 0x1p-149f", "DBL_MAX == 0x1.fffffffffffffp1023", "FLT_DIG == 6"),
        *("DBL_MIN == 0x1p-1022", "DBL_EPSILON == 0x1p-52", "DBL_TRUE_MIN == 0x1p-1074"),
    )
    exact = "".join(f'static_assert({each}, "");\n' for each in limits)
    for text in ("", "#define _CUDA_STD_CFLOAT\n"):
        made = _compile(tmp_path, f"{text}#include <cfloat>\n{exact}{EMPTY}")
        assert not isinstance(made, CompileFailure), made.reason


def test_all_of_them_go_together(tmp_path: Path) -> None:
    includes = "".join(f"#include <{header}>\n" for header in (*HEADERS, *reversed(HEADERS)))
    made = _compile(tmp_path, includes + EMPTY)
    assert not isinstance(made, CompileFailure), made.reason


def test_a_kernel_s_own_file_comes_before_a_header_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "math.h").write_text("#define OWN 1\n")
    made = _compile(tmp_path, f'#include "math.h"\n#ifndef OWN\n#error not mine\n#endif\n{EMPTY}')
    assert not isinstance(made, CompileFailure), made.reason


@pytest.mark.parametrize(
    ("header", "fix"),
    [
        ("iostream", "NVRTC has none of a host's headers"),
        ("mine.cuh", "a kernel's own file is included in quotes"),
        ("cuda/no_such", "fix: pip install nvidia-cuda-cccl"),
        ("curand_no_such.h", "fix: pip install nvidia-curand"),
    ],
)
def test_a_header_that_is_not_there_is_told_with_what_to_do(
    tmp_path: Path, header: str, fix: str
) -> None:
    found = _compile(tmp_path, f"#include <{header}>\n{EMPTY}")
    assert isinstance(found, CompileFailure)
    assert found.kind is OutcomeKind.COMPILE_ERROR
    assert found.reason.startswith(
        f'k.cu(1): catastrophic error: cannot open source file "{header}'
    )
    assert fix in found.reason


@pytest.mark.parametrize(
    ("name", "major", "wheel"),
    [
        ("nv/target", 12, "nvidia-cuda-cccl-cu12"),
        ("nv/target", 13, "nvidia-cuda-cccl"),
        ("crt/mma.h", 12, "nvidia-cuda-nvcc-cu12"),
        ("crt/mma.h", 13, "nvidia-cuda-crt"),
        ("cooperative_groups.h", 12, "nvidia-cuda-runtime-cu12"),
        ("cuda_fp16.h", 13, "nvidia-cuda-runtime"),
    ],
)
def test_the_package_that_has_a_header_is_named(name: str, major: int, wheel: str) -> None:
    log = f'k.cu(3): catastrophic error: cannot open source file "{name}"'
    assert missing_header(log, major) == f"fix: pip install {wheel}"


def test_another_content_of_the_headers_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers_version.cache_clear()
    search_folders.cache_clear()
    version = NvrtcCompiler().version()
    major = int(version.removeprefix("NVRTC ").partition(".")[0])
    before = headers_version(major)
    assert "CCCL " in before
    assert before.split(", ")[0] in version
    (tmp_path / "cmath").write_text("#define OTHER\n")
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_OWN", tmp_path)
        headers_version.cache_clear()
        search_folders.cache_clear()
        assert headers_version(major) != before
    headers_version.cache_clear()
    search_folders.cache_clear()
