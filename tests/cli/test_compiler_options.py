"""Compiler options of C++ kernels: the allowed ones, parameters in them, and that a kernel compiled
for fast math leaves the process its denormals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu import takes_option
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.space.document import parse_space
from evotune.space.specs import filled
from tests.patience import PATIENCE_S

from .conftest import Invoke

SPACE = """\
name: options
root: .
problem:
  name: attention
  dtype: float32
  shapes: [{batch: 1, heads: 2, seq_len: 128, head_dim: 16}]
kernels:
  k:
    source: k.cpp
    entry: f
    supports: {seq_len_q: "% 64 == 0"}
    arguments: [q]
    options: ["-O{LEVEL}", "-f{MATH}"]
parameters:
  LEVEL: {choices: [1, 3, fast]}
  MATH: [fast_math, no_fast_math]
"""
KERNEL = """\
#ifndef __OPTIMIZE__
#error LEVEL did not reach the compiler
#endif
#if MATH == MATH_FAST_MATH
#ifndef __FAST_MATH__
#error MATH did not reach the compiler
#endif
#elif defined(__FAST_MATH__)
#error MATH is not the last word
#endif
extern "C" void f(const float*) {}
"""


@pytest.mark.parametrize(
    "option",
    [
        *("-O2", "-Ofast", "-ffast-math", "-fno-fast-math", "-fno-math-errno", "-funroll-loops"),
        *("-fassociative-math", "-funroll-all-loops", "-ffp-contract=off", "-fno-tree-vectorize"),
        *("-march=x86-64-v3", "-march=armv8.2-a+fp16", "-mtune=native", "-mavx2", "-mno-avx512f"),
        *(
            "-mprefer-vector-width=512",
            "-fvect-cost-model=unlimited",
            "-fno-semantic-interposition",
        ),
    ],
)
def test_common_options_are_allowed(option: str) -> None:
    assert takes_option(option)


@pytest.mark.parametrize(
    "option",
    [
        *("-include", "-fplugin=x.so", "-specs=x", "-B.", "-wrapper", "@file", "-march=/etc/x"),
        *("-fprofile-use=x", "-fdump-tree-all", "-save-temps", "-Wl,-T,x", "-Wp,-MD,x", "-I/etc"),
        *("-march=", "-march=a b", "-O2 -g", "-ffast-math\n", "", "-o", "k.cpp", "-fuse-ld=x"),
        *("-mavx2=x", "-O{LEVEL}", "-fsanitize=address", "-pg", "-march=.."),
    ],
)
def test_what_may_name_a_file_is_not(option: str) -> None:
    assert not takes_option(option)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("-O{LEVEL}", 3, "-O3"),
        ("-f{LEVEL}", "no_fast_math", "-fno-fast-math"),
        ("--fmad={LEVEL}", False, "--fmad=false"),
        ("-O2", 1, "-O2"),
    ],
)
def test_a_parameter_s_value_is_put_in(option: str, value: int | str, expected: str) -> None:
    assert filled(option, {"LEVEL": value}) == expected


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / "k.cpp").write_text(KERNEL)
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def test_each_configuration_is_compiled_with_its_options(invoke: Invoke, space: Path) -> None:
    result = invoke("compile", space, "--all", "--format", "json")
    assert [row["reason"] for row in json.loads(result.stdout)] == [""] * 6


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("[1, 3, fast]", "[1, 7]", "option '-O7' is not allowed; allowed: -O0 to -O3"),
        ("{LEVEL}", "{LEVELS}", "option '-O{LEVELS}' names no parameter: LEVELS; did you mean 'L"),
        ("-O{LEVEL}", "-O{LEVEL}{MATH}", "option '-O{LEVEL}{MATH}' names LEVEL and MATH; it may"),
    ],
)
def test_an_option_that_is_not_allowed_for_some_value_is_refused(
    invoke: Invoke,
    space: Path,
    before: str,
    after: str,
    words: str,
) -> None:
    space.write_text(SPACE.replace(before, after, 1))
    result = invoke("check", space)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {space}:9:5: {words}"), result.stderr


def test_a_rest_that_a_kernel_supports_is_an_expression() -> None:
    (kernel,) = parse_space(SPACE).kernels
    assert kernel.unsupported({"seq_len_q": 128}) is None
    assert kernel.unsupported({"seq_len_q": 100}) == (
        "kernel k needs seq_len_q % 64 == 0, found seq_len_q = 100"
    )


LOADED = """
import ctypes, sys
small = float(sys.argv[1])
before = small / 4
function = ctypes.CDLL(sys.argv[2]).half
function.argtypes = [ctypes.c_double]
function.restype = ctypes.c_double
assert function(1.0) == 0.5
assert before == small / 4 != 0.0, "denormals are flushed"
"""


@pytest.mark.parametrize("option", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
def test_a_kernel_for_fast_math_leaves_the_process_its_denormals(
    tmp_path: Path, option: str
) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" double half(double x) { return x / 2; }\n')
    job = CompileJob("cpp", str(tmp_path), "k.cpp", (), (), "native", "")
    library = tmp_path / "k.so"
    made = CpuCompiler().compile(
        msgspec.structs.replace(job, options=(option,)), library, PATIENCE_S
    )
    assert not isinstance(made, CompileFailure), made
    command = [sys.executable, "-c", LOADED, str(sys.float_info.min), str(library)]
    loaded = subprocess.run(command, check=False, capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
