"""What the gate needs of a file in any format: a kernel, and the keywords of its problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evotune.errors import UsageError
from evotune.formats.flashinfer_bench import missing_function
from evotune.user_code import trust

if TYPE_CHECKING:
    from evotune.api.given_space import SpaceKeywords
    from evotune.space.objects import Kernel

PROBLEM_FILE, PROBLEM_CLASS = "problem.py", "Reference"
CANDIDATE_FILE, MAKE = "candidate.py", "make"


@dataclass(frozen=True)
class Given:
    """A kernel of a file, for `evotune.gate(given.kernel, **given.keywords)`. `origin` is what
    `result` needs of the file to write a result in its format."""

    kernel: Kernel
    keywords: SpaceKeywords
    format: str
    origin: Any = field(default=None, repr=False)


def write_problem(
    folder: Path, base: str, imports: Sequence[str], members: Mapping[str, object], origin: str
) -> str:
    """Writes the file of a problem into the folder: a class derived from `base` with these class
    variables, whose `repr` must be Python. Returns the problem's name for a space."""
    variables = "\n".join(f"    {name} = {value!r}" for name, value in members.items())
    first = f'"""The problem of {origin.encode("unicode_escape").decode()!r}, made by evotune."""'
    lines = [first, "", *imports, "", "", f"class {PROBLEM_CLASS}({base}):", variables, ""]
    write_owned(folder, {PROBLEM_FILE: "\n".join(lines)})
    return f"{PROBLEM_FILE}:{PROBLEM_CLASS}"


def write_owned(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files that were made of ones to which the user agreed, so they need no agreement of
    their own."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        trust.own(text.encode())


def require_agreement(files: Mapping[Path, bytes]) -> None:
    """Raises UsageError if the user does not agree to execute code of these files."""
    trust.require({path.absolute(): content for path, content in files.items()})


def python_text(path: Path, content: bytes, names: Sequence[str]) -> str:
    """The text of a file of Python, which is not executed. Raises UsageError unless it binds the
    names."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise usage(path, "the file is not UTF-8") from error
    for name in names:
        for wrong in missing_function(text, name):
            raise usage(path, wrong)
    return text


def callable_text(
    imports: Sequence[str], preparation: Sequence[str], parameters: Sequence[str], body: str
) -> str:
    """The source of a callable: `make`, with lines that run once a case, returns a function with
    these parameters."""
    prepared = "".join(f"    {line}\n" for line in preparation)
    head = "\n".join(imports)
    return (
        f"{head}\n\n\ndef {MAKE}(configuration, case):\n{prepared}"
        f"    def call({', '.join(parameters)}):\n        {body}\n\n    return call\n"
    )


def spread(count: int, most: int) -> list[int]:
    """At most `most` numbers below `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(each * (count - 1) / (most - 1)) for each in range(most)})


def usage(place: Path | str, message: str) -> UsageError:
    return UsageError(f"{place}: {message}")
