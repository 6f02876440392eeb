"""C++ text that makes a compiler compare a kernel's parameters with the arguments of the space.

A function that is called with too few arguments, or with a number where it takes a pointer, reads
arbitrary memory. Only the compiler knows the function's type, so the text follows the kernel's
source and consists of `static_assert` alone. It makes no machine code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# --- Checks that each name given with `-D` still has its value at the end of the source -----------
# A header may redefine such a name, as <climits> does INT_MAX, and compilers do not warn of that in
# their own headers: the parameter would have no effect. So text that checks each name follows the
# source. It makes no code. A name that is no longer a macro passes: a source may `#undef` its
# names.

_FILE = "parameter"
_ERROR_LINE = re.compile(r"^(.*)\berror\b(.*)$", re.MULTILINE | re.IGNORECASE)
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
"""Entries of a signature, beside the types of scalars: int32, int64, float32, float64."""

_NAME = "arguments"  # the file name of the text in a compiler's messages
_PLACE = f'\n#line 1 "{_NAME}"\n'
_IN_CHECK = re.compile(rf"^{_NAME}[:(]\d+.*\berror\b", re.MULTILINE)
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
    """Whether a compiler's log has an error in the text: an argument that does not fit, a function
    that does not exist, or a brace, say, that the source left open. Without the text the compiler
    explains the last one well."""
    return _IN_CHECK.search(log) is not None


def mismatch(log: str) -> str:
    """One line on the first argument that does not fit; "" when there is an error of another kind
    as well."""
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
