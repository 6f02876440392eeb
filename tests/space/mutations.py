"""Space files with mistakes, made from good ones: bytes, lines, values and pieces of each other."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_PIECES = (
    *("0", "-1", "1e9", "1e-400", ".inf", ".nan", "0x7fffffffffffffff", "999999999999999999"),
    *("true", "null", "~", "''", "[]", "{}", "[[]]", "- ", ": ", "? "),
    *("!!python/object:os.system ls", "x" * 400),
    *("&a", "*a", "<<: *a", "|", ">", "%YAML 9", "---", "...", "#", "\t", "\r", "\0", "\x1b[2J"),
    *("$(touch pwned)", "`touch pwned`", "'; touch pwned; '", "../../../etc/passwd", "/etc/passwd"),
    *("__import__('os').system('ls')", "(lambda: 0)()", "A.__class__", "x if y else z", "A[0]"),
    *("2 ** 999999", "9 ** 9 ** 9", "1 << 99999", "1 // 0", "1 % 0", "(((((1)))))"),
    *("device.arch", "device.", "KERNEL", "min()", "ceil_div(1, 0)", "pow2", "not not 1"),
    *("é", "\u202e", "\ud800", "\U0001f600", "＝", "A" * 3000, "{" * 60, "[" * 60, "when: "),
)  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+|[^\sA-Za-z0-9_]")
_NUMBER = re.compile(r"\d+")


def mutated(rng: random.Random, texts: Sequence[str]) -> bytes:
    """One of `texts` after one to four changes; now and then no valid UTF-8."""
    text = rng.choice(texts)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        text = rng.choice(_CHANGES)(rng, text, rng.choice(texts))
    data = text.encode(errors="surrogatepass")
    if rng.random() < 0.03 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def _edit(rng: random.Random, text: str, other: str) -> str:
    start = rng.randint(0, len(text))
    return text[:start] + rng.choice(_PIECES) + text[start + rng.randint(0, 12) :]


def _replace_token(rng: random.Random, text: str, other: str) -> str:
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return other
    old, new = rng.choice(tokens), rng.choice(_PIECES)
    if rng.random() < 0.5:
        new = rng.choice(tokens).group()
    return text[: old.start()] + new + text[old.end() :]


def _change_number(rng: random.Random, text: str, other: str) -> str:
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return other
    old = rng.choice(numbers)
    value = int(old.group())
    new = rng.choice([0, 1, value + 1, value * 1000, 2**31, 2**63, -value, value // 2, 10**19])
    return f"{text[: old.start()]}{new}{text[old.end() :]}"


def _change_lines(rng: random.Random, text: str, other: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, count = rng.randrange(len(lines)), rng.randint(1, 4)
    piece = lines[at : at + count]
    theirs = other.splitlines(keepends=True) or [""]
    start = rng.randrange(len(theirs))
    inserted = rng.choice(
        [[], piece * 2, ["  " + line for line in piece], theirs[start : start + 3]]
    )
    return "".join([*lines[:at], *inserted, *lines[at + count :]])


def _cut(rng: random.Random, text: str, other: str) -> str:
    return text[: rng.randint(0, len(text))]


_CHANGES = (_edit, _edit, _replace_token, _replace_token, _change_number, _change_lines, _cut)
