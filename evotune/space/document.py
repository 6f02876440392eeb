"""Reads a space file and checks it as far as possible without a device (`load_space`).

The checked models become the values of `specs`, and their expressions are parsed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pydantic

from evotune.errors import UsageError
from evotune.languages import Language, all_languages, find_language
from evotune.run_options import RunOptions
from evotune.space.language import Expression, parse_expression
from evotune.space.language.nodes import is_condition
from evotune.space.reading.schema import (
    MAX_PARAMETERS,
    MAX_VALUES,
    ConstraintField,
    ConstraintModel,
    KernelModel,
    LaunchModel,
    ParameterModel,
    SpaceModelFile,
    TensorMapModel,
)
from evotune.space.reading.yaml_source import DataPath, Position, YamlSource, parse_yaml, read_yaml
from evotune.space.search_space import (
    Boolean,
    Categorical,
    IntegerRange,
    OrderedParameter,
    Parameter,
    PowerOfTwo,
)
from evotune.space.specs import (
    L2_PROMOTIONS,
    MOST_BOX,
    SWIZZLES,
    ArgumentSpec,
    ConstantMemorySpec,
    ConstraintSpec,
    KernelSpec,
    LaunchSpec,
    ParameterSpec,
    ProblemSpec,
    RecordedSpec,
    SupportSpec,
    TensorMapSpec,
    TimeoutsSpec,
    WorkspaceSpec,
)
from evotune.trial import SINGLE_OBJECTIVE, Value
from evotune.util.words import closest, describe, did_you_mean, shorten

_TOLD_ANYWAY = (
    *("arguments", "further_arguments", "define", "specialise", "workspace", "constant_memory"),
    *("options", "launches"),
)
"""Keys of a kernel that have no meaning if it is built for each case."""


@dataclass(frozen=True, slots=True)
class SpaceDocument:
    """The content of a space file. A recorded space has `recorded`; any other has a problem,
    kernels and parameters."""

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
    """The space's `objective`, `search`, `budget` and `stop`."""
    search_position: Position
    timeouts: TimeoutsSpec
    recorded: RecordedSpec | None
    text: str

    def kernel(self, name: str | None = None) -> KernelSpec:
        """The kernel with this name, or without a name the only kernel of a space that has no
        parameter KERNEL."""
        for kernel in self.kernels:
            if name is None or kernel.name == name:
                return kernel
        raise KeyError(name)


def load_space(path: Path, root: Path | None = None) -> SpaceDocument:
    """Reads a space file; every mistake in it is a SpaceError with file, line and column.

    `root` overrides the folder of the kernel sources; a run passes the folder of its own copies.
    """
    source = read_yaml(path)
    return _document(source, path, root)


def parse_space(text: str, path: Path = Path("space.yaml")) -> SpaceDocument:
    """Like `load_space`, but of a text. `path` is its name in messages, and the base of relative
    paths."""
    return _document(parse_yaml(text, str(path)), path, None)


def with_dtype(document: SpaceDocument, dtype: str) -> SpaceDocument:
    """The space, and its text, for another dtype of its problem. Whether its kernels support the
    dtype is checked later, as for any space. Raises SpaceError if the file names no dtype."""
    spec = document.problem
    if spec is None or spec.dtype == dtype:
        return document
    position = spec.at("dtype")
    lines = document.text.splitlines(keepends=True)
    number = position.line - 1
    line = lines[number] if 0 <= number < len(lines) else ""
    lines[number], found = re.subn(rf"\bdtype:\s*{spec.dtype}\b", f"dtype: {dtype}", line, count=1)
    if not found:
        raise position.error(f"the problem names no dtype here that {dtype} could replace")
    source = parse_yaml("".join(lines), str(document.path))
    return _document(source, document.path, document.root)


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
    objectives = SINGLE_OBJECTIVE if isinstance(model.objective, str) else tuple(model.objective)
    search = model.search.model_dump()
    if objectives == SINGLE_OBJECTIVE:
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


class Converter:
    """Converts one validated file. Its methods raise SpaceError at the position of a mistake."""

    def __init__(
        self, source: YamlSource, path: Path, model: SpaceModelFile, root: Path | None
    ) -> None:
        self.source = source
        self.model = model
        self.folder = path.parent
        self.root = root or self._root()

    def _root(self) -> Path:
        if self.model.root is not None:
            return self._stated_root(self.model.root)
        for folder in (self.folder, *self.folder.absolute().parents):
            if (folder / "kernels").is_dir():
                return folder
        return self.folder

    def _stated_root(self, stated: str) -> Path:
        """The root that the file states. A missing folder is no error yet: the first read of a file
        in it reports that."""
        root, position = self.folder / stated, self.source.position(("root",))
        try:
            is_folder = stat.S_ISDIR(os.stat(root).st_mode)
        except FileNotFoundError:
            return root
        except OSError as error:
            raise position.error(f"cannot use the root {stated}: {error.strerror}") from error
        if not is_folder:
            raise position.error(f"the root {stated} is not a folder")
        return root

    def problem(self) -> ProblemSpec | None:
        problem = self.model.problem
        if problem is None:
            return None
        for group in ("shapes", "variants", "held_out"):
            for i, symbols in enumerate(getattr(problem, group)):
                for name in symbols:
                    if name in ("dtype", "device"):
                        position = self.source.key_position(("problem", group, i, name))
                        message = (
                            f"'{name}' cannot be a symbol of a shape: it has a meaning of its own"
                        )
                        raise position.error(message)
        places = {**self.source.values, **self.source.keys}
        return ProblemSpec(
            name=problem.name,
            dtype=problem.dtype,
            shapes=tuple(problem.shapes),
            variants=tuple(problem.variants),
            held_out=tuple(problem.held_out),
            position=self.source.position(("problem",)),
            positions={at[1:]: place for at, place in places.items() if at[:1] == ("problem",)},
        )

    def recorded(self) -> RecordedSpec | None:
        recorded = self.model.recorded
        if recorded is None:
            return None
        beside = self.folder / recorded.file
        file = beside if os.path.lexists(beside) else self.root / recorded.file
        position = self.source.position(("recorded", "file"))
        # `Path.resolve` raises if links form a circle.
        if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.root)):
            raise position.error(f"the recording {recorded.file} lies outside the space's root")
        return RecordedSpec(file, recorded.delay_ms, position)

    def kernels(self) -> tuple[KernelSpec, ...]:
        kernels = self.model.kernels or {}
        return tuple(self._kernel(name, kernel) for name, kernel in kernels.items())

    def parameters(self) -> tuple[ParameterSpec, ...]:
        return ParameterConverter(self.source, self.model).parameters()

    def let(self) -> Mapping[str, Expression]:
        return {
            name: self._expression(text, ("let", name)) for name, text in self.model.let.items()
        }

    def constraints(self) -> tuple[ConstraintSpec, ...]:
        return self._conditions("constraints", self.model.constraints)

    def after_compile(self) -> tuple[ConstraintSpec, ...]:
        kernels = self.model.kernels or {}
        if self.model.after_compile:
            for name, kernel in kernels.items():
                if not self._language(name, kernel).launched:
                    position = self.source.key_position(("after_compile",))
                    raise position.error("'after_compile' needs kernels for a GPU")
        return self._conditions("after_compile", self.model.after_compile)

    def _conditions(self, key: str, items: Sequence[ConstraintField]) -> tuple[ConstraintSpec, ...]:
        specs = []
        for i, item in enumerate(items):
            if isinstance(item, ConstraintModel):
                expression = self._expression(item.expr, (key, i, "expr"))
                specs.append(ConstraintSpec(expression, item.reason or ""))
            else:
                specs.append(ConstraintSpec(self._expression(item, (key, i))))
        return tuple(specs)

    def _expression(self, text: Value, path: DataPath) -> Expression:
        return parse_expression(text, self.source.position(path))

    def _kernel(self, name: str, kernel: KernelModel) -> KernelSpec:
        path: DataPath = ("kernels", name)
        language = self._language(name, kernel)
        if language.launched and not kernel.launches:
            raise self.source.position(path).error("a kernel for a GPU needs 'launches'")
        if language.builds_each_case:
            self._refuse_told(kernel, language, path)
        deterministic = kernel.deterministic
        return KernelSpec(
            name=name,
            source=self._source_file(kernel.source, (*path, "source")),
            entry=kernel.entry,
            language=language.name,
            supports=self._supports(kernel, path),
            define=tuple(kernel.define),
            specialise=tuple(kernel.specialise),
            compiled_in_positions=tuple(
                self.source.position((*path, field, i))
                for field, names in (("define", kernel.define), ("specialise", kernel.specialise))
                for i in range(len(names))
            ),
            arguments=self._arguments(kernel, language, path),
            workspace=self._workspace(kernel, path),
            constant_memory=self._constant_memory(kernel, language, path),
            options=tuple(kernel.options),
            launches=tuple(
                self._launch(kernel, language, launch, (*path, "launches", i))
                for i, launch in enumerate(kernel.launches)
            ),
            deterministic=self.model.deterministic if deterministic is None else deterministic,
            alternative=kernel.alternative or "",
            position=self.source.position(path),
        )

    def _refuse_told(self, kernel: KernelModel, language: Language, path: DataPath) -> None:
        """Raises SpaceError for a key that tells a kernel what it gets anyway."""
        for key in _TOLD_ANYWAY:
            if getattr(kernel, key):
                message = (
                    f"leave '{key}' out: a {language.name} kernel gets the configuration, the case "
                    "and all tensors"
                )
                raise self.source.key_position((*path, key)).error(message)

    def _language(self, name: str, kernel: KernelModel) -> Language:
        """The kernel's language. Raises SpaceError for a file with another suffix: a compiler's
        message about it would show the file's text."""
        stated = find_language(kernel.language) if kernel.language else None
        suffix = PurePosixPath(kernel.source).suffix
        if stated and suffix in stated.stated_suffixes:
            return stated
        languages: list[Language] = []
        for language in (stated,) if stated else all_languages():
            if suffix in language.suffixes:
                return language
            languages.append(language)
        *others, last = (
            suffix
            for language in languages
            for suffix in language.suffixes or (language.stated_suffixes if stated else ())
        )
        known = f"{', '.join(others)} or {last}" if others else last
        message = f"expected a {known} file, found '{kernel.source}'"
        if meant := [each.name for each in languages if suffix in each.stated_suffixes]:
            message += f"; state `language: {' or '.join(meant)}`"
        raise self.source.position(("kernels", name, "source")).error(message)

    def _source_file(self, source: str, path: DataPath) -> Path:
        """Sources live under the root, so that a space can be moved and shipped as a whole."""
        relative = PurePosixPath(source)
        if relative.is_absolute() or ".." in relative.parts or "\\" in source:
            raise self.source.position(path).error(f"expected a path under the root: '{source}'")
        return self.root / relative

    def _supports(self, kernel: KernelModel, path: DataPath) -> tuple[SupportSpec, ...]:
        specs = []
        for symbol, support in kernel.supports.items():
            place = (*path, "supports", symbol)
            if isinstance(support, list):
                specs.append(SupportSpec(symbol, tuple(support), None))
                continue
            condition = parse_expression(f"{symbol} {support}", self.source.key_position(place))
            if not is_condition(condition.node) or any(n.name != symbol for n in condition.names):
                message = f"expected a comparison such as '>= 80', found '{support}'"
                raise self.source.position(place).error(message)
            specs.append(SupportSpec(symbol, None, condition))
        return tuple(specs)

    def _arguments(
        self, kernel: KernelModel, language: Language, path: DataPath
    ) -> tuple[ArgumentSpec, ...]:
        specs = []
        for i, argument in enumerate(kernel.arguments):
            place = (*path, "arguments", i)
            position = self.source.position(place)
            if isinstance(argument, str):
                specs.append(ArgumentSpec(position, name=argument))
            elif isinstance(argument, TensorMapModel):
                if not language.tensor_maps:
                    raise position.error("a tensor map needs a CUDA kernel")
                tensor_map = self._tensor_map(argument, place)
                specs.append(
                    ArgumentSpec(position, name=argument.tensor_map, tensor_map=tensor_map)
                )
            else:
                value = self._expression(argument.value, (*place, "value"))
                specs.append(ArgumentSpec(position, value=value, type=argument.type))
        if further := kernel.further_arguments:
            path = (*path, "further_arguments")
            when = self._expression(further.when, (*path, "when"))
            for i, name in enumerate(further.names):
                position = self.source.position((*path, "names", i))
                specs.append(ArgumentSpec(position, name=name, when=when))
        return tuple(specs)

    def _tensor_map(self, model: TensorMapModel, path: DataPath) -> TensorMapSpec:
        self._refuse_unknown(model.swizzle, SWIZZLES, (*path, "swizzle"))
        self._refuse_unknown(model.l2_promotion, L2_PROMOTIONS, (*path, "l2_promotion"))
        for i, size in enumerate(model.box):
            self._refuse_unknown(size, range(1, MOST_BOX + 1), (*path, "box", i))
        return TensorMapSpec(
            box=tuple(
                self._expression(size, (*path, "box", i)) for i, size in enumerate(model.box)
            ),
            box_position=self.source.position((*path, "box")),
            swizzle_bytes=self._expression(model.swizzle, (*path, "swizzle")),
            l2_promotion_bytes=self._expression(model.l2_promotion, (*path, "l2_promotion")),
        )

    def _refuse_unknown(self, value: Value, known: Sequence[int], path: DataPath) -> None:
        """Raises SpaceError for a number that is not in `known`. An expression's value is known
        later."""
        if type(value) is int and value not in known:
            span = f"{known[0]} to {known[-1]}" if isinstance(known, range) else ""
            words = span or "one of " + ", ".join(map(str, known))
            raise self.source.position(path).error(f"expected {words}, found {value}")

    def _workspace(self, kernel: KernelModel, path: DataPath) -> tuple[WorkspaceSpec, ...]:
        return tuple(
            WorkspaceSpec(
                name,
                self._expression(buffer.bytes, (*path, "workspace", name, "bytes")),
                buffer.init,
            )
            for name, buffer in kernel.workspace.items()
        )

    def _constant_memory(
        self, kernel: KernelModel, language: Language, path: DataPath
    ) -> tuple[ConstantMemorySpec, ...]:
        if kernel.constant_memory and not language.constant_memory:
            position = self.source.key_position((*path, "constant_memory"))
            raise position.error("'constant_memory' needs a CUDA kernel")
        return tuple(
            ConstantMemorySpec(
                symbol, tensor, self.source.position((*path, "constant_memory", symbol))
            )
            for symbol, tensor in kernel.constant_memory.items()
        )

    def _launch(
        self, kernel: KernelModel, language: Language, launch: LaunchModel, place: DataPath
    ) -> LaunchSpec:
        block, shared_bytes = launch.block, launch.shared_bytes
        self._refuse_decided(kernel, language, launch, place)
        if language.block is not None:
            block = [language.block(self.model.parameters or {})]
        elif block is None:
            raise self.source.position(place).error("a launch needs a 'block'")
        grid_sizes, block_sizes = (
            tuple(self._expression(text, (*place, key, j)) for j, text in enumerate(sizes))
            for key, sizes in (("grid", launch.grid), ("block", block))
        )
        return LaunchSpec(
            grid_sizes,
            block_sizes,
            self._expression(shared_bytes or 0, (*place, "shared_bytes")),
            launch.entry or kernel.entry,
            None if launch.when is None else self._expression(launch.when, (*place, "when")),
        )

    def _refuse_decided(
        self, kernel: KernelModel, language: Language, launch: LaunchModel, place: DataPath
    ) -> None:
        """Raises SpaceError for a key that the language's compiler decides. `entry` may be given if
        it is the kernel's own."""
        for key, reason in language.decided.items():
            value = getattr(launch, key)
            if value is not None and (key != "entry" or value != kernel.entry):
                raise self.source.key_position((*place, key)).error(reason)


KERNEL = "KERNEL"


class ParameterConverter:
    """Converts the parameters of one file. Raises SpaceError at the position of a mistake."""

    def __init__(self, source: YamlSource, model: SpaceModelFile) -> None:
        self.source = source
        self.model = model

    def parameters(self) -> tuple[ParameterSpec, ...]:
        fields = self.model.parameters or {}
        specs = [self._parameter(name, field) for name, field in fields.items()]
        kernels = self.model.kernels or {}
        if len(kernels) > 1:
            if KERNEL in fields:
                position = self.source.key_position(("parameters", KERNEL))
                raise position.error(
                    "KERNEL names the choice between this space's kernels; rename the parameter"
                )
            names = tuple(kernels)
            position = self.source.position(("kernels",))
            specs.insert(
                0, ParameterSpec(Categorical(KERNEL, names), None, names[0], None, position)
            )
            if len(specs) > MAX_PARAMETERS:
                raise position.error(
                    f"more than {MAX_PARAMETERS} parameters, with KERNEL, the choice of a kernel"
                )
        by_name = {spec.name: spec for spec in specs}
        self._check_values(by_name, self.model.default, ("default",))
        for index, values in enumerate(self.model.try_first):
            self._check_values(by_name, values, ("try_first", index))
        return tuple(specs)

    def _check_values(
        self, by_name: Mapping[str, ParameterSpec], values: Mapping[str, Value], at: DataPath
    ) -> None:
        for name, value in values.items():
            path = (*at, name)
            if name not in by_name:
                if self.model.recorded is not None:
                    continue
                hint = did_you_mean(name, by_name)
                raise self.source.key_position(path).error(f"unknown parameter '{name}'{hint}")
            spec = by_name[name]
            if not _is_member(value, spec.parameter) and not (
                spec.when is not None and _same(value, spec.otherwise)
            ):
                raise self._not_a_value(value, spec.parameter, path)

    def _parameter(
        self, name: str, field: list[bool | int | str] | ParameterModel
    ) -> ParameterSpec:
        path: DataPath = ("parameters", name)
        position = self.source.key_position(path)
        if isinstance(field, list):
            parameter = self._listed(name, field, path)
            return ParameterSpec(parameter, None, parameter.values[0], None, position)
        parameter = self._domain(name, field, path)
        when = None
        if field.when is not None:
            when = parse_expression(field.when, self.source.position((*path, "when")))
        otherwise = parameter.values[0] if field.otherwise is None else field.otherwise
        if type(otherwise) not in {type(value) for value in parameter.values}:
            place = self.source.position((*path, "otherwise"))
            raise place.error(
                f"{otherwise} has another type than the values of {name}, such as "
                f"{parameter.values[0]}"
            )
        if otherwise not in parameter:
            parameter.outside = (otherwise,)
        if field.default is not None and not _is_member(field.default, parameter):
            raise self._not_a_value(field.default, parameter, (*path, "default"))
        return ParameterSpec(parameter, when, otherwise, field.default, position)

    def _not_a_value(self, value: Value, parameter: Parameter, path: DataPath) -> Exception:
        known = [str(known) for known in parameter.values[:50]]
        message = f"{value} is not a value of {parameter.name}{did_you_mean(str(value), known)}"
        return self.source.position(path).error(message)

    def _domain(self, name: str, field: ParameterModel, path: DataPath) -> Parameter:
        if field.bool:
            return Boolean(name)
        if field.range is not None:
            return self._range(name, field.range, (*path, "range"))
        if field.pow2 is not None:
            return self._pow2(name, field.pow2, (*path, "pow2"))
        if field.choices is not None:
            self._refuse_duplicates(field.choices, (*path, "choices"))
            for i, value in enumerate(field.choices):
                if isinstance(value, bool):
                    place = self.source.position((*path, "choices", i))
                    raise place.error("expected an integer or an identifier, found a boolean")
            return Categorical(name, tuple(field.choices))
        assert field.values is not None
        return self._listed(name, field.values, (*path, "values"))

    def _listed(self, name: str, values: list[bool | int | str], path: DataPath) -> Parameter:
        self._refuse_duplicates(values, path)
        kinds = {type(value) for value in values}
        if len(kinds) > 1:
            first = type(values[0])
            odd = next(i for i, value in enumerate(values) if type(value) is not first)
            message = "a list holds only integers, only booleans or only identifiers; use 'choices'"
            raise self.source.position((*path, odd)).error(message)
        if kinds == {bool}:
            return Boolean(name, tuple(values))
        return (OrderedParameter if kinds == {int} else Categorical)(name, tuple(values))

    def _refuse_duplicates(self, values: list[bool | int | str], path: DataPath) -> None:
        seen: set[tuple[type, Value]] = set()
        for i, value in enumerate(values):
            if (type(value), value) in seen:
                raise self.source.position((*path, i)).error(f"duplicate value {value}")
            seen.add((type(value), value))

    def _range(self, name: str, numbers: list[int], path: DataPath) -> Parameter:
        low, high, step = (*numbers, 1)[:3]
        position = self.source.position(path)
        if step < 1:
            raise position.error(f"expected a step of at least 1, found {step}")
        if low > high:
            raise position.error(f"expected [low, high], found {low} > {high}")
        if (high - low) // step >= MAX_VALUES:
            raise position.error(f"more than {MAX_VALUES} values")
        return IntegerRange(name, low, high, step)

    def _pow2(self, name: str, numbers: list[int], path: DataPath) -> Parameter:
        low, high = numbers
        for i, number in enumerate(numbers):
            if number < 1 or number & (number - 1):
                raise self.source.position((*path, i)).error(f"{number} is not a power of two")
        if low > high:
            raise self.source.position(path).error(f"expected [low, high], found {low} > {high}")
        return PowerOfTwo(name, low, high)


def _same(first: Value, second: Value) -> bool:
    return type(first) is type(second) and first == second


def _is_member(value: Value, parameter: Parameter) -> bool:
    return value in parameter.values and type(value) is type(
        parameter.values[parameter.index(value)]
    )
