"""Judges Solutions of FlashInfer-Bench: a Solution and its Definition as a kernel and a problem,
and the verdict as Traces."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evotune.errors import UsageError
from evotune.formats.constraints import AxisRelations
from evotune.formats.definition_problem import (
    ONCE,
    WORKLOAD,
    DefinitionProblem,
    Described,
    is_float,
)
from evotune.formats.flashinfer_bench import (
    DTYPES,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    ScalarInput,
    Solution,
    StoredInput,
    Trace,
    Workload,
    read_definition,
    read_solution,
    read_text,
    read_traces,
    trace_line,
)
from evotune.formats.given import (
    CANDIDATE_FILE,
    MAKE,
    Given,
    callable_text,
    require_agreement,
    spread,
    usage,
    write_owned,
    write_problem,
)
from evotune.formats.stored_tensors import StoredTensor
from evotune.packages import __version__, version
from evotune.problems.problem import INTEGERS
from evotune.space.objects import PythonCallable
from evotune.trial import Measurement, OutcomeKind

if TYPE_CHECKING:
    from evotune import Verdict

FORMAT = "flashinfer-bench"
_MOST_TIMED = 6
_PACKAGE = "evotune_solution"
_IMPORTS = (
    "from evotune.formats.constraints import AxisRelations",
    "from evotune.formats.definition_problem import DefinitionProblem, Described",
    "from evotune.formats.stored_tensors import StoredTensor",
)
_NO_CODE = (".md", ".txt", ".rst")


@dataclass(frozen=True)
class DataSet:
    """The folder that a solution or a definition belongs to, and the files in it."""

    root: Path
    definition_file: Path
    workload_file: Path | None

    @classmethod
    def around(cls, solution: Solution, candidate: Path, task: Path | None) -> DataSet:
        """The data set that `task` names (its folder, or a definition's file), or that the solution
        lies in."""
        if task is not None and task.is_file():
            folders = [each for each in task.absolute().parents if each.name == "definitions"]
            root = folders[-1].parent if folders else task.absolute().parent
            return cls(root, task, _found(root / "workloads", f"{solution.definition}.jsonl"))
        roots = [task] if task is not None else list(candidate.absolute().parents)
        for root in roots:
            file = _found(root / "definitions", f"{solution.definition}.json")
            if file is not None:
                workloads = _found(root / "workloads", f"{solution.definition}.jsonl")
                return cls(root, file, workloads)
        if task is not None:
            missing = f"{task}: definitions has no {solution.definition}.json"
        else:
            missing = (
                f"{candidate}: definition: no folder above has definitions/…/"
                f"{solution.definition}.json; name the data set as the task"
            )
        raise UsageError(missing)


def _found(folder: Path, name: str) -> Path | None:
    return next(iter(sorted(folder.rglob(name))), None) if folder.is_dir() else None


@dataclass(frozen=True)
class Judged:
    """What a verdict's traces need: the timed workloads by the label of their case."""

    definition: Definition
    solution: Solution
    workloads: Mapping[str, Workload]


def load(candidate: Path, task: Path | None, folder: Path) -> Given:
    """The solution as a kernel, and its definition as a problem. Raises UsageError, one line with
    the file and the field, for a mistake and for what is not supported."""
    solution = read_solution(candidate)
    _check_supported(solution, candidate)
    data = DataSet.around(solution, candidate, task)
    definition = read_definition(data.definition_file)
    if definition.name != solution.definition:
        raise usage(data.definition_file, f"name: expected {solution.definition!r}")
    if definition.op_type == "sampling":
        raise usage(data.definition_file, "op_type: sampling draws at random; it is not judged")
    if data.workload_file is None:
        wanted = f"workloads/{definition.op_type}/{definition.name}.jsonl"
        raise usage(data.root, f"there is no {wanted}, which says the sizes")
    traces = read_traces(data.workload_file, definition)
    if not traces:
        raise usage(data.workload_file, "expected at least one workload")
    made = _Problem(definition, [trace.workload for trace in traces], data)
    require_agreement({path: read_text(path) for path in (candidate, data.definition_file)})
    problem = write_problem(folder, "DefinitionProblem", _IMPORTS, made.members, definition.name)
    write_owned(folder, _candidate_files(solution, definition))
    judged = Judged(definition, solution, made.timed)
    return Given(
        PythonCallable(folder / CANDIDATE_FILE, MAKE),
        {"root": folder, "problem": problem, "dtype": made.dtype, "shapes": made.shapes},
        FORMAT,
        judged,
    )


def _check_supported(solution: Solution, candidate: Path) -> None:
    language = solution.spec.language
    if language not in ("python", "triton"):
        why = f"spec.language: {language} is not supported, only python and triton are"
        raise usage(candidate, why)
    for number, source in enumerate(solution.sources):
        parts = Path(source.path).with_suffix("").parts
        if source.path.endswith(_NO_CODE):
            continue
        if not source.path.endswith(".py") or not all(map(str.isidentifier, parts)):
            why = f"expected a module of Python, got {source.path!r}"
            raise usage(candidate, f"sources[{number}].path: {why}")


def _candidate_files(solution: Solution, definition: Definition) -> dict[str, str]:
    """The solution's files, in a package, and the callable that calls its entry point."""
    files = {CANDIDATE_FILE: "", f"{_PACKAGE}/__init__.py": ""}
    for source in solution.sources:
        path = Path(source.path)
        if path.suffix == ".py":
            files |= {f"{_PACKAGE}/{p}/__init__.py": "" for p in path.parents if p.name}
    files |= {f"{_PACKAGE}/{source.path}": source.content for source in solution.sources}
    file, function = solution.entry
    module = ".".join((_PACKAGE, *Path(file).with_suffix("").parts))
    numbers = {n: spec.dtype for n, spec in definition.inputs.items() if spec.shape is None}
    preparation = [f'_{n} = {_python_type(dtype)}(case["{n}"])' for n, dtype in numbers.items()]
    inputs = [f"_{name}" if name in numbers else name for name in definition.inputs]
    parameters = [name for name in definition.inputs if name not in numbers]
    outputs = list(definition.outputs) if solution.spec.destination_passing_style else []
    call = f"_function({', '.join((*inputs, *outputs))})"
    body = call if outputs else f"return {call}"
    files[CANDIDATE_FILE] = callable_text(
        [f"from {module} import {function} as _function"],
        preparation,
        [*parameters, *outputs],
        body,
    )
    return files


def _python_type(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "int" if DTYPES[dtype] in INTEGERS else "float"


class _Problem:
    """The class variables of a definition's problem, and the shapes of its workloads."""

    def __init__(
        self, definition: Definition, workloads: Sequence[Workload], data: DataSet
    ) -> None:
        self._definition, self._workloads, self._data = definition, workloads, data
        self._relations = self._related()
        free = [name for name in definition.variables if name not in self._relations.derived]
        self._stored = self._stored_tensors()
        named = self._relations.names_in_values
        is_fixed = bool(self._stored) or bool(named)
        self._check_values_are_stored(named)
        self._sizes = (*free, *([WORKLOAD] if self._stored else []))
        self._sizes = self._sizes or (ONCE,)
        scalars = [self._scalars(number) for number in range(len(workloads))]
        shapes = [{**self._sizes_of(n), **scalars[n]} for n in range(len(workloads))]
        floats = [DTYPES[s.dtype] for s in definition.inputs.values() if is_float(DTYPES[s.dtype])]
        self.dtype = next((dtype for dtype in floats), "float32")
        path = data.definition_file.name
        self.members: dict[str, object] = {
            "dtypes": (self.dtype,),
            "sizes": self._sizes,
            "fixed": self._sizes if is_fixed or self._sizes == (ONCE,) else (),
            "constants": scalars[0],
            "ranges": self._ranges(scalars),
            "constant_axes": definition.constants,
            "relations": self._relations,
            "definition_inputs": _described(definition, "inputs"),
            "definition_outputs": _described(definition, "outputs"),
            "stored": self._stored,
            "reference_name": f"{path}: reference",
            "reference_files": {"reference.py": definition.reference},
        }
        distinct = {str(shape): (n, shape) for n, shape in reversed(list(enumerate(shapes)))}
        ordered = sorted(distinct.values(), key=lambda each: self._elements(each[0]))
        chosen = spread(len(ordered), _MOST_TIMED)
        self.shapes = [ordered[place][1] for place in chosen]
        rest = [shape for place, (_, shape) in enumerate(ordered) if place not in chosen]
        self.members["untimed"] = tuple(rest)
        self.timed = self._timed([ordered[place][0] for place in chosen], shapes)

    def _related(self) -> AxisRelations:
        found = self._definition
        free = frozenset(found.variables)
        return AxisRelations.of(found.constraints, frozenset(found.axes), free)

    def _place(self, number: int) -> str:
        return f"{self._data.workload_file}: workload {self._workloads[number].uuid}"

    def _stored_tensors(self) -> dict[int, dict[str, StoredTensor]]:
        stored: dict[int, dict[str, StoredTensor]] = {}
        for number, workload in enumerate(self._workloads):
            for name, given in workload.inputs.items():
                if isinstance(given, StoredInput):
                    file = self._data.root / given.path
                    found = StoredTensor.find(file, given.tensor_key)
                    self._check_stored(number, name, found)
                    stored.setdefault(number + 1, {})[name] = found
        names = {name for tensors in stored.values() for name in tensors}
        for number in range(len(self._workloads) if stored else 0):
            for name in sorted(names - stored.get(number + 1, {}).keys()):
                why = f"inputs.{name}: expected a safetensors input, as another workload has"
                raise usage(self._place(number), why)
        return stored

    def _check_stored(self, number: int, name: str, found: StoredTensor) -> None:
        spec = self._definition.inputs[name]
        axes = {**self._definition.constants, **self._workloads[number].axes}
        shape = tuple(axes[axis] for axis in spec.shape or ())
        if (found.shape, found.dtype) != (shape, DTYPES[spec.dtype]):
            expected = f"expected {spec.dtype} {shape}, found {found.dtype} {found.shape}"
            raise usage(self._place(number), f"inputs.{name}: {expected}")

    def _check_values_are_stored(self, named: frozenset[str]) -> None:
        for name in sorted(named & self._definition.inputs.keys()):
            if self._definition.inputs[name].shape is not None:
                for number in range(len(self._workloads)):
                    if name not in self._stored.get(number + 1, {}):
                        why = "a constraint is on its values: expected a safetensors input"
                        raise usage(self._place(number), f"inputs.{name}: {why}")

    def _sizes_of(self, number: int) -> dict[str, Any]:
        own = {WORKLOAD: number + 1, ONCE: 1}
        axes = self._workloads[number].axes
        sizes = {name: own[name] if name in own else axes[name] for name in self._sizes}
        try:
            whole = self._relations.whole(
                {**self._definition.constants, **{n: axes[n] for n in self._sizes if n in axes}}
            )
        except ValueError as error:
            raise usage(self._place(number), f"axes: {error}") from error
        for name, expression in self._relations.derived.items():
            if whole[name] != axes[name]:
                why = f"axes.{name}: expected {whole[name]}, as {name} == {expression}"
                raise usage(self._place(number), why)
        return sizes

    def _scalars(self, number: int) -> dict[str, Any]:
        """The numbers among a workload's inputs. The package draws from N(0, 1) one that is not
        given."""
        found: dict[str, Any] = {}
        for name, spec in self._definition.inputs.items():
            if spec.shape is not None:
                continue
            given = self._workloads[number].inputs.get(name)
            whole = DTYPES[spec.dtype] in INTEGERS
            if isinstance(given, ScalarInput):
                if whole and given.value != int(given.value):
                    raise usage(self._place(number), f"inputs.{name}.value: expected an integer")
                found[name] = int(given.value) if whole else float(given.value)
            elif whole:
                raise usage(self._place(number), f"inputs.{name}: expected its value")
            else:
                found[name] = 0.75
        return found

    def _ranges(self, scalars: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """From half of the least number to twice the greatest; integers as far as workloads go."""
        ranges: dict[str, Any] = {}
        for name in scalars[0]:
            values = [each[name] for each in scalars]
            low, high = min(values), max(values)
            if isinstance(low, int):
                ranges[name] = range(low, high + 1)
            elif low > 0 or high < 0:
                ranges[name] = (low / 2, high * 2) if low > 0 else (low * 2, high / 2)
            elif low < high:
                ranges[name] = (low, high)
        return ranges

    def _elements(self, number: int) -> int:
        axes = {**self._definition.constants, **self._workloads[number].axes}
        specs = (*self._definition.inputs.values(), *self._definition.outputs.values())
        total = 0
        for spec in specs:
            count = 1
            for axis in spec.shape or ():
                count *= axes[axis]
            total += count
        return total

    def _timed(self, numbers: Sequence[int], shapes: Sequence[Mapping[str, Any]]) -> Any:
        problem: DefinitionProblem = type("Reference", (DefinitionProblem,), self.members)(
            self.dtype
        )
        found = {}
        for number in numbers:
            try:
                case = problem.case(shapes[number], {})
            except ValueError as error:
                raise usage(self._place(number), str(error)) from error
            found[case.label] = self._workloads[number]
        return found


def _described(definition: Definition, field: str) -> dict[str, Described]:
    tensors = getattr(definition, field)
    return {
        name: Described(None if spec.shape is None else tuple(spec.shape), DTYPES[spec.dtype])
        for name, spec in tensors.items()
    }


# The verdict as traces

_STATUS = {
    OutcomeKind.OK: "PASSED",
    OutcomeKind.COMPILE_ERROR: "COMPILE_ERROR",
    OutcomeKind.COMPILE_CRASH: "COMPILE_ERROR",
    OutcomeKind.REJECTED: "COMPILE_ERROR",
    OutcomeKind.RESOURCE_LIMIT: "COMPILE_ERROR",
    OutcomeKind.COMPILE_TIMEOUT: "TIMEOUT",
    OutcomeKind.TIMEOUT: "TIMEOUT",
    OutcomeKind.UNDECIDED: "TIMEOUT",
    OutcomeKind.WRONG_RESULT: "INCORRECT_NUMERICAL",
    OutcomeKind.NAN: "INCORRECT_NUMERICAL",
    OutcomeKind.NONDETERMINISTIC: "INCORRECT_NUMERICAL",
    OutcomeKind.TOO_FAST: "INCORRECT_NUMERICAL",
}
"""FlashInfer-Bench's statuses. All others are RUNTIME_ERROR. It has none for a verdict that is
undecided: TIMEOUT says that the evaluation did not come to its end."""
_OTHER_TENSOR = re.compile(r"\bis (torch\.\w+) (\(.*?\)), expected (torch\.\w+) (\(.*?\))")


def traces(judged: Judged, verdict: Verdict) -> list[Trace]:
    """A trace for each timed workload. The gate judges a solution as a whole, so all have the same
    status. Errors are "NaN", which is not measured: `extra` has them as shares of their limits."""
    outcome = verdict.outcome
    status = evaluation_status(outcome.kind, outcome.reason)
    device = outcome.device_model or (outcome.domain.device if outcome.domain else "")
    environment = Environment(
        device or platform.processor() or platform.machine(),
        {"torch": version("torch"), "evotune": __version__},
    )
    now = datetime.datetime.now(datetime.UTC).isoformat()
    undecided = "undecided: " if outcome.undecided else ""
    evaluation = Evaluation(status, environment, now, f"{undecided}{outcome.reason}")
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        shares = [check.max_error for check in outcome.checks if check.max_error is not None]
        extra: dict[str, object] = {
            "judge": "evotune",
            "outcome": outcome.kind.value,
            "checks": len(outcome.checks),
            "largest_error_over_its_limit": max(shares, default=None),
        }
        evaluation = msgspec.structs.replace(
            evaluation, correctness=Correctness("NaN", "NaN", extra)
        )
    found = []
    for label, workload in judged.workloads.items():
        own = evaluation
        if status == "PASSED":
            own = msgspec.structs.replace(
                evaluation, performance=_performance(outcome.measurements, label)
            )
        found.append(Trace(judged.definition.name, workload, judged.solution.name, own))
    return found


def evaluation_status(kind: OutcomeKind, reason: str) -> str:
    """FlashInfer-Bench's word for an outcome."""
    other = _OTHER_TENSOR.search(reason)
    if kind is OutcomeKind.COMPILE_ERROR and other:
        return "INCORRECT_DTYPE" if other[1] != other[3] else "INCORRECT_SHAPE"
    return _STATUS.get(kind, "RUNTIME_ERROR")


def _performance(measurements: Sequence[Measurement], label: str) -> Performance:
    found = next(each for each in measurements if each.case == label and each.counts)
    return Performance(found.time_us / 1000, found.baseline_us / 1000, found.speedup)


def result(judged: Judged, verdict: Verdict) -> str:
    return "".join(map(trace_line, traces(judged, verdict)))
