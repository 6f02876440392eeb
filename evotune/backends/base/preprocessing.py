"""The code of a C++ source: without comments, and without the groups that `#if 0` leaves out.

A text that a compiler does not read must not bring files into a run, and text that it does read
must not be taken for a comment. So `code_of` gives up wherever compilers might disagree on what is
a comment, a string or a group: at an unclosed quote before a comment, say.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

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
"""Marks in the bare text. A doubt: a quote and a comment on one line, which a compiler that skips
the group may read otherwise. A break: a line's end within a raw string."""
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
    """The text that the compiler reads of a source. Its lines keep their numbers."""

    text: bytes
    conditions: bytes
    """The directives that a test of whether a file exists may stand in."""


class _Undecided(Exception):
    """Compilers may disagree on what is code here."""


def code_of(content: bytes, splice: re.Pattern[bytes]) -> Code | None:
    """The code of a source in which matches of `splice` join lines; None where that cannot be told
    with certainty."""
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
    line = 0  # where the present line begins in `parts`
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
    """The text that is left of a token that follows the others of its `line`."""
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
    """Whether lines were joined in a raw string, where they are not."""
    place = bisect.bisect_right(joins, match.start())
    return place < len(joins) and joins[place] < match.end()


@dataclass
class _Group:
    """An `#if` with its branches: whether the present one may be read, and whether one that is
    read for certain came already."""

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
