"""Reads a space file and checks it as far as possible without a device: `load_space`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from evotune.errors import UsageError
from evotune.objectives import SINGLE
from evotune.run_options import RunOptions
from evotune.space.language.expression import Expression
from evotune.space.reading.conversion import Converter
from evotune.space.reading.object_path import DataPath
from evotune.space.reading.schema import SpaceModelFile
from evotune.space.reading.yaml_source import Position, YamlSource, parse_yaml, read_yaml
from evotune.space.specs import (
    ConstraintSpec,
    KernelSpec,
    ParameterSpec,
    ProblemSpec,
    RecordedSpec,
    TimeoutsSpec,
)
from evotune.trial import Value
from evotune.util.words import closest, describe, shorten


@dataclass(frozen=True, slots=True)
class SpaceDocument:
    """A whole space file. A recorded space has `recorded`; any other has a problem, kernels and
    parameters."""

    path: Path
    root: Path
    name: str
    description: str
    problem: ProblemSpec | None
    kernels: tuple[KernelSpec, ...]
    let: Mapping[str, Expression]
    parameters: tuple[ParameterSpec, ...]
    constraints: tuple[ConstraintSpec, ...]
    after_compile: tuple[ConstraintSpec, ...]
    baseline: str
    baseline_position: Position
    deterministic: bool
    default: Mapping[str, Value]
    default_position: Position
    try_first: tuple[Mapping[str, Value], ...]
    try_first_positions: tuple[Position, ...]
    options: RunOptions
    """Its `objective`, `search`, `budget` and `stop`."""
    search_position: Position
    timeouts: TimeoutsSpec
    recorded: RecordedSpec | None
    text: str

    def kernel(self, name: str | None = None) -> KernelSpec:
        """The kernel of that name; without a name the only one, of a space without KERNEL."""
        for kernel in self.kernels:
            if name is None or kernel.name == name:
                return kernel
        raise KeyError(name)


def load_space(path: Path, root: Path | None = None) -> SpaceDocument:
    """Reads a space file; every mistake in it is a SpaceError with file, line and column.

    `root` overrides the folder of the kernel sources: a run gives that of its own copies.
    """
    source = read_yaml(path)
    return _document(source, path, root)


def parse_space(text: str, path: Path = Path("space.yaml")) -> SpaceDocument:
    """`load_space` on text; `path` only names it in messages and anchors relative paths."""
    return _document(parse_yaml(text, str(path)), path, None)


def _document(source: YamlSource, path: Path, root: Path | None) -> SpaceDocument:
    if not isinstance(source.data, dict):
        found = describe(source.data)
        raise source.position(()).error(f"expected a mapping at the top, found {found}")
    try:
        model = SpaceModelFile.model_validate(source.data)
    except pydantic.ValidationError as error:
        raise _first_error(source, error) from error
    convert = Converter(source, path, model, root)
    return SpaceDocument(
        path=path,
        root=convert.root,
        name=model.name,
        description=model.description,
        problem=convert.problem(),
        kernels=convert.kernels(),
        let=convert.let(),
        parameters=convert.parameters(),
        constraints=convert.constraints(),
        after_compile=convert.after_compile(),
        baseline=model.baseline,
        baseline_position=source.position(("baseline",)),
        deterministic=model.deterministic,
        default=dict(model.default),
        default_position=source.position(("default",)),
        try_first=tuple(model.try_first),
        try_first_positions=tuple(
            source.position(("try_first", index)) for index in range(len(model.try_first))
        ),
        options=_run_options(source, model),
        search_position=source.position(("search",)),
        timeouts=TimeoutsSpec(**model.timeouts.model_dump()),
        recorded=convert.recorded(),
        text=source.text,
    )


def _run_options(source: YamlSource, model: SpaceModelFile) -> RunOptions:
    objectives = SINGLE if isinstance(model.objective, str) else tuple(model.objective)
    search = model.search.model_dump()
    if objectives == SINGLE:
        search["strategy"] = model.search.strategy or "evolution"
    elif model.search.strategy == "evolution":
        at = source.position(("search", "strategy"))
        raise at.error("evolution searches for speed alone; for several objectives use nsga2")
    else:
        search["strategy"] = model.search.strategy or "nsga2"
    rest = model.budget.model_dump() | model.stop.model_dump()
    try:
        return RunOptions(objectives=objectives, **search, **rest)
    except UsageError as error:
        raise source.position(("search",)).error(str(error)) from error


def _first_error(source: YamlSource, error: pydantic.ValidationError) -> Exception:
    """The error for the first mistake in the file, in evotune's words."""
    located = [_locate(source, details) for details in error.errors(include_url=False)]
    position, message = min(located, key=lambda item: (item[0].line, item[0].column))
    return position.error(message)


def _locate(source: YamlSource, details: Any) -> tuple[Position, str]:
    path: DataPath = tuple(details["loc"])
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "space":
        if "key" in context:
            real = tuple(step for i, step in enumerate(path) if _exists(source, path, i))
            return source.key_position((*real, context["key"])), details["msg"]
        return source.position(path), details["msg"]
    if path[-1:] == ("[key]",):
        return source.key_position(path[:-1]), _key_message(str(path[-2]), context)
    if details["type"] == "missing":
        return source.position(path), f"missing key '{path[-1]}'"
    return source.position(path), _value_message(details, context)


def _exists(source: YamlSource, path: DataPath, index: int) -> bool:
    """Whether step `index` is in the file, and not a tag a validator put into the path."""
    kept: DataPath = ()
    for i, step in enumerate(path[: index + 1]):
        if (*kept, step) in source.values:
            kept = (*kept, step)
        elif i == index:
            return False
    return True


def _key_message(name: str, context: Mapping[str, Any]) -> str:
    if context.get("pattern", "").startswith("^[A-Z][A-Z0"):
        return f"expected a parameter name such as BLOCK_M, found '{shorten(name)}'"
    return f"expected an identifier, found '{shorten(name)}'"


def _value_message(details: Any, context: Mapping[str, Any]) -> str:
    kind, found = details["type"], details["input"]
    if kind == "literal_error":
        known = [word.strip(" '") for word in context["expected"].replace(" or ", ",").split(",")]
        return f"expected {context['expected']}, found {describe(found)}" + (
            closest(found, known) if isinstance(found, str) else ""
        )
    if kind == "string_pattern_mismatch":
        wanted = "an identifier (letters, digits, _)"
        if "._-" in context.get("pattern", ""):
            wanted = "letters, digits, '.', '_' and '-'"
        return f"expected {wanted}, found {describe(found)}"
    if kind in ("too_short", "too_long"):
        bound = context["min_length" if kind == "too_short" else "max_length"]
        word = "at least" if kind == "too_short" else "at most"
        what = ("key" if isinstance(found, Mapping) else "item") + ("" if bound == 1 else "s")
        return f"expected {word} {bound} {what}, found {len(found)}"
    if kind == "bool_type" and found in ("yes", "no", "on", "off"):
        meant = "true" if found in ("yes", "on") else "false"
        return f"expected true or false, found the text '{found}'; write {meant}"
    message = details["msg"].replace("Input should be a valid", "expected a")
    message = message.replace("Input should be", "expected").replace("Input should", "should")
    for ours, theirs in (("mapping", "dictionary"), ("text", "string"), ("list", "array")):
        message = message.replace(theirs, ours)
    message = message.replace("expected a integer", "expected an integer")
    return f"{shorten(message, 160)}, found {describe(found)}"
