"""Kernel sources: the files a kernel is made of, and their fingerprint.

A kernel may include its own files, by a quoted name relative to the file that includes it, and
the compiler's headers, in angle brackets. Everything that could bring in another file of the
machine, into the machine code or into a compiler's message, is refused. So the fingerprint
covers all that the machine code is made of, but for the compiler and its headers.

A file without a suffix of code is refused: a compiler that is handed a text file, or a key, prints
its words in an error.

The scan takes a directive for one whether or not it stands in a comment or under a false
`#if`. It errs on that side only, and a quoted file that does not exist is left to the compiler.
It knows the plain spelling of an assembler's directive alone: `dependencies.py` finds the others.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from evotune.errors import SpaceError
from evotune.regular_file import read_regular

_MAX_BYTES = 4 << 20
_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".py", ".h", ".hh", ".hpp", ".hxx", ".cuh"}
_SUFFIXES |= {".def", ".inc", ".inl", ".ipp", ".tcc", ".tpp", ".txx"}

# Phase 2 of translation joins spliced lines. GCC allows blanks between backslash and line end,
# NVRTC allows none: a directive of either reading counts.
_SPLICES = (
    re.compile(rb"\\[ \t\f\v\0]*(?:\r\n|\n|\r)"),
    re.compile(rb"\\(?:\r\n|\n|\r)"),
)
_GAP = rb"(?:[ \t\f\v\0]|/\*(?s:.*?)\*/)*+"
# A directive is the first thing on its line, but for blanks and comments. `%:` spells # too.
_HASH = re.compile(rb"#|%:")
_INCLUDE = re.compile(_GAP + rb"(include_next|include|import|embed)(?![A-Za-z0-9_])" + _GAP)
# `#line 3 "file"` and `# 3 "file"`, or a macro there, make the compiler print that file's lines.
_LINE = re.compile(
    _GAP + rb"(?:line(?![A-Za-z0-9_])" + _GAP + rb"(?![0-9]+[ \t]*[\r\n])"
    rb"|[0-9]+" + _GAP + rb'(?:"|[A-Za-z_][A-Za-z0-9_]*' + _GAP + rb"(?:[\r\n(0-9]|//|\Z)))"
)
_SYSTEM_HEADER = rb"<[A-Za-z0-9_](?:[A-Za-z0-9_/+-]|\.(?!\.))*>"
_OPERAND = re.compile(_SYSTEM_HEADER + rb'|"([^"\r\n]*)"')
# Asking whether a file is there makes the machine code depend on it.
_PROBE = re.compile(
    rb"(?:ifn?def[ \t]+|defined[ \t]*\(?[ \t]*)__has_\w+"
    rb"|__has_(?:include|include_next|embed)[ \t]*\([ \t]*" + _SYSTEM_HEADER + rb"[ \t]*\)"
    rb"|(__has_(?:include|include_next|embed)\b)"
)
_ASSEMBLER_FILE = re.compile(rb'(?:["(;\r\n]|\\[nt])[ \t]*(\.(?:incbin|include))\b')


def read_sources(
    root: Path, source: str, written: Mapping[str, bytes] = MappingProxyType({})
) -> dict[str, bytes]:
    """Relative path -> content of `source` and every file of the root it includes, transitively.

    The files `written` need not lie under the root yet: their contents are given.
    SpaceError when a file is missing, too large, outside `root`, no code by its suffix, or not to
    be included.
    """
    if source.endswith(".py"):  # Triton's; what it imports must be installed
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
    """SHA-256 over names and contents."""
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
    if not {path.suffix, real.suffix} <= _SUFFIXES:
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
    """Root-relative names of the quoted includes that exist; the rest is the compiler's matter."""
    targets: set[str] = set()
    for text in {splice.sub(b"", content) for splice in _SPLICES}:
        for pattern in (_PROBE, _ASSEMBLER_FILE):
            for match in pattern.finditer(text):
                if match.group(1):
                    word = match.group(1).decode()
                    raise SpaceError(
                        f"{name}: {word} may name a file that is not one of the kernel's"
                    )
        targets.update(_targets(name, text))
    located = (_locate(root, name, target, written) for target in sorted(targets))
    return [target for target in located if target is not None]


def _targets(name: str, text: bytes) -> Iterator[str]:
    for mark in _HASH.finditer(text):
        if not _begins_line(text, mark.start()):
            continue
        if _LINE.match(text, mark.end()):
            raise SpaceError(f"{name}: a #line directive must not name a file")
        directive = _INCLUDE.match(text, mark.end())
        if directive:
            yield from _operand(name, directive.group(1).decode(), text, directive.end())


def _begins_line(text: bytes, position: int) -> bool:
    """Whether only blanks and a comment's end come before `position` on its line."""
    while position and text[position - 1] in b" \t\f\v\0":
        position -= 1
    return position == 0 or text.endswith((b"\n", b"\r", b"*/", b"\xef\xbb\xbf"), 0, position)


def _operand(name: str, directive: str, text: bytes, position: int) -> Iterator[str]:
    match = _OPERAND.match(text, position)
    if match is None:
        rest = re.split(rb"[\r\n]", text[position : position + 80])[0].decode(errors="replace")
        raise SpaceError(
            f'{name}: expected #{directive} <header> or "file", got {rest or "nothing"}'
        )
    if match.group(1) is not None:
        try:
            yield match.group(1).decode()
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
        raise SpaceError(f"{includer}: include {target!r} names no file")
    name = "/".join(parts)
    # The compiler opens the name as written: with `..` past a symbolic link, another file.
    folder = os.path.realpath((root / includer).parent / os.path.dirname(target))
    if folder != os.path.realpath((root / name).parent) and os.path.isdir(folder):
        raise SpaceError(f"{includer}: include {target} goes through a symbolic link")
    if os.path.lexists(root / f"{name}.gch"):
        raise SpaceError(
            f"{includer}: {name}.gch, a precompiled header, would be read for {target}"
        )
    return name if name in written or os.path.exists(root / name) else None
