"""Checks that each name given with `-D` still has its value at the end of the source.

A header may redefine such a name, as <climits> does INT_MAX, and compilers do not warn of that in
their own headers: the parameter would have no effect. So text that checks each name follows the
source. It makes no code. A name that is no longer a macro passes: a source may `#undef` its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FILE = "parameter"
_ERROR = re.compile(r"^(.*)\berror\b(.*)$", re.MULTILINE | re.IGNORECASE)
_CHECK = re.compile(rf"{_FILE} (\w+)[:(]2\b")  # the only line of the check that can fail
_COUNT = re.compile(r"^\d+ errors? (?:detected|generated)")


def checked_end(source: str, name: str, defines: Iterable[tuple[str, int]]) -> str:
    """Text to follow the source in one translation unit. If the source lacks a brace, say, the
    compiler still reports that at the source's last line."""
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
    for match in _ERROR.finditer(log):
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
