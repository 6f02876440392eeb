"""Kernel sources: the files a kernel is made of, and their fingerprint.

A kernel may include its own files, by a quoted name relative to the file that includes it, and
the compiler's headers, in angle brackets. Any directive that could bring another file of the
machine into the machine code or into a compiler's message is refused. So the fingerprint covers
everything that the machine code is made of, except the compiler and its headers.

A file without a suffix of code is refused: given a text file or a private key, a compiler would
quote its content in an error.

A directive in a comment, in a string or under `#if 0` is none. Where compilers might disagree on
that (`preprocessing.py`), every directive counts: too many are found rather than too few. Under any
other condition a file is copied if it exists. A quoted file that does not exist is left to the
compiler. Of an assembler's directives the scan knows only the plain spelling: `dependencies.py`
finds the others.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from evotune.backends.base.preprocessing import code_of
from evotune.errors import SpaceError, UsageError
from evotune.languages import all_languages
from evotune.util.files import read_regular

_MAX_BYTES = 4 << 20
_INCLUDED = {".c", ".h", ".hh", ".hpp", ".hxx", ".cuh"}  # beside the files of each language
_INCLUDED |= {".def", ".inc", ".inl", ".ipp", ".tcc", ".tpp", ".txx"}

# Phase 2 of translation joins spliced lines. GCC allows blanks between backslash and line end,
# NVRTC allows none: a directive found under either rule counts.
_SPLICES = (
    re.compile(rb"\\[ \t\f\v\0]*(?:\r\n|\n|\r)"),
    re.compile(rb"\\(?:\r\n|\n|\r)"),
)
_GAP = rb"(?:[ \t\f\v\0]|/\*(?s:.*?)\*/)*+"
# Only blanks and comments come before a directive on its line. `%:` also means #.
_HASH = re.compile(rb"#|%:")
_INCLUDE = re.compile(_GAP + rb"(include_next|include|import|embed)(?![A-Za-z0-9_])" + _GAP)
# `#line 3 "file"` and `# 3 "file"`, or a macro in that place, make the compiler print lines of
# that file.
_LINE = re.compile(
    _GAP + rb"(?:line(?![A-Za-z0-9_])" + _GAP + rb"(?![0-9]+[ \t]*[\r\n])"
    rb"|[0-9]+" + _GAP + rb'(?:"|[A-Za-z_][A-Za-z0-9_]*' + _GAP + rb"(?:[\r\n(0-9]|//|\Z)))"
)
_SYSTEM_HEADER = rb"<[A-Za-z0-9_](?:[A-Za-z0-9_/+-]|\.(?!\.))*>"
_OPERAND = re.compile(_SYSTEM_HEADER + rb'|"([^"\r\n]*)"')
# A test of whether a file exists makes the machine code depend on that file.
_PROBE = re.compile(
    rb"(?:ifn?def[ \t]+|defined[ \t]*\(?[ \t]*)__has_\w+"
    rb"|__has_(?:include|include_next|embed)[ \t]*\([ \t]*" + _SYSTEM_HEADER + rb"[ \t]*\)"
    rb'|__has_(?:include|include_next)[ \t]*\([ \t]*"([^"\r\n]*)"[ \t]*\)'
    rb"|(__has_(?:include|include_next|embed)\b)"
)
_LITERAL = re.compile(rb"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\([ \t]*"[^"\n]*\"""")
_ASSEMBLER_FILE = re.compile(rb'(?:["(;\r\n]|\\[nt])[ \t]*(\.(?:incbin|include))\b')


def _is_code(suffix: str) -> bool:
    return suffix in _INCLUDED or any(suffix in known.suffixes for known in all_languages())


def told_folder(folder: Path) -> str:
    """The folder as compilers and workers are told it. UsageError for a name that they would not
    understand: `#line` takes no line break, and messages between processes are UTF-8."""
    text = str(folder.absolute())
    why = "has a line break" if "\n" in text else ""
    if any("\ud800" <= each <= "\udfff" for each in text):  # bytes that `os.fsdecode` keeps so
        why = "is not UTF-8"
    if why:
        raise UsageError(f"the name of the folder {text!r} {why}; fix: use another folder")
    return text


def read_sources(
    root: Path, source: str, written: Mapping[str, bytes] = MappingProxyType({})
) -> dict[str, bytes]:
    """Relative path -> content of `source` and every file under `root` that it includes, directly
    or not.

    `written` gives the contents of files that need not exist under `root` yet. SpaceError when a
    file is missing, too large, outside `root`, without a suffix of code, or must not be included.
    """
    if source.endswith(".py"):  # its imports must be installed packages
        return {source: _read(root, source, written)}
    found: dict[str, bytes] = {}
    queue = [source]
    while queue:
        name = queue.pop()
        if name not in found:
            found[name] = _read(root, name, written)
            queue += _includes(root, name, found[name], written)
    return dict(sorted(found.items()))


def fingerprint(sources: Mapping[str, bytes]) -> str:
    """The SHA-256 of names and contents."""
    digest = hashlib.sha256()
    for name, content in sorted(sources.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _read(root: Path, name: str, written: Mapping[str, bytes]) -> bytes:
    if name in written:
        return written[name]
    path = root / name
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(root)):
        raise SpaceError(f"source {name} lies outside the space's root")
    if not (_is_code(path.suffix) and _is_code(real.suffix)):
        raise SpaceError(f"source {name} has no suffix of code, such as .cpp, .h, .cuh or .inc")
    try:
        content = read_regular(path, _MAX_BYTES + 1)
    except OSError as error:
        lost = isinstance(error, FileNotFoundError)
        hint = f" under {root}; `root:` in the space says where to look" if lost else ""
        raise SpaceError(f"cannot read source {name}: {error.strerror}{hint}") from error
    if len(content) > _MAX_BYTES:
        raise SpaceError(f"source {name} is larger than {_MAX_BYTES >> 20} MiB")
    return content


def _includes(root: Path, name: str, content: bytes, written: Mapping[str, bytes]) -> list[str]:
    """Root-relative names of the quoted includes that exist; others are left to the compiler."""
    located = (_locate(root, name, target, written) for target in _quoted(name, content))
    return [target for target in located if target is not None]


@functools.lru_cache(maxsize=128)
def _quoted(name: str, content: bytes) -> tuple[str, ...]:
    """The quoted files that a source includes or looks for, as it names them. Kernels share
    headers, so the same ones are read again and again."""
    targets: set[str] = set()
    for splice in _SPLICES:
        code = code_of(content, splice)
        text = splice.sub(b"", content) if code is None else code.text
        conditions = text if code is None else _LITERAL.sub(_in_brackets, code.conditions)
        if match := _ASSEMBLER_FILE.search(text):
            raise _unknown_file(name, match[1])
        targets.update(_probed(name, conditions))
        targets.update(_targets(name, text, certain=code is not None))
    return tuple(sorted(targets))


def _in_brackets(literal: re.Match[bytes]) -> bytes:
    """A literal after an opening bracket as it is, since a probe may have it; no other."""
    return literal[0] if literal[0][:1] == b"(" else b""


def _unknown_file(name: str, word: bytes) -> SpaceError:
    return SpaceError(
        f"{name}: {word.decode()} may read a file that evotune does not copy with the kernel; use "
        "#include"
    )


def _probed(name: str, conditions: bytes) -> Iterator[str]:
    """The quoted files that conditions look for."""
    for match in _PROBE.finditer(conditions):
        if match[2]:
            raise _unknown_file(name, match[2])
        if match[1] is not None:
            yield _decoded(name, match[1])


def _targets(name: str, text: bytes, *, certain: bool) -> Iterator[str]:
    for mark in _HASH.finditer(text):
        if not _begins_line(text, mark.start(), certain=certain):
            continue
        if _LINE.match(text, mark.end()):
            raise SpaceError(f"{name}: a #line directive must not name a file")
        directive = _INCLUDE.match(text, mark.end())
        if directive:
            yield from _operand(name, directive.group(1).decode(), text, directive.end())


def _begins_line(text: bytes, position: int, *, certain: bool) -> bool:
    """Whether only blanks come before `position` on its line. Where it is not certain what is a
    comment, the end of one may come before it as well."""
    while position and text[position - 1] in b" \t\f\v\0":
        position -= 1
    ends = (b"\n",) if certain else (b"\n", b"\r", b"*/", b"\xef\xbb\xbf")
    return position == 0 or text.endswith(ends, 0, position)


def _operand(name: str, directive: str, text: bytes, position: int) -> Iterator[str]:
    match = _OPERAND.match(text, position)
    if match is None:
        rest = re.split(rb"[\r\n]", text[position : position + 80])[0].decode(errors="replace")
        raise SpaceError(
            f'{name}: expected #{directive} <header> or "file", got {rest or "nothing"}'
        )
    if match.group(1) is not None:
        yield _decoded(name, match.group(1))


def _decoded(name: str, target: bytes) -> str:
    try:
        return target.decode()
    except UnicodeDecodeError:
        raise SpaceError(f"{name}: an include's name is not UTF-8") from None


def _locate(root: Path, includer: str, target: str, written: Mapping[str, bytes]) -> str | None:
    """Root-relative path of a quoted include; None when there is no such file."""
    outside = SpaceError(f"{includer}: include {target} lies outside the space's root")
    if target.startswith("/"):
        raise outside
    parts = list(PurePosixPath(includer).parent.parts)
    for part in PurePosixPath(target).parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise outside
    if "\0" in target or not parts:
        raise SpaceError(f"{includer}: include {target!r} does not name a file")
    name = "/".join(parts)
    # The compiler opens the name as written. If `..` follows a symbolic link, that is another file.
    folder = os.path.realpath((root / includer).parent / os.path.dirname(target))
    if folder != os.path.realpath((root / name).parent) and os.path.isdir(folder):
        raise SpaceError(
            f"{includer}: include {target} leaves a symbolic link by `..`; name the folder itself"
        )
    if os.path.lexists(root / f"{name}.gch"):
        raise SpaceError(
            f"{includer}: {name}.gch, a precompiled header, would be read in place of "
            f"{target}; delete it"
        )
    return name if name in written or os.path.exists(root / name) else None
