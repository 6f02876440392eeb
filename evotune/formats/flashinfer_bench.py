"""FlashInfer-Bench's files: Definition, Workload, Solution and Trace, read and written.

The fields are those of the package `flashinfer-bench` 0.1.2, whose models accept what is written
here (tests/formats/test_flashinfer_bench.py). Reading executes nothing.

A data set is a folder:

    definitions/<op_type>/<name>.json
    workloads/<op_type>/<name>.jsonl             a Trace without solution a line
    solutions/<author>/<op_type>/<name>/*.json
    traces/<op_type>/<name>.jsonl                a Trace a line
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

import msgspec

from evotune.errors import UsageError
from evotune.formats.constraints import parsed
from evotune.util.files import read_regular, whole_file

DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "bool": "bool",
}
"""The types of tensors that evotune supports, by FlashInfer-Bench's names."""
NOT_SUPPORTED = ("float4_e2m1",)
LANGUAGES = ("python", "triton", "cpp", "cuda", "tilelang")
STATUSES = (
    *("PASSED", "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE"),
    *("RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"),
)
_MOST_BYTES = 64 << 20
_MOST_SIZE = 1 << 48


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class ConstantAxis(_Strict, frozen=True, tag_field="type", tag="const"):
    value: int
    description: str | None = None


class VariableAxis(_Strict, frozen=True, tag_field="type", tag="var"):
    description: str | None = None


class TensorSpec(_Strict, frozen=True):
    """`shape`: names of axes; None for a number."""

    shape: list[str] | None
    dtype: str
    description: str | None = None


class Definition(_Strict, frozen=True):
    """`reference`: Python with a function `run`, which gets the inputs and returns the outputs."""

    name: str
    op_type: str
    axes: dict[str, ConstantAxis | VariableAxis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    tags: list[str] = []
    description: str | None = None
    constraints: list[str] = []

    @property
    def constants(self) -> dict[str, int]:
        return {n: axis.value for n, axis in self.axes.items() if isinstance(axis, ConstantAxis)}

    @property
    def variables(self) -> list[str]:
        return [n for n, axis in self.axes.items() if isinstance(axis, VariableAxis)]


class RandomInput(_Strict, frozen=True, tag_field="type", tag="random"):
    pass


class ScalarInput(_Strict, frozen=True, tag_field="type", tag="scalar"):
    value: bool | int | float


class StoredInput(_Strict, frozen=True, tag_field="type", tag="safetensors"):
    """`path` is relative to the data set's folder."""

    path: str
    tensor_key: str


class Workload(_Strict, frozen=True):
    axes: dict[str, int]
    inputs: dict[str, RandomInput | ScalarInput | StoredInput]
    uuid: str


class Source(_Strict, frozen=True):
    path: str
    content: str


class BuildSpec(_Strict, frozen=True):
    """`entry_point`: `file::function`. With `destination_passing_style`, which is the default, the
    function gets the outputs after the inputs."""

    language: str
    target_hardware: list[str]
    entry_point: str
    dependencies: list[str] = []
    destination_passing_style: bool = True
    binding: Literal["tvm-ffi", "torch"] | None = None


class Solution(_Strict, frozen=True):
    name: str
    definition: str
    author: str
    spec: BuildSpec
    sources: list[Source]
    description: str | None = None

    @property
    def entry(self) -> tuple[str, str]:
        """The file and the function."""
        file, _, function = self.spec.entry_point.partition("::")
        return file, function


class Correctness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The package writes NaN and infinities as texts."""

    max_relative_error: float | str = 0.0
    max_absolute_error: float | str = 0.0
    extra: dict[str, object] | None = None


class Performance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    latency_ms: float = 0.0
    reference_latency_ms: float = 0.0
    speedup_factor: float = 0.0


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hardware: str
    libs: dict[str, str] = {}


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: str
    environment: Environment
    timestamp: str
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One solution's evaluation on one workload. Without `solution` it only states the workload."""

    definition: str
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None


_Kind = TypeVar("_Kind", Definition, Solution, Trace)


def read_definition(path: Path) -> Definition:
    """Raises UsageError, one line with the file and the field, for a mistake."""
    found = _decoded(read_text(path), Definition, str(path))
    for wrong in mistakes_in_definition(found):
        raise UsageError(f"{path}: {wrong}")
    return found


def read_solution(path: Path) -> Solution:
    """Raises UsageError, one line with the file and the field, for a mistake."""
    found = _decoded(read_text(path), Solution, str(path))
    for wrong in mistakes_in_solution(found):
        raise UsageError(f"{path}: {wrong}")
    return found


def read_traces(path: Path, definition: Definition | None = None) -> list[Trace]:
    """The traces of a file, a line each. Of a given `definition` the workloads are checked too.
    Raises UsageError, one line with the file, the line and the field, for a mistake."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        trace = _decoded(line, Trace, f"{path}:{number}")
        for wrong in _mistakes_in_trace(trace, definition):
            raise UsageError(f"{path}:{number}: {wrong}")
        found.append(trace)
    return found


def trace_line(trace: Trace) -> str:
    """The trace as a line of JSON, with its end."""
    return msgspec.json.encode(trace).decode() + "\n"


def json_text(found: Definition | Solution) -> str:
    """The object as the package writes it."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def write_definition(definition: Definition, root: Path) -> Path:
    """Writes it into the data set at `root`; its path."""
    path = root / "definitions" / definition.op_type / f"{definition.name}.json"
    return _written(path, json_text(definition))


def write_solution(solution: Solution, definition: Definition, root: Path) -> Path:
    """Writes it into the data set at `root`; its path."""
    folder = root / "solutions" / solution.author / definition.op_type / definition.name
    return _written(folder / f"{solution.name}.json", json_text(solution))


def write_workloads(workloads: Sequence[Workload], definition: Definition, root: Path) -> Path:
    """Writes them into the data set at `root`; their path."""
    path = root / "workloads" / definition.op_type / f"{definition.name}.jsonl"
    return _written(path, "".join(trace_line(Trace(definition.name, w)) for w in workloads))


def append_traces(traces: Sequence[Trace], definition: Definition, root: Path) -> Path:
    """Adds them to those of the data set at `root`; their path."""
    path = root / "traces" / definition.op_type / f"{definition.name}.jsonl"
    before = read_text(path).decode() if path.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    return _written(path, before + "".join(map(trace_line, traces)))


def read_text(path: Path) -> bytes:
    """A file's content. Raises UsageError if it cannot be read."""
    try:
        content = read_regular(path, _MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: the file is larger than {_MOST_BYTES >> 20} MiB")
    return content


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(text.encode())
    return path


_AT = re.compile(r" - at `\$\.?(.*)`$")


def _decoded(content: bytes, kind: type[_Kind], place: str) -> _Kind:
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        message = " ".join(str(error).split())
        found = _AT.search(message)
        field = _with_key(content, kind, found[1]) if found and found[1] else ""
        message = _AT.sub("", message).replace("`", "'")
        if not message.startswith("JSON"):
            message = message[:1].lower() + message[1:]
        raise UsageError(f"{place}: {field}{': ' if field else ''}{message}") from error


def _with_key(content: bytes, kind: type[_Kind], field: str) -> str:
    """The field with the key of a mapping, which msgspec writes as `[...]`."""
    before, mark, after = field.partition("[...]")
    if not mark:
        return field
    data = msgspec.json.decode(content)
    *outer, last = before.split(".")
    holder = data
    for name in outer:
        holder = holder[name]
    for key, value in list(holder[last].items()):
        holder[last] = {key: value}
        try:
            msgspec.convert(data, kind)
        except ValueError as error:
            found = _AT.search(str(error))
            if found and found[1] == field:
                return f"{before}.{key}{after}"
    return field


def mistakes_in_definition(found: Definition) -> Iterator[str]:
    """What is wrong, a line each with its field."""
    for field in ("name", "op_type"):
        yield from _not_a_name(field, getattr(found, field))
    for name, axis in found.axes.items():
        yield from _not_an_identifier(f"axes.{name}", name)
        if isinstance(axis, ConstantAxis) and not 1 <= axis.value < _MOST_SIZE:
            yield f"axes.{name}.value: expected an integer of at least 1, got {axis.value}"
    for field, tensors in (("inputs", found.inputs), ("outputs", found.outputs)):
        if not tensors:
            yield f"{field}: expected at least one"
        for name, spec in tensors.items():
            yield from _not_an_identifier(f"{field}.{name}", name)
            yield from _mistakes_in_tensor(f"{field}.{name}", spec, found)
    for name in (*found.inputs, *found.outputs):
        if name in found.axes:
            yield f"axes.{name}: a tensor has this name too"
    for name in found.inputs.keys() & found.outputs.keys():
        yield f"outputs.{name}: an input has this name too"
    for wrong in missing_function(found.reference, "run"):
        yield f"reference: {wrong}"
    yield from _mistakes_in_constraints(found)


def _mistakes_in_constraints(found: Definition) -> Iterator[str]:
    for number, text in enumerate(found.constraints):
        try:
            parsed(text)
        except SyntaxError:
            yield f"constraints[{number}]: {text!r} is no expression"


def _mistakes_in_tensor(place: str, spec: TensorSpec, found: Definition) -> Iterator[str]:
    if spec.dtype in NOT_SUPPORTED:
        yield f"{place}.dtype: evotune does not support {spec.dtype}"
    elif spec.dtype not in DTYPES:
        yield f"{place}.dtype: expected one of {', '.join(DTYPES)}, got {spec.dtype!r}"
    for axis in spec.shape or ():
        if axis not in found.axes:
            yield f"{place}.shape: there is no axis {axis!r}"


def mistakes_in_solution(found: Solution) -> Iterator[str]:
    """What is wrong, a line each with its field."""
    for field in ("name", "definition", "author"):
        yield from _not_a_name(field, getattr(found, field))
    if found.spec.language not in LANGUAGES:
        expected = ", ".join(LANGUAGES)
        yield f"spec.language: expected one of {expected}, got {found.spec.language!r}"
    if not found.spec.target_hardware:
        yield "spec.target_hardware: expected at least one"
    if found.spec.entry_point.count("::") != 1:
        yield f"spec.entry_point: expected file::function, got {found.spec.entry_point!r}"
    paths = [source.path for source in found.sources]
    for number, path in enumerate(paths):
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or "\\" in path:
            yield f"sources[{number}].path: expected a path below the solution, got {path!r}"
        if path in paths[:number]:
            yield f"sources[{number}].path: {path!r} stands twice"
    file, function = found.entry
    content = {source.path: source.content for source in found.sources}.get(file)
    if content is None:
        yield f"spec.entry_point: sources has no file {file!r}"
    elif found.spec.language in ("python", "triton"):
        if not file.endswith(".py"):
            yield f"spec.entry_point: expected a file .py, got {file!r}"
        for wrong in missing_function(content, function):
            yield f"sources ({file}): {wrong}"


def _mistakes_in_trace(found: Trace, definition: Definition | None) -> Iterator[str]:
    if (found.solution is None) != (found.evaluation is None):
        yield "a trace has both solution and evaluation, or none of them"
    evaluation = found.evaluation
    if evaluation is not None and evaluation.status not in STATUSES:
        yield f"evaluation.status: expected one of {', '.join(STATUSES)}"
    if definition is None:
        return
    if found.definition != definition.name:
        yield f"definition: expected {definition.name!r}, got {found.definition!r}"
    yield from _mistakes_in_axes(found.workload.axes, definition)
    yield from _mistakes_in_inputs(found.workload.inputs, definition)


def _mistakes_in_axes(axes: Mapping[str, int], definition: Definition) -> Iterator[str]:
    for name in definition.variables:
        if name not in axes:
            yield f"workload.axes: {name} is missing"
    for name, size in axes.items():
        if name not in definition.axes:
            yield f"workload.axes.{name}: {definition.name} has no such axis"
        elif not 1 <= size < _MOST_SIZE:
            yield f"workload.axes.{name}: expected an integer of at least 1, got {size}"
        elif definition.constants.get(name, size) != size:
            yield f"workload.axes.{name}: expected {definition.constants[name]}, got {size}"


def _mistakes_in_inputs(
    inputs: Mapping[str, RandomInput | ScalarInput | StoredInput], definition: Definition
) -> Iterator[str]:
    for name, given in inputs.items():
        if name not in definition.inputs:
            yield f"workload.inputs.{name}: {definition.name} has no such input"
        elif isinstance(given, ScalarInput) != (definition.inputs[name].shape is None):
            expected = "a scalar" if definition.inputs[name].shape is None else "a tensor"
            yield f"workload.inputs.{name}: expected {expected}"
        elif isinstance(given, ScalarInput) and not math.isfinite(given.value):
            yield f"workload.inputs.{name}.value: expected a finite number"


def _not_a_name(field: str, text: str) -> Iterator[str]:
    """Names become parts of paths."""
    if not text or "/" in text or "\0" in text or text in (".", ".."):
        yield f"{field}: expected a name, got {text!r}"


def _not_an_identifier(place: str, name: str) -> Iterator[str]:
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        yield f"{place}: expected a name as Python has them, without _ at its start"


def missing_function(text: str, function: str) -> Iterator[str]:
    """What is wrong if Python's text does not bind the name; it is not executed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        yield f"line {line}: {getattr(error, 'msg', error)}"
        return
    if function not in bound_names(tree):
        yield f"has no {function}"


def bound_names(tree: ast.Module) -> set[str]:
    """The names that a module's statements bind, those in `if` and `try` too."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name.partition(".")[0] for each in node.names}
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            waiting += ast.iter_child_nodes(node)
    return found
