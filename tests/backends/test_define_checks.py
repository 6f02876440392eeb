"""A parameter's name that a header defines again is an error; no right kernel is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.sources import checked_end, redefined
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.trial import OutcomeKind
from tests.patience import PATIENCE_S

KERNEL = 'extern "C" int f(int x) { return x + @; }\n'


def compiled(folder: Path, source: str, **defines: int) -> CompileFailure | None:
    (folder / "k.cpp").write_text(source)
    job = CompileJob("cpp", str(folder), "k.cpp", tuple(defines.items()), (), "native", "")
    found = CpuCompiler().compile(job, folder / "k.so", PATIENCE_S)
    return found if isinstance(found, CompileFailure) else None


REDEFINED = [
    ("INT_MAX", "#include <climits>\n"),
    ("CHAR_BIT", "#include <climits>\n"),
    ("EOF", "#include <cstdio>\n"),
    ("M_PI", "#include <cmath>\n"),
    ("NAN", "#include <cmath>\n"),
    ("INT64_C", "#include <cstdint>\n"),
    ("MB_CUR_MAX", "#include <cstdlib>\n"),
    ("TILE", "#undef TILE\n#define TILE 9\n"),
    ("TILE", '#undef TILE\n#define TILE "words"\n'),
    ("TILE", "#undef TILE\n#define TILE(x) x\n"),
]


@pytest.mark.parametrize(("name", "lines"), REDEFINED)
def test_a_name_that_is_defined_again_is_told(tmp_path: Path, name: str, lines: str) -> None:
    failure = compiled(tmp_path, lines + KERNEL.replace("@", "1"), OTHER=3, **{name: 5})
    assert failure is not None
    assert failure.kind is OutcomeKind.COMPILE_ERROR
    assert failure.reason == (
        f"{name}: a header or the source gives this name another value; rename the parameter"
    )


RIGHT = [
    KERNEL.replace("@", "TILE"),
    KERNEL.replace("@", "TILE") + "#undef TILE\n",
    KERNEL.replace("@", "TILE") + "#undef TILE\nconstexpr int TILE = 3;\n",
    "#include <cmath>\n#include <climits>\n#include <cstdio>\n" + KERNEL.replace("@", "TILE"),
    "#include <cstddef>\n#undef TILE\n#define TILE ((size_t)8)\n" + KERNEL.replace("@", "TILE"),
    "#define TILE 0x8\n" + KERNEL.replace("@", "TILE"),
    KERNEL.replace("@", "TILE") + "// it ends without a line's end \\",
    KERNEL.replace("@", "TILE") + "#pragma GCC visibility push(hidden)",
    "#pragma once\n" + KERNEL.replace("@", "TILE"),
    "#ifndef TILE\n#define TILE 5\n#endif\n" + KERNEL.replace("@", "TILE"),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("source", RIGHT)
def test_a_right_kernel_compiles_to_what_it_was_without_the_check(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled(tmp_path, source, TILE=8) is None
    checked = (tmp_path / "k.so").read_bytes()
    monkeypatch.setattr("evotune.backends.cpu.cpp_compiler.checked_end", lambda *_: "")
    assert compiled(tmp_path, source, TILE=8) is None
    assert (tmp_path / "k.so").read_bytes() == checked


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('extern "C" int f() {\n  return TILE;\n', "k.cpp:3:"),
        ("int f();\nint g = (1 + TILE", "k.cpp:2:"),
        ("#include <climits>\nint f() { return missing; }\n", "k.cpp:2:18: error: 'missing'"),
        ("#if TILE\n", "k.cpp:1: error: unterminated #if"),
        ("#error no TILE of 8\n", "k.cpp:1:2: error: #error no TILE of 8"),
    ],
)
def test_another_mistake_is_told_as_before(tmp_path: Path, source: str, reason: str) -> None:
    failure = compiled(tmp_path, source, TILE=8)
    assert failure is not None
    assert failure.reason.startswith(reason)
    assert "this name another value" not in failure.reason


def test_a_source_that_is_gone_is_the_compilers_matter(tmp_path: Path) -> None:
    job = CompileJob("cpp", str(tmp_path), "k.cpp", (("TILE", 8),), (), "native", "")
    failure = CpuCompiler().compile(job, tmp_path / "k.so", PATIENCE_S)
    assert isinstance(failure, CompileFailure)
    assert "k.cpp: No such file or directory" in failure.reason


def test_a_precompiled_file_beside_the_source_is_not_used(tmp_path: Path) -> None:
    import subprocess

    from evotune.backends.cpu import cpp_compiler as cpu

    (tmp_path / "k.cpp").write_text('extern "C" int f() { return 1; }\n')
    flags = [flag for flag in cpu.FLAGS if not flag.startswith("-Wl") and flag != "-shared"]
    subprocess.run(
        [cpu.find_compiler(), *flags, "-x", "c++-header", "k.cpp", "-o", "k.cpp.gch"],
        check=True,
        cwd=tmp_path,
    )
    failure = compiled(tmp_path, "int f() { return missing; }\n")
    assert failure is not None
    assert "'missing' was not declared" in failure.reason


NVRTC_LOG = """\
kernels/k.cu(1): warning #47-D: incompatible redefinition of macro "TILE"
  #define TILE 9
          ^

parameter TILE(2): error: static assertion failed with ""
  static_assert((TILE) == 8, "");
  ^

1 error detected in the compilation of "kernels/k.cu".
"""


def test_what_nvrtc_says_is_understood() -> None:
    assert redefined(NVRTC_LOG) == "TILE"
    other = 'kernels/k.cu(3): error: identifier "y" is undefined\n'
    assert redefined(other) is None
    assert redefined(other + NVRTC_LOG) == "TILE"
    called = NVRTC_LOG.replace('static assertion failed with ""', 'identifier "TILE" is undefined')
    assert redefined(called) == "TILE"
    assert redefined(other + called) is None
    assert redefined('At end of source: error: expected a "}"\n' + called) is None


def test_the_end_of_a_source_checks_each_name_and_keeps_its_lines() -> None:
    end = checked_end("a\nb", 'my "k".cu', (("A", 1), ("B", -2)))
    assert end.splitlines()[0] == ""
    assert '#line 2 "my \\"k\\".cu"' in end
    assert "static_assert((A) == 1" in end
    assert "static_assert((B) == -2" in end
