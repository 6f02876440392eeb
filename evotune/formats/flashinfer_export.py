"""Writes a problem of evotune as a Definition of FlashInfer-Bench, and a callable as a Solution."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evotune.errors import UsageError
from evotune.export.compute_source import compute_source
from evotune.formats import flashinfer_bench as bench
from evotune.formats.stored_tensors import safetensors_content
from evotune.problems.loading import load_problem, problem_source
from evotune.problems.problem import Case
from evotune.problems.user import UserProblem
from evotune.problems.written import InOut, Tensor
from evotune.space.objects import Kernel, PythonCallable
from evotune.trial import Value
from evotune.util.files import read_regular

_TYPES = {own: theirs for theirs, own in bench.DTYPES.items()}
_STEPS = (1, 2, 5)
_CALLABLE = "evotune_callable"


def write_data_set(
    folder: Path,
    problem: str,
    *,
    dtype: str,
    shapes: Sequence[Mapping[str, Value]],
    name: str,
    root: Path = Path(),
    op_type: str = "evotune",
    kernel: Kernel | None = None,
    configuration: Mapping[str, Value] | None = None,
    author: str = "evotune",
    device: str = "cpu",
) -> list[Path]:
    """Writes a problem (`path/to/problem.py:ClassName` under `root`) into the data set `folder` as
    a Definition with a workload for each shape, and a callable as its Solution. Returns the files.

    - `name`: the Definition's. `op_type`, `author`: as FlashInfer-Bench has them.
    - `kernel`: a callable in one file. `configuration`: the values of its parameters.
    - `device`: the solution's target hardware.

    Raises UsageError, one line, for what the format cannot say: tensors updated in place, flags,
    `same`, other types, a `compute` that uses other code of its file, a kernel in another language.
    """
    found = load_problem(problem, dtype, root)
    writer = _Writer(found, problem, root, [found.case(shape, {}) for shape in shapes], name)
    definition = writer.definition(op_type)
    written = [bench.write_definition(definition, folder)]
    stored = writer.stored(folder)
    workloads = [writer.workload(number, stored) for number in range(len(shapes))]
    written += [bench.write_workloads(workloads, definition, folder)]
    if kernel is not None:
        solution = writer.solution(kernel, dict(configuration or {}), author, device)
        written += [bench.write_solution(solution, definition, folder)]
    return [*written, *stored]


class _Writer:
    def __init__(
        self, problem: UserProblem, reference: str, root: Path, cases: Sequence[Case], name: str
    ) -> None:
        self._problem, self._reference, self._root = problem, reference, root
        self._cases, self._name = cases, name
        if not cases:
            raise UsageError(f"{name}: expected at least one shape")
        if problem.flags or problem.optional or problem.has_same:
            raise UsageError(
                f"{reference}: a Definition has no flags, optional tensors or `same` of its own"
            )
        self._sizes = problem.sizes_of(cases[0])
        self._axes: dict[str, bench.ConstantAxis | bench.VariableAxis] = {}
        self._constraints: list[str] = []
        for size in problem.sizes:
            values = {int(case.symbols[size]) for case in cases}
            if size in problem.fixed:
                if len(values) > 1:
                    raise UsageError(f"{reference}: {size} is fixed, but shapes have several")
                self._axes[size] = bench.ConstantAxis(values.pop())
            else:
                self._axes[size] = bench.VariableAxis()
        self._inputs = self._tensors("inputs")
        self._outputs = self._tensors("outputs")
        self._check_axes()

    def definition(self, op_type: str) -> bench.Definition:
        numbers = {each: bench.TensorSpec(None, "float32") for each in self._problem.ranges}
        for each, values in self._problem.ranges.items():
            if isinstance(values, range):
                numbers[each] = bench.TensorSpec(None, "int64")
        found = bench.Definition(
            self._name,
            op_type,
            self._axes,
            {**self._inputs, **numbers},
            self._outputs,
            self._reference_text([*self._inputs, *numbers]),
            constraints=self._constraints,
            description=(type(self._problem).__doc__ or "").strip() or None,
        )
        for wrong in bench.mistakes_in_definition(found):
            raise UsageError(f"{self._reference}: {wrong}")
        return found

    def _tensors(self, method: str) -> dict[str, bench.TensorSpec]:
        found = {}
        for name, tensor in self._described(method, self._sizes).items():
            dtype = tensor.dtype or self._problem.dtype
            if isinstance(tensor, InOut):
                raise UsageError(f"{self._reference}: {name} is updated in place")
            if dtype not in _TYPES:
                raise UsageError(f"{self._reference}: {name}: a Definition has no {dtype}")
            shape = [self._axis(method, name, place) for place in range(len(tensor.shape))]
            found[name] = bench.TensorSpec(shape, _TYPES[dtype])
        return found

    def _described(self, method: str, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        return self._problem.written.described(method, sizes)

    def _axis(self, method: str, name: str, place: int) -> str:
        """The axis of a dimension: a size, a constant, or one that follows from sizes."""

        def extent(sizes: Mapping[str, int]) -> int:
            return self._described(method, sizes)[name].shape[place]

        base = extent(self._sizes)
        slopes = {
            size: extent({**self._sizes, size: own + 1}) - base
            for size, own in self._sizes.items()
            if isinstance(self._axes[size], bench.VariableAxis)
        }
        slopes = {size: slope for size, slope in slopes.items() if slope}
        rest = base - sum(slope * self._sizes[size] for size, slope in slopes.items())
        for steps in itertools.product(_STEPS, repeat=len(slopes)):
            moved = {size: self._sizes[size] + n for size, n in zip(slopes, steps, strict=True)}
            expected = rest + sum(slope * moved[size] for size, slope in slopes.items())
            if extent({**self._sizes, **moved}) != expected:
                raise UsageError(
                    f"{self._reference}: {name}: its extent {place} is no sum of multiples of sizes"
                )
        if list(slopes.values()) == [1] and not rest:
            return next(iter(slopes))
        if not slopes:
            same = [size for size, own in self._sizes.items() if own == base]
            fixed = [s for s in same if isinstance(self._axes[s], bench.ConstantAxis)]
            axis = fixed[0] if fixed else f"const_{base}"
            self._axes[axis] = bench.ConstantAxis(base)
            return axis
        axis = f"{name}_{place}"
        self._axes[axis] = bench.VariableAxis()
        terms = [size if s == 1 else f"{s} * {size}" for size, s in slopes.items()]
        terms += [str(rest)] if rest else []
        self._constraints.append(f"{axis} == {' + '.join(terms)}")
        return axis

    def _check_axes(self) -> None:
        named = {axis for spec in self._inputs.values() for axis in spec.shape or ()}
        for name, axis in self._axes.items():
            if isinstance(axis, bench.VariableAxis) and name not in named:
                raise UsageError(f"{self._reference}: {name} is an extent of no input")

    def _extents(self) -> dict[str, str]:
        """The sizes, as expressions of the inputs."""
        found = {}
        for size in self._problem.sizes:
            if isinstance(self._axes[size], bench.ConstantAxis):
                found[size] = str(self._sizes[size])
                continue
            for name, spec in self._inputs.items():
                if size in (spec.shape or ()):
                    found[size] = f"{name}.shape[{(spec.shape or []).index(size)}]"
                    break
        return found

    def _reference_text(self, arguments: Sequence[str]) -> str:
        file, content = problem_source(self._reference, self._root)
        name = f"{file}:{self._reference.rpartition(':')[2]}"
        own = compute_source(name, {file: content})
        if own is None:
            why = "`compute` uses code of its file, other modules or itself: it must stand alone"
            raise UsageError(f"{self._reference}: {why}")
        known = {**self._extents(), **{n: repr(v) for n, v in self._problem.constants.items()}}
        listed = self._problem.written.named("compute")
        given = {name: name for name in arguments}
        given |= {n: known[n] for n in known if n in listed and n not in given}
        passed = ", ".join(f"{name}={value}" for name, value in given.items())
        results = ", ".join(f'found["{name}"]' for name in self._outputs)
        return (
            f"{own.decode()}\n\ndef run({', '.join(arguments)}):\n"
            f"    found = compute(None, {passed})\n    return {results}\n"
        )

    # Workloads

    def stored(self, folder: Path) -> list[Path]:
        """Writes the inputs that are not any numbers, a file for each shape."""
        described = self._described("inputs", self._sizes)
        kept = [name for name, tensor in described.items() if tensor.values is not None]
        paths = []
        for number, case in enumerate(self._cases if kept else (), 1):
            made = self._problem.make_inputs(case, "normal", number)
            path = folder / "blob" / "workloads" / self._name / f"{number}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(safetensors_content({name: made[name] for name in kept}))
            paths.append(path)
        return paths

    def workload(self, number: int, stored: Sequence[Path]) -> bench.Workload:
        case = self._cases[number]
        sizes = self._problem.sizes_of(case)
        axes = {size: sizes[size] for size in sizes}
        for method, specs in (("inputs", self._inputs), ("outputs", self._outputs)):
            for name, tensor in self._described(method, sizes).items():
                axes |= dict(zip(specs[name].shape or (), tensor.shape, strict=True))
        described = self._described("inputs", sizes)
        inputs: dict[str, Any] = {}
        for name, tensor in described.items():
            inputs[name] = bench.RandomInput()
            if tensor.values is not None:
                path = f"blob/workloads/{self._name}/{stored[number].name}"
                inputs[name] = bench.StoredInput(path, name)
        for name, value in self._problem.constants_of(case).items():
            inputs[name] = bench.ScalarInput(value)
        free = {
            name: n for name, n in axes.items() if isinstance(self._axes[name], bench.VariableAxis)
        }
        return bench.Workload(free, inputs, f"{self._name}-{number + 1}")

    # A solution

    def solution(
        self, kernel: Kernel, configuration: Mapping[str, Value], author: str, device: str
    ) -> bench.Solution:
        if not isinstance(kernel, PythonCallable):
            why = "only callables in Python can be written as a Solution"
            raise UsageError(f"{self._name}: the kernel is of language {kernel.language}: {why}")
        if kernel.source_text is None and kernel.source is None:
            raise UsageError(f"{self._name}: the callable has no source")
        text = kernel.source_text
        if text is None:
            text = read_regular(self._root / str(kernel.source)).decode()
        sizes = ", ".join(f'"{size}": {value}' for size, value in self._extents().items())
        numbers = list(self._problem.ranges)
        others = {n: v for n, v in self._problem.constants.items() if n not in numbers}
        constants = "".join(f', "{name}": {value!r}' for name, value in others.items())
        ranged = "".join(f', "{name}": {name}' for name in numbers)
        arguments = ", ".join([*self._inputs, *numbers])
        outputs = ", ".join(self._outputs)
        given = ", ".join(f"{name}={name}" for name in self._inputs)
        written = ", ".join(f"{name}={name}" for name in self._outputs)
        main = f'''\
import inspect

from .{_CALLABLE} import {kernel.entry} as make

CONFIGURATION = {dict(configuration)!r}
_made = {{}}


def run({arguments}, {outputs}):
    case = {{{sizes}{constants}{ranged}, "dtype": {self._problem.dtype!r}}}
    key = tuple(case.items())
    if key not in _made:
        function = make(dict(CONFIGURATION), case)
        names = inspect.signature(function).parameters
        _made[key] = function, "{next(iter(self._outputs))}" in names
    function, takes_outputs = _made[key]
    if takes_outputs:
        function({given}, {written})
        return
    found = function({given})
    if isinstance(found, dict):
        found = [found[name] for name in {list(self._outputs)!r}]
    for target, value in zip(({outputs},), found if isinstance(found, list | tuple) else [found]):
        target.copy_(value)
'''
        sources = [bench.Source("main.py", main), bench.Source(f"{_CALLABLE}.py", text)]
        spec = bench.BuildSpec("python", [device], "main.py::run")
        found = bench.Solution(f"{self._name}_{kernel.entry}", self._name, author, spec, sources)
        for wrong in bench.mistakes_in_solution(found):
            raise UsageError(f"{self._name}: {wrong}")
        return found
