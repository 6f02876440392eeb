"""evotune's own format: the candidate is a kernel's file, the task a problem's file or a space."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evotune.api.gate_candidates import gated
from evotune.api.given_space import SpaceKeywords
from evotune.errors import UsageError
from evotune.formats import EVOTUNE
from evotune.formats.given import Given
from evotune.space.objects import Kernel, Space
from evotune.trial import Value
from evotune.user_code import trust
from evotune.util.files import read_regular

SPACES = (".yaml", ".yml")
_BASES = ("Problem", "UserProblem")
_NOT_OF_THE_SPACE = ("kernel", "kernels", "recorded")


def load(
    candidate: Path,
    task: Path | None,
    *,
    entry: str | None = None,
    shapes: Sequence[Mapping[str, Value]] = (),
    dtype: str | None = None,
) -> Given:
    """The kernel in the file `candidate` with its task.

    `task` is a space file, whose kernel the candidate replaces; or a problem's file, as
    `problem.py` or `problem.py:Class`, with `shapes`, else with the list `shapes` of its class.
    `entry` names the candidate's function. Raises UsageError if something is missing, and
    SpaceError for a mistake in a file.
    """
    if task is None:
        raise UsageError(
            "name the task: --task problem.py --shape rows=256,columns=1000, or --task space.yaml"
        )
    if task.suffix in SPACES:
        return _of_space(candidate, task, entry, shapes, dtype)
    file, _, name = str(task).partition(":")
    path = Path(file).absolute()
    kinds = _problems(path)
    if name and name not in kinds:
        raise UsageError(f"{file} has no problem {name}{_listed(kinds)}")
    if not name and len(kinds) != 1:
        raise UsageError(f"{file} must have one problem{_listed(kinds)}; name it: {file}:NAME")
    name = name or next(iter(kinds))
    listed = shapes or _own_shapes(kinds, name)
    if not listed:
        raise UsageError(f"name the shapes: --shape rows=256,columns=1000; {name} lists none")
    keywords: SpaceKeywords = {"problem": f"{path.name}:{name}", "root": path.parent}
    keywords["shapes"] = listed
    if dtype is not None:
        keywords["dtype"] = dtype
    kernel, given = gated(candidate, keywords, entry)
    if not isinstance(kernel, Kernel):
        raise UsageError(f"{candidate} is no kernel: expected a .cpp or .py file")
    return Given(kernel, given, EVOTUNE)


def _listed(kinds: Mapping[str, ast.ClassDef]) -> str:
    return f"; it has {', '.join(kinds)}" if kinds else "; it has none"


def _problems(path: Path) -> dict[str, ast.ClassDef]:
    """The classes of the file that derive from `Problem`, by name. Nothing is executed."""
    try:
        tree = ast.parse(read_regular(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not valid Python: {error}") from error
    found: dict[str, ast.ClassDef] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & {*_BASES, *found}:
                found[node.name] = node
    return found


def _own_shapes(kinds: Mapping[str, ast.ClassDef], name: str) -> list[dict[str, Value]]:
    """The list `shapes` of the class, or of its base in the file; empty if there is none."""
    kind = kinds[name]
    for node in kind.body:
        if "shapes" in _targets(node):
            listed = ast.unparse(node).partition("=")[2].strip()
            try:
                return [dict(shape) for shape in ast.literal_eval(listed)]
            except (ValueError, TypeError) as error:
                expected = "expected a list such as [{'rows': 256}]"
                raise UsageError(f"{name}.shapes: {expected}") from error
    bases = [ast.unparse(base) for base in kind.bases]
    return next((_own_shapes(kinds, base) for base in bases if base in kinds), [])


def _targets(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        yield from (ast.unparse(target) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield ast.unparse(node.target)


def _of_space(
    candidate: Path,
    task: Path,
    entry: str | None,
    shapes: Sequence[Mapping[str, Value]],
    dtype: str | None,
) -> Given:
    """The space's only kernel, with the candidate's text in place of its own. What the candidate
    includes lies where the space's own source includes it from."""
    space = Space.from_yaml(task)
    kernels = space.kernels or ()
    if len(kernels) != 1:
        raise UsageError(f"{task} must have one kernel, which the candidate replaces")
    (own,) = kernels
    source = Path(str(own.source))
    if candidate.suffix != source.suffix:
        raise UsageError(f"{candidate} is no {source.suffix} file, as the kernel of {task} is")
    try:
        content = read_regular(candidate)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"cannot read {candidate}: {why}") from error
    trust.require({candidate.absolute(): content})
    kernel = dataclasses.replace(own, source_text=text, entry=entry or own.entry)
    given: dict[str, Any] = {
        field.name: getattr(space, field.name)
        for field in dataclasses.fields(space)
        if field.name not in _NOT_OF_THE_SPACE
    }
    given |= {"shapes": list(shapes)} if shapes else {}
    given |= {"dtype": dtype} if dtype is not None else {}
    given["root"] = os.fspath(given["root"])
    keywords: Any = {key: value for key, value in given.items() if value is not None}
    return Given(kernel, keywords, EVOTUNE)
