"""A binary made of a file that is neither a source nor a header of the compiler is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.sources import read_sources
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.errors import EnvironmentProblem, SpaceError
from evotune.trial import OutcomeKind
from evotune.workers.build_cache import BuildCache
from evotune.workers.compile_worker import build
from tests.patience import PATIENCE_S

GXX = shutil.which("g++")
pytestmark = pytest.mark.skipif(GXX is None, reason="needs g++")

KERNEL = 'extern "C" int kernel() { return 1; }\n'
EMBEDDED = {
    "joined strings": r'asm(".inc" "bin \"SECRET\"");',
    "a macro of the preprocessor": '#define DOT "."\nasm(DOT "incbin \\"SECRET\\"");',
    "an octal escape": r'asm("\56incbin \"SECRET\"");',
    "a hexadecimal escape": r'asm("\x2e" "incbin \"SECRET\"");',
    "a raw string": 'asm(R"(\n.if 1 ; here: .incbin "SECRET"; .endif\n)");',
    "a label before it": r'asm("here: \56incbin \"SECRET\", 1, 2");',
    "inside a function": r'int other() { asm("\56incbin \"SECRET\""); return 2; }',
    "a macro of the assembler": r'asm(".macro m a\n.inc\\a \"SECRET\"\n.endm\nm bin");',
    "an alternate macro": r'asm(".altmacro\n.macro m a\n.inc&a \"SECRET\"\n.endm\nm bin");',
    "a loop of the assembler": r'asm(".irp x,bin\n.inc\\x \"SECRET\"\n.endr");',
    "assembler code": r'asm("\56include \"ASSEMBLY\"");',
    "capitals": r'asm("\56INCBIN \"SECRET\"");',
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "assembly.s").write_text(".byte 7\n")
    path = tmp_path / "secret.bin"
    path.write_bytes(b"\x90" * 8)
    return path


def _job(root: Path, text: str, name: str = "k.cpp") -> CompileJob:
    root.mkdir(exist_ok=True)
    (root / name).write_text(text)
    return CompileJob("cpp", str(root), name, (), (), "native", "")


def _compiled(job: CompileJob, folder: Path) -> str:
    """Why there is no binary; "" when there is one."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    result = CpuCompiler().compile(job, scratch / "kernel.bin", PATIENCE_S)
    if not isinstance(result, CompileFailure):
        return ""
    assert result.kind is OutcomeKind.COMPILE_ERROR
    return result.reason


@pytest.mark.parametrize("text", EMBEDDED.values(), ids=EMBEDDED)
def test_the_assembler_embeds_no_file_however_it_is_asked(
    tmp_path: Path, secret: Path, text: str
) -> None:
    text = text.replace("SECRET", str(secret)).replace("ASSEMBLY", str(tmp_path / "assembly.s"))
    root = tmp_path / "root"
    job = _job(root, KERNEL + text)
    assert list(read_sources(root, "k.cpp")) == ["k.cpp"], "the scan does not see it"
    reason = _compiled(job, tmp_path)
    assert reason.startswith("the assembler read ")
    assert str(tmp_path) in reason


def test_an_embedded_file_that_changed_is_never_an_old_one_from_the_cache(
    tmp_path: Path, secret: Path
) -> None:
    job = _job(tmp_path / "root", KERNEL + rf'asm("\56incbin \"{secret}\"");')
    cache, scratch = BuildCache(tmp_path / "cache"), tmp_path / "scratch"
    scratch.mkdir()
    for content in (b"1", b"2"):
        secret.write_bytes(content)
        assert isinstance(build(job, cache, scratch, 60), CompileFailure)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["./../secret.s", "secret.s", "../scratch/../secret.s"])
def test_a_relative_name_leads_to_no_other_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.s").write_text("x")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "secret.s").write_text("x")
    assert _compiled(_job(tmp_path / "root", KERNEL + rf'asm("\56incbin \"{name}\"");'), tmp_path)


def test_a_name_that_looks_like_two_in_the_list_is_refused(tmp_path: Path) -> None:
    """A line end in a file's name would look like the end of one name in the list."""
    root = tmp_path / "root"
    hidden = root / "k.cpp\n" / "usr" / "include" / "stdio.h"
    hidden.parent.mkdir(parents=True)
    hidden.write_text("x")
    text = "".join(f"\\{byte:03o}" for byte in str(hidden).encode())
    embedded = rf'asm("\56incbin \"" "{text}" "\"");'.replace("\\012", "\\\\n")
    assert "the assembler read" in _compiled(_job(root, KERNEL + embedded), tmp_path)


def test_a_header_that_the_scan_did_not_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "h.h").write_text("int seen;\n")
    job = _job(tmp_path / "root", f'#include "h.h"\n{KERNEL}')
    assert _compiled(job, tmp_path) == ""
    monkeypatch.setattr("evotune.backends.base.sources._quoted", lambda name, content: ())
    assert _compiled(job, tmp_path).startswith("the compiler read ")


def test_a_precompiled_header_does_not_stand_in_for_a_source(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job = _job(root, f'#include "h.h"\n{KERNEL}')
    (root / "h.h").write_text("int old;\n")
    assert GXX is not None
    subprocess.run([GXX, "-x", "c++-header", "h.h", "-o", "h.h.gch"], cwd=root, check=True)
    (root / "h.h").write_text("int new_one;\n")
    assert "h.h.gch, a precompiled header" in _compiled(job, tmp_path)
    (root / "h.h").unlink()
    with pytest.raises(SpaceError, match=r"h\.h\.gch, a precompiled header"):
        read_sources(root, "k.cpp")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["my kernel.cpp", "k.cpp", "deep/k: 1.cpp", "a$b#c.cpp"])
def test_headers_of_the_compiler_and_own_ones_are_fine(tmp_path: Path, name: str) -> None:
    root = tmp_path / "a root $x #1"
    (root / "deep").mkdir(parents=True)
    (root / "more").mkdir()
    (root / "more" / "my h.h").write_text('#pragma once\ninline void g() { asm("nop"); }\n')
    (root / "alias.h").symlink_to("more/my h.h")
    (root / "deep" / "alias.h").symlink_to("../more/my h.h")
    text = '#include "alias.h"\n#include <omp.h>\n#include <vector>\n#include <immintrin.h>\n'
    assert _compiled(_job(root, text + KERNEL, name), tmp_path) == ""


@pytest.mark.parametrize("name", ["more", "clang"])
def test_folders_of_headers_from_the_environment_are_part_of_what_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder of clang's headers does not make g++ clang."""
    from evotune.backends.cpu import cpp_compiler
    from evotune.backends.cpu import cpp_compiler as cpu

    (tmp_path / name).mkdir()
    (tmp_path / name / "extra.h").write_text("")
    job = _job(tmp_path / "root", f"#include <extra.h>\n{KERNEL}")
    before = CpuCompiler().version()
    assert "extra.h" in _compiled(job, tmp_path)
    for cached in (cpu._compiler_version, cpp_compiler.header_folders):
        cached.cache_clear()
    monkeypatch.setenv("CPATH", str(tmp_path / name))
    try:
        assert _compiled(job, tmp_path) == ""
        assert CpuCompiler().version() == f"{before} CPATH={tmp_path / name}"
    finally:
        for cached in (cpu._compiler_version, cpp_compiler.header_folders):
            cached.cache_clear()


def test_a_compiler_that_lists_nothing_is_a_problem_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text(f'#!/bin/sh\n{GXX} "$@" && rm -f compiler.d\n')
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    with pytest.raises(EnvironmentProblem, match="does not list the files that it reads"):
        _compiled(_job(tmp_path / "root", KERNEL), tmp_path)
