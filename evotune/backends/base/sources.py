"""Kernel sources: the files a kernel is made of, and their fingerprint.

A kernel may include its own files, by a quoted name relative to the file that includes it, and
the compiler's headers, in angle brackets; a Python file may import files of its own folder. Any
directive that could bring another file of the
machine into the machine code or into a compiler's message is refused. So the fingerprint covers
everything that the machine code is made of, except the compiler and its headers.

A file without a suffix of code is refused: given a text file or a private key, a compiler would
quote its content in an error.

A directive in a comment, in a string or under `#if 0` does not count. If compilers might disagree
on that (`code_of`), every directive counts, so that none is missed. Under any other condition a
file is copied if it exists. A quoted file that does not exist is left to the compiler. The scan
recognizes only the plain spelling of assembler directives: `cpp_compiler.py` finds the others.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from evotune.backends.base.python_imports import imported_files
from evotune.errors import SpaceError, UsageError
from evotune.languages import all_languages
from evotune.util.files import read_regular

_MAX_BYTES = 4 << 20
_INCLUDED = {".c", ".h", ".hh", ".hpp", ".hxx", ".cuh"}  # in addition to the files of each language
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
    """The folder's path as text for compilers and workers. Raises UsageError for a name that they
    cannot handle: `#line` allows no line break, and messages between processes are UTF-8."""
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
    """The contents of `source` and of every file under `root` that it includes, directly or
    indirectly, by their relative paths.

    `written` gives the contents of files that need not exist under `root` yet. Raises SpaceError if
    a file is missing, too large, outside `root`, without a suffix of code, or must not be included.
    """
    found: dict[str, bytes] = {}
    queue = [source]
    while queue:
        name = queue.pop()
        if name not in found:
            found[name] = _read(root, name, written)
            if name.endswith(".py"):
                queue += imported_files(
                    name, found[name], lambda file: _is_there(root, file, written)
                )
            else:
                queue += _includes(root, name, found[name], written)
    return dict(sorted(found.items()))


def _is_there(root: Path, name: str, written: Mapping[str, bytes]) -> bool:
    return name in written or (root / name).is_file()


def fingerprint(sources: Mapping[str, bytes]) -> str:
    """The SHA-256 over the names and contents of the files."""
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
    """Whether only blanks come before `position` on its line. If it is uncertain what is a comment,
    the end of a comment may also come before it."""
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
    """Root-relative path of a quoted include; None if there is no such file."""
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


# The code of a C++ source: without comments, and without the groups that `#if 0` leaves out.
#
# A text that a compiler does not read must not bring files into a run, and text that it does read
# must not be taken for a comment. So `code_of` gives up wherever compilers might disagree on what
# is a comment, a string or a group: at an unclosed quote before a comment, say.
_NAME = rb"A-Za-z0-9_$\x80-\xff"
_TOKEN = re.compile(
    rb"(?P<line_comment>//[^\n]*)"
    rb"|(?P<comment>/\*(?s:.*?)\*/)"
    rb"|(?P<header>(?:\#|%:)[ \t]*(?:include_next|include|import)[ \t]*<[A-Za-z0-9_/+.-]*>)"
    rb"|(?P<number>\.?[0-9](?:[eEpP][+-]|'?[A-Za-z0-9_]|\.)*)"
    rb'|(?P<raw>(?:u8|[uUL])?R"([^ ()\\\t\v\f\n]{0,16})\((?s:.*?)\)\6")'
    rb"|(?P<word>[A-Za-z_$\x80-\xff][" + _NAME + rb"]*)"
    rb"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    rb"|(?P<quote>[\"'])"
    rb"|(?P<opened>/\*)"
    rb"|(?P<rest>[^A-Za-z0-9_$\x80-\xff\"'/\n#%.]+|.|\n)"
)
_BOM = b"\xef\xbb\xbf"
# Bytes that compilers treat differently: a lone carriage return ends a line for some of them.
_STRANGE = re.compile(rb"[\0-\x08\x0e-\x1f]|\r|\?\?/")
_DOUBT, _BREAK = b"\x01", b"\x02"
"""Marks in the text without strings and comments. A doubt: a quote and a comment on one line, which
a compiler that skips the group may read differently. A break: a line's end inside a raw string."""
_MARKS = re.compile(rb"[\x01\x02]")
_BLANK = rb"[ \t\f\v]*"
_DIRECTIVE = re.compile(
    _BLANK + rb"(?:\#|%:)" + _BLANK + rb"(\w*+)(?![$\\\x80-\xff])" + _BLANK + rb"(.*)"
)
_CONDITIONS = {b"if", b"ifdef", b"ifndef", b"elif", b"define"}
_OPENS = {b"if", b"ifdef", b"ifndef"}
_FILES = {b"include", b"include_next", b"import", b"embed", b"line"}


@dataclass(frozen=True)
class Code:
    """A source without what no compiler reads: comments, `#if 0`. Its lines keep their numbers."""

    text: bytes
    conditions: bytes
    """The directives that may contain a test of whether a file exists."""


class _Undecided(Exception):
    """Compilers may disagree on what is code here."""


def code_of(content: bytes, splice: re.Pattern[bytes]) -> Code | None:
    """The code of a source in which matches of `splice` join lines; None if that is uncertain."""
    try:
        return _live(_bare(content.removeprefix(_BOM).replace(b"\r\n", b"\n"), splice))
    except _Undecided:
        return None


def _bare(content: bytes, splice: re.Pattern[bytes]) -> bytes:
    """The text with its lines joined, without comments, and with each raw string on one line."""
    if _STRANGE.search(content):
        raise _Undecided
    joins, removed = [], 0
    for match in splice.finditer(content):
        joins.append(match.start() - removed)
        removed += match.end() - match.start()
    text = splice.sub(b"", content)
    parts: list[bytes] = []
    line = 0  # the place in `parts` where the current line begins
    before = ""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        _require_certain(kind, before, match)
        if kind == "raw" and _joined_within(joins, match):
            raise _Undecided
        if kind == "comment" and b"\n" in match[0]:
            _require_plain(
                b"".join(parts[line:]).strip(), _rest_of_line(text, match.end()).lstrip()
            )
        parts.append(_bare_token(kind, match[0], parts[line:]))
        if match[0] == b"\n":
            line = len(parts)
        before = kind
    return b"".join(parts)


def _rest_of_line(text: bytes, position: int) -> bytes:
    return text[position : text.find(b"\n", position) % (len(text) + 1)]


def _require_plain(before: bytes, after: bytes) -> None:
    """Checks the text around a comment of several lines: NVRTC obeys a directive that follows the
    comment, whatever code came before."""
    if before and (before[:1] in (b"#", b"%") or after[:1] in (b"#", b"%", b"/")):
        raise _Undecided


def _bare_token(kind: str, token: bytes, line: list[bytes]) -> bytes:
    """A token without its comment or line breaks. `line`: the tokens before it on its line."""
    if kind == "line_comment":
        return b""
    if kind == "comment":
        quoted = any(b'"' in part or b"'" in part for part in line)
        return b" " + _DOUBT if quoted else b" "
    if kind == "raw" and b"\n" in token:
        if b"".join(line).lstrip(b" \t\f\v").startswith((b"#", b"%:")):
            raise _Undecided
        return token.replace(b"\n", _BREAK)
    if kind == "text" and (b"/*" in token or b"*/" in token):
        return token + _DOUBT
    return token


def _require_certain(kind: str, before: str, match: re.Match[bytes]) -> None:
    text, end = match.string, match.end()
    quote = text[end : end + 1] in (b'"', b"'")
    if kind == "opened" or (kind == "number" and quote):
        raise _Undecided
    if kind == "word" and match[0].endswith(b"R") and text.startswith(b'"', end):
        raise _Undecided  # a macro or a raw string, according to what makes a name
    if kind == "raw" and (
        before in ("text", "quote", "number", "word") or text.endswith(b"\\", 0, match.start())
    ):
        raise _Undecided
    if kind == "quote":  # it has no end on its line
        rest = _rest_of_line(text, end)
        if b"/*" in rest or b'"' in rest:
            raise _Undecided


def _joined_within(joins: list[int], match: re.Match[bytes]) -> bool:
    """Whether lines were joined in a raw string, in which they must not be."""
    place = bisect.bisect_right(joins, match.start())
    return place < len(joins) and joins[place] < match.end()


@dataclass
class _Group:
    """An `#if` with its branches: whether the current branch may be compiled, and whether a branch
    that is certainly compiled came before."""

    live: bool
    decided: bool
    last: bool = False


def _live(text: bytes) -> Code:
    groups: list[_Group] = []
    code: list[bytes] = []
    conditions: list[bytes] = []
    for line in text.split(b"\n"):
        found = _DIRECTIVE.fullmatch(line)
        name, operand = (found[1], _MARKS.sub(b"", found[2]).strip()) if found else (b"", b"")
        was_live = all(group.live for group in groups)
        outer_live = all(group.live for group in groups[:-1])
        _follow(groups, name, operand)
        if not (was_live or (outer_live and name == b"elif")):
            if _MARKS.search(line):
                raise _Undecided
            code.append(b"")
            continue
        names_file = name in _FILES or (found and b"__has_" in operand)
        if names_file and b"\\" in operand:  # in a header's name it is no escape
            raise _Undecided
        code.append(line.replace(_DOUBT, b"").replace(_BREAK, b";"))
        if name in _CONDITIONS:
            conditions.append(code[-1])
    if groups:
        raise _Undecided
    return Code(b"\n".join(code), b"\n".join(conditions))


def _follow(groups: list[_Group], name: bytes, operand: bytes) -> None:
    """Opens, continues or closes a group. Only `0` and `1` decide a condition."""
    if name in _OPENS:
        known = name == b"if" and operand in (b"0", b"1")
        groups.append(_Group(operand != b"0" or not known, known and operand == b"1"))
    elif name in (b"elif", b"else", b"endif"):
        if not groups or (groups[-1].last and name != b"endif"):
            raise _Undecided
        group = groups[-1]
        if name == b"endif":
            groups.pop()
        elif name == b"else":
            group.live, group.last = not group.decided, True
        else:
            group.live = not group.decided and operand != b"0"
            group.decided = group.decided or operand == b"1"
    elif name in (b"elifdef", b"elifndef"):  # a directive since C++23, which some compilers know
        raise _Undecided


# Checks that each name given with `-D` still has its value at the end of the source.
# A header may redefine such a name, as <climits> does INT_MAX, and compilers do not warn of that in
# their own headers: the parameter would have no effect. So text that checks each name follows the
# source. It makes no code. A name that is no longer a macro passes: a source may `#undef` its
# names.

_FILE = "parameter"
_ERROR_LINE = re.compile(r"^(.*)\berror\b(.*)$", re.MULTILINE | re.IGNORECASE)
_CHECK = re.compile(rf"{_FILE} (\w+)[:(]2\b")  # the only line of the check that can fail
_COUNT = re.compile(r"^\d+ errors? (?:detected|generated)")


def checked_end(source: str, name: str, defines: Iterable[tuple[str, int]]) -> str:
    """Text that is appended to the source. If the source lacks a closing brace, for example, the
    compiler still reports the error at the source's last line."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    own_end = f'#line {source.count(chr(10)) + 1} "{quoted}"\nstatic_assert(true, "");\n'
    checks = (
        f'#line 1 "{_FILE} {macro}"\n#ifdef {macro}\n'
        + f'static_assert(({macro}) == {value}, "");\n#endif\n'
        for macro, value in defines
    )
    return f"\n{own_end}{''.join(checks)}{own_end}"


def redefined(log: str) -> str | None:
    """The name that was redefined, according to a compiler's log; None if the log shows none."""
    failed: list[str] = []
    elsewhere = False
    for match in _ERROR_LINE.finditer(log):
        check = _CHECK.match(match[1])
        if check is None:
            elsewhere = elsewhere or _COUNT.match(match[0]) is None
        elif "static" in match[2]:  # the assertion's own failure
            return check[1]
        else:
            failed.append(check[1])
    return failed[0] if failed and not elsewhere else None


def reason_of(name: str) -> str:
    return f"{name}: a header or the source gives this name another value; rename the parameter"


POINTER, TENSOR_MAP = "pointer", "tensor_map"
"""The entries of a signature that are not types of scalars (int32, int64, float32, float64)."""

_ARGUMENTS = "arguments"  # the file name of the text in a compiler's messages
_PLACE = f'\n#line 1 "{_ARGUMENTS}"\n'
_IN_CHECK = re.compile(rf"^{_ARGUMENTS}[:(]\d+.*\berror\b", re.MULTILINE)
_ERROR = re.compile(r"\berror:")
_MARK = "evotune: "
_OURS = re.compile(rf"{_MARK}([^\"\n]+)")
_MOST = 64  # arguments of a function that are counted in a message
_KINDS = {
    "evotune_pointer": "a pointer",
    "evotune_integer": "an integer",
    "evotune_float": "a float",
    "evotune_double": "a double",
    "evotune_object": "an object",
}
_GIVEN = {
    POINTER: ("evotune_pointer", "a pointer"),
    TENSOR_MAP: ("evotune_object", "a tensor map"),
    "int32": ("evotune_integer", "an int32"),
    "int64": ("evotune_integer", "an int64"),
    "float32": ("evotune_float", "a float32"),
    "float64": ("evotune_double", "a float64"),
}
_BYTES = {"int32": 4, "int64": 8, TENSOR_MAP: 128}
_ARITHMETIC = {
    "evotune_float": ("float",),
    "evotune_double": ("double",),
    "evotune_integer": (
        *("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int"),
        *("unsigned int", "long", "unsigned long", "long long", "unsigned long long"),
    ),
}
_ARITHMETIC_KINDS = "\n".join(
    f"template <> struct evotune_kind_of<{name}> {{ enum {{ evotune_kind = {kind} }}; }};"
    for kind, names in _ARITHMETIC.items()
    for name in names
)
# No macro of a kernel has these names. Enumerators, since for a GPU a static constexpr member
# becomes data.
_TEMPLATES = f"""
enum {{ {", ".join(_KINDS)} }};
template <typename evotune_t> struct evotune_kind_of {{
  enum {{ evotune_kind = __is_enum(evotune_t) ? evotune_integer : evotune_object }};
}};
template <typename evotune_t> struct evotune_kind_of<evotune_t *> {{
  enum {{ evotune_kind = evotune_pointer }};
}};
template <typename evotune_t> struct evotune_kind_of<evotune_t &> {{
  enum {{ evotune_kind = evotune_pointer }};
}};
{_ARITHMETIC_KINDS}
template <int evotune_i, typename... evotune_p> struct evotune_nth {{
  enum {{ evotune_kind = evotune_object, evotune_size = 0 }};
}};
template <typename evotune_t, typename... evotune_p>
struct evotune_nth<0, evotune_t, evotune_p...> {{
  enum {{
    evotune_kind = evotune_kind_of<evotune_t>::evotune_kind, evotune_size = sizeof(evotune_t)
  }};
}};
template <int evotune_i, typename evotune_t, typename... evotune_p>
struct evotune_nth<evotune_i, evotune_t, evotune_p...> : evotune_nth<evotune_i - 1, evotune_p...> {{
}};
template <typename evotune_t> struct evotune_parameters;
"""
_PARAMETERS = """
template <typename evotune_r, typename... evotune_p>
struct evotune_parameters<evotune_r (*)(evotune_p...)%s> {
  enum { evotune_count = sizeof...(evotune_p) };
  template <int evotune_i> using evotune_at = evotune_nth<evotune_i, evotune_p...>;
};
"""


def check_text(entries: Sequence[str], signature: Sequence[str], *, exact: bool) -> str:
    """The text to append to the source. It checks that each function in `entries` takes the
    arguments of `signature`. `exact`: integers must have the size that is passed, since a GPU
    copies as many bytes as the kernel takes."""
    if not entries:
        return ""
    parameters = "".join(_PARAMETERS % suffix for suffix in ("", " noexcept"))
    asserts = (line for entry in entries for line in _asserts(entry, signature, exact))
    return f"{_PLACE}{_TEMPLATES}{parameters}{''.join(asserts)}"


def errs_in_check(log: str) -> bool:
    """Whether a compiler's log has an error in the appended text: an argument that does not match,
    a function that does not exist, or something that the source left open, such as a brace. Without
    the appended text the compiler explains the last kind better."""
    return _IN_CHECK.search(log) is not None


def mismatch(log: str) -> str:
    """A line about the first argument that does not match; "" if there is also an error of another
    kind."""
    errors = [line for line in log.splitlines() if _ERROR.search(line)]
    if not all(_MARK in error for error in errors):
        return ""
    found = _OURS.search(log)
    return found.group(1).strip() if found else ""


def _asserts(entry: str, signature: Sequence[str], exact: bool) -> Iterator[str]:
    alias, count = f"evotune_of_{entry}", len(signature)
    yield f"using {alias} = evotune_parameters<decltype(&{entry})>;\n"
    for found in range(_MOST + 1):
        if found != count:
            arguments = "1 argument" if found == 1 else f"{found} arguments"
            message = f"{entry} takes {arguments}, the space gives {count}"
            yield _assert(f"{alias}::evotune_count != {found}", message)
    for place, given in enumerate(signature):
        wanted, words = _GIVEN[given]
        about = f"argument {place + 1} of {entry}"
        here = f"{alias}::evotune_at<{place}>"
        others = f"{alias}::evotune_count != {count} || int({here}::evotune_kind) !="
        for other, found_words in _KINDS.items():
            if other != wanted:
                message = f"{about} is {found_words}, the space gives {words}"
                yield _assert(f"{others} {other}", message)
        if given in _BYTES and exact:
            message = f"{about} has another size than {words}, which the space gives"
            fits = f"{here}::evotune_size == {_BYTES[given]}"
            yield _assert(f"{others} {wanted} || {fits}", message)


def _assert(condition: str, message: str) -> str:
    return f'static_assert({condition}, "{_MARK}{message}");\n'
