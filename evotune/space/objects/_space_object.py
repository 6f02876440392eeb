"""A search space as a Python object: `Space`."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evotune.space.document import SpaceDocument, load_space, parse_space
from evotune.space.objects._domains import Constraint, Domain
from evotune.space.objects._gathering import module_of_class
from evotune.space.objects._kernel_objects import Kernel
from evotune.space.objects._yaml_text import (
    condition_from_data,
    domain_from_data,
    kernel_from_data,
    yaml_text,
)
from evotune.space.objects.plain_data import Expression, plain
from evotune.space.reading.object_path import Data, DataPath, object_path
from evotune.space.reading.yaml_source import MADE_OF_OBJECTS, MAX_BYTES, Position, read_yaml
from evotune.space.suggest import describe
from evotune.trial import Value

_OF_THE_PROBLEM = ("problem", "dtype", "shapes", "variants", "held_out")
_OF_THE_KERNELS = ("kernel", "kernels")


@dataclass(frozen=True, kw_only=True, repr=False)
class Space:
    """A kernel, its tunable parameters and the problem that it solves.

    Each argument has the meaning and the default of the key of that name in a space file
    (docs/spaces.md). A space is checked when it is made: a mistake is a `SpaceError` that names the
    object, as in `Space.parameters["BLOCK"]: expected at least 1 item, found 0`.

    - `name`: the name in reports; the kernel's if not given. `description`: one line for readers.
    - `kernel`, or `kernels` if there are several: `CudaKernel`, `CppKernel`, `TritonKernel`.
    - `root`: the folder that holds the kernels' and the problem's files: the current directory
      unless it is given, not the folder of the calling script.
    - `problem`: the name of a problem that ships with evotune, `path/to/problem.py:ClassName`, or
      a class derived from `evotune.Problem`. The class may be one of a script or a notebook: its
      source, and the source of all that it uses there, is written into a file of its own.
    - `dtype`: float16, bfloat16 or float32, as text or torch's own.
    - `shapes`: the sizes to tune for, all at once. `variants`: further symbols; each shape is tuned
      in each variant. `held_out`: shapes that judge the champion alone.
    - `parameters`: name -> a list of values, `ints`, `powers_of_two`, `choices`, `booleans`.
    - `let`: name -> expression, for use in all other expressions.
    - `constraints`: conditions on configurations, as text or as `Constraint`; `after_compile`: the
      same on the compiler's figures, such as registers.
    - `baseline`: `torch:NAME`, or `torch:best` for the fastest one; of attention also
      `sdpa:best`, an optional library such as `fa4`, or `library:best`.
    - `objective`: "geomean_speedup", or ["speedup", "error"] for a Pareto front.
    - `deterministic`: False where two launches of any kernel may differ in bits.
    - `default`: the configuration that the search starts from. `try_first`: the next ones.
    - `search`: strategy, population, elites, seed, lookahead.
    - `budget`: trials, minutes, compiles, speedup. `stop`: no_improvement, in trials.
    - `timeouts`: compile_s and trial_s, in seconds.
    - `recorded`: file and delay_ms (milliseconds) of a recording, instead of problem, kernels and
      parameters.

    >>> from evotune.space.objects import CppKernel, Space, ints
    >>> space = Space(
    ...     kernel=CppKernel("softmax.cpp", "softmax", ["x", "out", "rows", "columns"]),
    ...     parameters={"UNROLL": [1, 2, 4], "THREADS": ints(1, 4)},
    ...     constraints=["UNROLL * THREADS <= 8"],
    ...     problem="softmax.py:Softmax",
    ...     shapes=[{"rows": 4096, "columns": 1024}],
    ... )
    >>> space.document.name
    'softmax'
    >>> print(space.to_yaml().splitlines()[-1])
    constraints: [UNROLL * THREADS <= 8]
    """

    name: str | None = None
    description: str | None = None
    root: str | Path | None = None
    problem: str | type | None = None
    dtype: object = None
    shapes: Sequence[Mapping[str, Value]] | None = None
    variants: Sequence[Mapping[str, Value]] | None = None
    held_out: Sequence[Mapping[str, Value]] | None = None
    kernel: Kernel | None = None
    kernels: Sequence[Kernel] | None = None
    let: Mapping[str, Expression] | None = None
    parameters: Mapping[str, Sequence[Value] | Domain | Mapping[str, object]] | None = None
    constraints: Sequence[Expression | Constraint | Mapping[str, Expression]] | None = None
    after_compile: Sequence[Expression | Constraint | Mapping[str, Expression]] | None = None
    baseline: str | None = None
    objective: str | Sequence[str] | None = None
    deterministic: bool | None = None
    default: Mapping[str, Value] | None = None
    try_first: Sequence[Mapping[str, Value]] | None = None
    search: Mapping[str, str | int] | None = None
    budget: Mapping[str, int | float] | None = None
    stop: Mapping[str, int] | None = None
    timeouts: Mapping[str, float] | None = None
    recorded: Mapping[str, str | float] | None = None

    def __post_init__(self) -> None:
        self.document  # noqa: B018 - checks it

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"Space({', '.join(said)})"

    @functools.cached_property
    def document(self) -> SpaceDocument:
        """The space as evotune works with it, checked as far as it can be without a device."""
        root = self._root
        self._check_source_texts()
        text = MADE_OF_OBJECTS + yaml_text({**self._data, "root": root.as_posix()})
        if len(text.encode()) > MAX_BYTES:
            raise Position(place="Space").error("the space is larger than 1 MiB")
        return parse_space(text, root / "space.yaml")

    def to_yaml(self) -> str:
        """The same space as a space file, to be saved in the folder that is its `root`.

        Kernels given as text and a problem given as a class are named in it, not held:
        `written_files` has them.
        """
        return yaml_text(self._data)

    def to_run_yaml(self) -> str:
        """`to_yaml` for a folder of evotune's own: messages name the objects, not lines."""
        return MADE_OF_OBJECTS + self.to_yaml()

    @classmethod
    def from_yaml(cls, path: str | Path) -> Space:
        """The space of a file. SpaceError, with file, line and column, for a mistake in it.

        Sources stay where the file finds them: `root` is that folder.
        """
        document = load_space(Path(path))
        data = read_yaml(Path(path)).data
        assert isinstance(data, dict)
        given: dict[str, Any] = {**data, "root": document.root}
        problem = given.pop("problem", {})
        given |= {"problem": problem["name"], **problem} if problem else {}
        given.pop("name")
        if document.recorded is not None:  # it may lie beside the file, deeper than the root
            file = os.path.relpath(document.recorded.file, document.root)
            given["recorded"] = {**given["recorded"], "file": file}
        kernels = given.pop("kernels", {})
        made = [
            kernel_from_data(spec.name, spec.language, kernels[spec.name])
            for spec in document.kernels
        ]
        for key in ("constraints", "after_compile"):
            if key in given:
                given[key] = [condition_from_data(item) for item in given[key]]
        if "parameters" in given:
            given["parameters"] = {
                name: domain_from_data(item) for name, item in given["parameters"].items()
            }
        return cls(name=document.name, kernels=made or None, **given)

    @functools.cached_property
    def written_files(self) -> Mapping[str, bytes]:
        """Path under the root -> content, of kernels given as text and of a problem's class."""
        files = {
            str(self._kernel_data[name]["source"]): kernel.source_text.encode()
            for name, kernel in self._named_kernels.items()
            if kernel.source_text is not None
        }
        if isinstance(self.problem, type):
            files[self._problem_file[0]] = self._problem_file[1].encode()
        return files

    @functools.cached_property
    def _root(self) -> Path:
        """The root's absolute path, since the current directory may change later."""
        if self.root is None:
            return Path.cwd()
        text = plain(self.root, ("root",), self._place)
        if not isinstance(text, str):
            message = f"expected the path of a folder, found {describe(text)}"
            raise Position(place="Space.root").error(message)
        return Path(text).absolute()

    @functools.cached_property
    def _data(self) -> dict[str, Data]:
        """The space file's data; its root is the folder that the file lies in."""
        special = (*_OF_THE_PROBLEM, *_OF_THE_KERNELS, "name", "root")
        name = next(iter(self._named_kernels), None) if self.name is None else self.name
        given: dict[str, object] = {"name": name, "description": self.description, "root": "."}
        if any(getattr(self, key) is not None for key in _OF_THE_PROBLEM):
            given["problem"] = self._problem_data()
        if self._named_kernels:
            given["kernels"] = self._kernel_data
        for field in fields(self):
            if field.name not in special:
                given[field.name] = getattr(self, field.name)
        data = plain({k: v for k, v in given.items() if v is not None}, (), self._place)
        assert isinstance(data, dict)
        return data

    def _place(self, path: DataPath) -> str:
        kernels = {
            name: {"language": kernel.language} for name, kernel in self._named_kernels.items()
        }
        return object_path(path, {"kernels": kernels})  # type: ignore[dict-item]

    @functools.cached_property
    def _named_kernels(self) -> dict[str, Kernel]:
        """The kernels by name. SpaceError for a value of another type, or a name used twice."""
        given: Sequence[object] = [] if self.kernel is None else [self.kernel]
        places = ["Space.kernel"]
        if self.kernels is not None:
            here = Position(place="Space.kernels")
            if given:
                raise here.error("'kernel' and 'kernels' exclude each other")
            if not isinstance(self.kernels, list | tuple):
                raise here.error(f"expected a list, found {describe(self.kernels)}")
            given = self.kernels
            places = [f"Space.kernels[{i}]" for i in range(len(given))]
        named: dict[str, Kernel] = {}
        for place, kernel in zip(places, given, strict=False):
            if not isinstance(kernel, Kernel):
                expected = "a kernel, such as CudaKernel(...)"
                message = f"expected {expected}, found {describe(kernel)}"
                raise Position(place=place).error(message)
            name = str(kernel.name or kernel.entry or "kernel")
            if name in named:
                message = f"a second kernel is named '{name}'; tell them apart by name="
                raise Position(place=place).error(message)
            named[name] = kernel
        return named

    def _check_source_texts(self) -> None:
        """SpaceError for a source that is no text, as bytes are."""
        for name, kernel in self._named_kernels.items():
            found: object = kernel.source_text
            if found is not None and not isinstance(found, str):
                place = self._place(("kernels", name, "source_text"))
                raise Position(place=place).error(f"expected a text, found {describe(found)}")

    @functools.cached_property
    def _kernel_data(self) -> dict[str, dict[str, object]]:
        return {
            name: {
                key: self._under_root(value) if key == "source" else value
                for key, value in kernel.to_data().items()
                if value is not None
            }
            for name, kernel in self._named_kernels.items()
        }

    def _under_root(self, source: object) -> object:
        """A file's path relative to the root. A path outside the root stays as it is, and the
        reader refuses it."""
        if not isinstance(source, str | Path):
            return source
        path = Path(source)
        if path.is_absolute():
            for real, root in (
                (path, self._root),
                (path.parent.resolve() / path.name, self._root.resolve()),
            ):
                if real.is_relative_to(root):
                    return real.relative_to(root).as_posix()
        return path.as_posix()

    def _problem_data(self) -> dict[str, object]:
        if not isinstance(self.problem, str | type):
            expected = "a name, path/to/problem.py:ClassName or a class"
            message = f"expected {expected}, found {describe(self.problem)}"
            raise Position(place="Space.problem").error(message)
        name = self.problem
        if isinstance(name, type):
            name = f"{self._problem_file[0]}:{name.__name__}"
        dtype = self.dtype
        if dtype is not None:
            dtype = str(dtype).removeprefix("torch.")  # torch.float16 itself will do
        data = {"name": name, "dtype": dtype, "shapes": self.shapes}
        data |= {"variants": self.variants, "held_out": self.held_out}
        return {key: value for key, value in data.items() if value is not None}

    @functools.cached_property
    def _problem_file(self) -> tuple[str, str]:
        """(file name, text) of the module that is made of the problem's class."""
        assert isinstance(self.problem, type)
        name, text = module_of_class(self.problem, Position(place="Space.problem"))
        taken = {str(data.get("source")) for data in self._kernel_data.values()}
        return (f"{name.removesuffix('.py')}_problem.py" if name in taken else name), text
