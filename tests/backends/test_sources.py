"""The scan of kernel sources: sees every file that the compiler could read, and no other."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.backends.base.sources import fingerprint, read_sources
from evotune.backends.cpu.cpp_compiler import FLAGS
from evotune.errors import SpaceError

ROOT = Path(__file__).parents[2]
Make = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Make:
    """Makes a root with these files: `tree("…", {"a/b.h": "…"})`; the first is k/main.cpp."""

    def make(main: str | bytes, files: dict[str, str] | None = None) -> Path:
        root = tmp_path / "root"
        for name, text in {"k/main.cpp": main, **(files or {})}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return root

    return make


def scan(root: Path) -> list[str]:
    return list(read_sources(root, "k/main.cpp"))


def test_includes_are_followed_from_the_file_that_includes(tree: Make) -> None:
    root = tree(
        '#include "a.h"\n#include "../common/b.h"\n#include <vector>\n',
        {
            "k/a.h": '#pragma once\n#include "deep/c.h"\n',
            "k/deep/c.h": '#include "../a.h"\n',
            "common/b.h": '#include "d.h"\n',
            "common/d.h": "",
            "k/d.h": "not this one",
        },
    )
    found = read_sources(root, "k/main.cpp")
    assert list(found) == ["common/b.h", "common/d.h", "k/a.h", "k/deep/c.h", "k/main.cpp"]
    assert found["common/d.h"] == b""


# How a directive may be written; each of these makes g++ read the file.
SPELLINGS = [
    '#include "h.h"',
    '  \t#  include "h.h" // why',
    '#include"h.h"/* why */',
    '%:include "h.h"',
    '#import "h.h"',
    '#include_next "h.h"',
    '/* comment */ #include "h.h"',
    '/* two\nlines */ # /* x */ include /* y\n */ "h.h"',
    '#inc\\\nlude "h.h"',
    '#inc\\  \nlude "h.h"',
    '#include \\\r\n"h.h"',
    '#include "h\\\n.h"',
    '\f\v#include "h.h"',
    '\ufeff#include "h.h"',
    'int x;\r\n#include "h.h"\r\n',
    'int x;\r#include "h.h"',
    '// */ #include /*\n#include "h.h"\n// */ <vector>',
    'const char* s = "/*";\n#include "h.h"\nconst char* t = "*/";',
    'auto r = R"x( )\\\nx" /* )x";\n#include "h.h"\n/* */',
    '#if 0\n#elif 1\n#include "h.h"\n#endif',
]
# Only GCC joins lines where blanks follow the backslash: to NVRTC the second is a directive.
SPELLINGS_OF_NVRTC = [
    'int x; \\ \n#include "h.h"\n',
    '#define SOME \\ \n#include "h.h"\n',
    '// comment \\\t\r\n#include "h.h"\n',
    'int x; /*\n*/ #include "h.h"\n',  # GCC sees no line's beginning there
]

# No compiler reads a file for any of these.
HIDDEN = [
    '/* #include "h.h" */',
    '/*\n#include "h.h"\n*/',
    '/*\n * don\'t\n#include "h.h"\n*/',
    '// one \\\n#include "h.h"\n',
    'const char* s = "\\\n#include \\"h.h\\"\\\n";',
    'auto s = R"(\n#include "h.h"\n)";',
    'auto s = u8R"delim(\n)"\n#include "h.h"\n)delim";',
    'auto s = "/*"; /*\n#include "h.h"\n*/',
    'int n = 1\'000; /*\n#include "h.h"\n*/',
    '#if 0\n#include "h.h"\n#endif\n',
    '#if 0 // why\n#if 1\n#include "h.h"\n#else\n#include "h.h"\n#endif\n#endif\n',
    '# /* x */ if 0 /* y */\n%:include "h.h"\n#endif\n',
    '#if 0\nisn\'t read\n#include "h.h"\n#endif\n',
    '#if 1\n#else\n#include "h.h"\n#endif\n',
    '#if 1\n#elif FOO\n#include "h.h"\n#else\n#include "h.h"\n#endif\n',
    '#i\\\nf 0\n#include "h.h"\n#endif\n',
    '#if 0\n#elif 0\n#include "h.h"\n#endif\n',
]
# Here the scan cannot tell: the file is copied if it exists.
MAYBE = [
    '#ifdef NEVER\n#include "h.h"\n#endif\n',
    '#if NEVER\n#include "h.h"\n#else\n#include "h.h"\n#endif\n',
    '#if !defined(NEVER) && __has_include("h.h")\n#include "h.h"\n#endif\n',
    '#if __has_include("h.h")\n#endif\n',
    '#if 0\n#elif NEVER\n#include "h.h"\n#endif\n',
    '#if (0)\n#include "h.h"\n#endif\n',
]


@pytest.mark.parametrize("source", ["main.cpp", "main.cu"])
@pytest.mark.parametrize("text", HIDDEN)
def test_a_directive_that_no_compiler_follows_is_no_include(
    tree: Make, text: str, source: str
) -> None:
    """What it names may exist, lie outside of the root, or be no file's name at all."""
    for operand in ('"h.h"', '"../../secret"', '"h.txt"', "MACRO", '"/etc/passwd"'):
        written = text.replace('"h.h"', operand)
        root = tree("", {f"k/{source}": written, "k/h.h": "", "k/h.txt": "", "../secret": "x"})
        assert list(read_sources(root, f"k/{source}")) == [f"k/{source}"]


@pytest.mark.parametrize("source", ["main.cpp", "main.cu"])
@pytest.mark.parametrize("text", MAYBE)
def test_under_another_condition_a_file_is_copied_if_it_exists(
    tree: Make, text: str, source: str
) -> None:
    root = tree("", {f"k/{source}": text})
    assert list(read_sources(root, f"k/{source}")) == [f"k/{source}"]
    (root / "k" / "h.h").touch()
    assert sorted(read_sources(root, f"k/{source}")) == ["k/h.h", f"k/{source}"]


def test_other_directives_in_comments_and_strings_are_none_either(tree: Make) -> None:
    text = (
        '/*\n#line 1 "/etc/passwd"\n# 1 "/etc/passwd"\n*/\n'
        '// asm(".incbin \\"/etc/passwd\\"");\n'
        '#if 0\n#if __has_embed("h.h")\n#endif\nasm(".incbin \\"h.h\\"");\n#endif\n'
        '#error __has_embed is missing\n#define WHY "needs __has_include"\n'
    )
    assert scan(tree(text)) == ["k/main.cpp"]


@pytest.mark.parametrize(
    "text",
    [
        'asm(R"(\n.incbin "/etc/passwd"\n)");',
        "#if X == '\"' && __has_include(\"/etc/passwd\") && Y == '\"'\n#endif\n",
        '#if ("/*" == 0)\n#include MACRO\n#endif\n',
        'FOOR"x(\n#include "/etc/passwd"\n)x";',
        '"s"R"x(\n#include "/etc/passwd"\n)x";',
        '\\u0041R"x(\n#include "/etc/passwd"\n)x";',
        'it\'s "/*"\n#include "/etc/passwd"\n/* */',
        '#if 0\n#else\n#else\n#include "/etc/passwd"\n#endif\n',
        '#if\\u0041 0\n#if 0\n#endif\n#include "/etc/passwd"\n',
        'int x; // \r/*\n#include "/etc/passwd"\n*/',
        '#if 0\nauto x = R"(\n#endif\n#include "/etc/passwd"\n)";\n#endif\n',
    ],
)
def test_where_compilers_may_disagree_every_directive_counts(tree: Make, text: str) -> None:
    with pytest.raises(SpaceError):
        scan(tree(text))


@pytest.mark.parametrize("text", [*SPELLINGS, *SPELLINGS_OF_NVRTC])
def test_every_spelling_of_an_include_is_seen(tree: Make, text: str) -> None:
    assert "k/h.h" in scan(tree(text, {"k/h.h": "int seen;\n"}))


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../../secret"',
        '#include "../k/../../secret"',
        "#include <../secret>",
        "#include <a/../../secret>",
        "#define NAME <vector>\n#include NAME",
        '#define NAME "h.h"\n#include NAME',
        "#include",
        '#include "',
        '#embed "../../secret"',
        '#if __has_include("/etc/passwd")\n#endif',
        '#define PROBE __has_include\n#if PROBE("/etc/passwd")\n#endif',
        '#if __has_embed("h.h")\n#endif',
        '#line 1 "/etc/passwd"\n#error x',
        '#define HERE 1 "/etc/passwd"\n#line HERE\n#error x',
        '# 1 "/etc/passwd"\n#error x',
        '#define HERE "/etc/passwd"\n# 1 HERE\n#error x',
        'asm(".incbin \\"/etc/passwd\\"");',
        'asm("nop\\n.include \\"/etc/passwd\\"");',
        '#include "h\0.h"',
        b'#include "\xff.h"',
    ],
)
def test_what_could_bring_in_another_file_is_refused(tree: Make, text: str | bytes) -> None:
    root = tree(text, {"../secret": "x", "k/h.h": ""})
    with pytest.raises(SpaceError) as caught:
        scan(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "// #include MACRO would be wrong here\n",
        '/* Use it so:\n *   #include "nothing.h"\n * and #include the header. */\n',
        "/*\n#1 the first reason\n# 2 the second\n*/\n",
        '// #include "debug.h"\n',
        '#if 0\n#include "not_there.h"\n#endif\n',
        "#ifdef __has_include\n#if __has_include(<omp.h>)\n#include <omp.h>\n#endif\n#endif\n",
        "#if defined(__has_include) && __has_include(<cuda_bf16.h>)\n#endif\n",
        '#define INCLUDED(x) #x\nconst char* text = "#include <a>";\n',
        "#pragma once\n#pragma omp parallel for\n#line 20\n",
        "settings.include(x); int include = 3; a[0]%:b;\n",
        "#include <experimental/simd>\n#include <cuda/std/cstdint>\n#include <c++config.h>\n",
        '#include "omp.h"\n',
        'asm volatile("cp.async.wait_all;\\n" ::: "memory");\n',
        'auto ptx = R"(\n  { .reg .pred p; }\n)";\n',
        "#error include a header first\n",
    ],
)
def test_a_normal_kernel_is_not_refused(tree: Make, text: str) -> None:
    assert scan(tree(text)) == ["k/main.cpp"]


def test_every_kernel_that_ships_is_read() -> None:
    for path in sorted((ROOT / "kernels").rglob("*.c*")):
        assert read_sources(ROOT, path.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("name", ["SECRET.txt", "id_rsa", ".env", "h.yaml", "h.h.bak", ".h"])
@pytest.mark.parametrize("directive", ["include", "import", "embed"])
def test_a_file_that_is_no_code_is_not_handed_to_a_compiler(
    tree: Make, name: str, directive: str
) -> None:
    """A compiler's message about such a file would print its contents."""
    root = tree(f'#{directive} "{name}"\n', {f"k/{name}": "hunter2"})
    for source in ("k/main.cpp", f"k/{name}"):
        with pytest.raises(SpaceError, match=rf"source k/{name} has no suffix of code"):
            read_sources(root, source)


def test_a_link_with_another_name_is_no_way_around_that(tree: Make) -> None:
    root = tree('#include "plain.h"\n', {"SECRET.txt": "hunter2"})
    (root / "k" / "plain.h").symlink_to("../SECRET.txt")
    with pytest.raises(SpaceError, match=r"source k/plain\.h has no suffix of code"):
        scan(root)


def test_symbolic_links_do_not_lead_out_of_the_root(tree: Make, tmp_path: Path) -> None:
    root = tree('#include "link.h"\n', {"k/inside.h": "inside", "other/x.h": "x", "secret.h": "s"})
    link = root / "k" / "link.h"
    link.symlink_to("inside.h")
    assert scan(root) == ["k/link.h", "k/main.cpp"]
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere.h")
    (tmp_path / "elsewhere.h").write_text("secret")
    with pytest.raises(SpaceError, match="outside the space's root"):
        scan(root)
    link.unlink()
    link.symlink_to("link.h")  # a circle
    assert scan(root) == ["k/main.cpp"]
    # The compiler opens folder/../secret.h below where `folder` points, not beside it.
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "far" / "secret.h").write_text("secret")
    (root / "k" / "folder").symlink_to(tmp_path / "far" / "away")
    (root / "k" / "main.cpp").write_text('#include "folder/../secret.h"\n')
    with pytest.raises(SpaceError, match="leaves a symbolic link"):
        scan(root)


def test_the_root_itself_may_be_a_symbolic_link(tree: Make, tmp_path: Path) -> None:
    root = tree('#include "../k/a.h"\n', {"k/a.h": ""})
    (tmp_path / "alias").symlink_to(root)
    assert scan(tmp_path / "alias") == ["k/a.h", "k/main.cpp"]


def test_huge_missing_and_strange_sources_are_refused(tree: Make) -> None:
    root = tree('#include "big.h"\n')
    (root / "k" / "big.h").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(SpaceError, match=r"k/big.h is larger than 4 MiB"):
        scan(root)
    (root / "k" / "big.h").unlink()
    os.mkfifo(root / "k" / "big.h")
    with pytest.raises(SpaceError, match=r"k/big.h: expected a file, found a named pipe"):
        scan(root)
    missing = r"cannot read source k/none.cpp: No such file or directory under /.*; `root:` in"
    with pytest.raises(SpaceError, match=missing):
        read_sources(root, "k/none.cpp")
    with pytest.raises(SpaceError, match="outside the space's root"):
        read_sources(root, "../secret.cpp")


def test_a_fingerprint_covers_names_and_contents() -> None:
    prints = {
        fingerprint(sources)
        for sources in (
            {"a": b"1", "b": b"2"},
            {"a": b"2", "b": b"1"},
            {"a": b"12", "b": b""},
            {"a": b"1", "c": b"2"},
            {"a": b"1"},
        )
    }
    assert len(prints) == 5
    assert fingerprint({"a": b"1", "b": b"2"}) == fingerprint({"b": b"2", "a": b"1"})


# --- against the real preprocessors ---------------------------------------------------------

PIECES = (
    "#", "#", "%:", "??=", "include", "include_next", "import", '"h.h"', '"h.h"', "<vector>",
    '#include "h.h"', '\n#include "h.h"\n', "/*", "*/", "//", "\\\n", "\\ \n", "\n", "\n", "\r",
    "\r\n", " ", "\t", "\f", "\v", '"', "'", 'R"x(', ')x"', "0", "int a;", "_Pragma", "##",
    "#define I include\n", "#if 1\n", "#endif\n", "??/\n", "\\", "#if 0\n", "#else\n",
    "\n#elif 1\n", "\n#elif 0\n", "\n#if I\n", "u8", ")", "(", "1'0",
)  # fmt: skip


def _texts(count: int) -> list[str]:
    rng = random.Random(20)
    return ["".join(rng.choices(PIECES, k=rng.randint(2, 14))) for _ in range(count)]


def _write_all(root: Path, texts: list[str]) -> list[str]:
    for index, text in enumerate(texts):
        (root / "k" / f"{index}.cpp").write_text(text, newline="", encoding="utf-8")
    return [f"{index}.cpp" for index in range(len(texts))]


def _unseen(root: Path, texts: list[str], read: set[int]) -> list[str]:
    """Of the texts that made a compiler `read` h.h, those in which the scan did not see it."""
    unseen = []
    for index in sorted(read):
        try:
            seen = "k/h.h" in read_sources(root, f"k/{index}.cpp")
        except SpaceError:
            seen = True
        if not seen:
            unseen.append(texts[index])
    return unseen


COUNTS = [150, pytest.param(400, marks=pytest.mark.soak)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("count", COUNTS)
def test_what_the_preprocessor_reads_the_scan_has_seen(tree: Make, count: int) -> None:
    texts = [*_texts(count), *HIDDEN, *SPELLINGS]
    root = tree("", {"k/h.h": "int seen;\n"})
    read = _read_by_preprocessor(root / "k", _write_all(root, texts))
    assert not read & set(range(count, count + len(HIDDEN))), "they are hidden indeed"
    assert read >= set(range(len(texts) - len(SPELLINGS), len(texts))), "no spelling is idle"
    assert len(read) > count / 6, "the pieces must make real includes"
    assert _unseen(root, texts, read) == []


@pytest.mark.parametrize("count", COUNTS)
def test_what_nvrtc_reads_the_scan_has_seen(tree: Make, count: int) -> None:
    nvrtc = pytest.importorskip("cupy.cuda", exc_type=ImportError).nvrtc
    texts = [*_texts(count), *HIDDEN, *SPELLINGS, *SPELLINGS_OF_NVRTC]
    root = tree("", {"k/h.h": "#error seen\n"})
    read = set()
    with contextlib.chdir(root):
        for index, name in enumerate(_write_all(root, texts)):
            source = (root / "k" / name).read_bytes().decode()
            program = nvrtc.createProgram(source, f"k/{name}", [], [])
            with contextlib.suppress(nvrtc.NVRTCError):
                nvrtc.compileProgram(program, ["--std=c++17"])
            if "k/h.h(1): " in nvrtc.getProgramLog(program):
                read.add(index)
            nvrtc.destroyProgram(program)
    assert not read & set(range(count, count + len(HIDDEN))), "they are hidden indeed"
    last = len(texts) - len(SPELLINGS_OF_NVRTC)
    assert read >= set(range(last, len(texts))), "no spelling is idle"
    assert len(read) > count / 8, "the pieces must make real includes"
    assert _unseen(root, texts, read) == []


def _read_by_preprocessor(folder: Path, names: list[str]) -> set[int]:
    """Which of the files made g++ open h.h, errors or not."""
    standard = next(flag for flag in FLAGS if flag.startswith("-std="))
    # `g++ -E -H` names the headers it opens; the shell runs one after the other.
    script = f'for f in "$@"; do echo "== $f"; g++ {standard} -E -H -o /dev/null "$f"; done 2>&1'
    output = subprocess.run(
        ["bash", "-c", script, "bash", *names], cwd=folder, capture_output=True, check=False
    ).stdout.decode(errors="replace")
    read = set()
    for block in output.split("== ")[1:]:
        lines = block.splitlines()
        if any(line.startswith(".") and line.endswith(" h.h") for line in lines[1:]):
            read.add(int(lines[0].removesuffix(".cpp")))
    return read
