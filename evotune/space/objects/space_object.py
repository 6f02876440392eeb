"""A search space as a Python object: `Space`."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import math
import os
import subprocess
import symtable
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import yaml

from evotune.errors import SpaceError
from evotune.space.document import SpaceDocument, load_space, parse_space
from evotune.space.objects.kernel_objects import (
    Argument,
    Constraint,
    Domain,
    Expression,
    Kernel,
    Launch,
    TensorMap,
    Workspace,
    plain,
)
from evotune.space.reading.yaml_source import (
    MADE_OF_OBJECTS,
    MAX_BYTES,
    Data,
    DataPath,
    Position,
    class_name,
    object_path,
    plain_value,
    read_yaml,
)
from evotune.trial import Value
from evotune.util.words import describe

_OF_THE_PROBLEM = ("problem", "dtype", "shapes", "variants", "held_out")
_OF_THE_KERNELS = ("kernel", "kernels")


@dataclass(frozen=True, kw_only=True, repr=False)
class Space:
    """A kernel, its tunable parameters and the problem that it solves.

    Each argument has the meaning and the default of the key of that name in a space file
    (docs/spaces.md). A space is checked when it is made: a mistake is a `SpaceError` that names the
    object, as in `Space.parameters["BLOCK"]: expected at least 1 item, found 0`.

    - `name`: the name in reports; the kernel's if not given. `description`: one line for readers.
    - `kernel`, or `kernels` if there are several: `CudaKernel`, `CppKernel`, `TritonKernel`,
      `evotune.Callable`.
    - `root`: the folder that holds the kernels' and the problem's files: the current directory
      unless it is given, not the folder of the calling script.
    - `problem`: the name of a problem that ships with evotune, `path/to/problem.py:ClassName`, or a
      class derived from `evotune.Problem`. The class may be defined in a script or a notebook: its
      source, and the source of everything that it uses there, is written into a separate file.
    - `dtype`: float16, bfloat16, float32 or float64, as text or torch's own.
    - `shapes`: the sizes to tune for, all at once. `variants`: further symbols; each shape is tuned
      in each variant. `held_out`: shapes on which only the champion is judged.
    - `parameters`: name -> a list of values, `ints`, `powers_of_two`, `choices`, `booleans`.
    - `let`: name -> expression, for use in all other expressions.
    - `constraints`: conditions on configurations, as text or as `Constraint`; `after_compile`: the
      same on the compiler's figures, such as registers.
    - `baseline`: `torch:NAME`, or `torch:best` for the fastest one; of attention also
      `sdpa:best`, an optional library such as `fa4`, or `library:best`.
    - `objective`: "geomean_speedup", or ["speedup", "error"] for a Pareto front.
    - `deterministic`: False if two launches of any kernel may differ in bits.
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
        """The space in evotune's internal form, after all checks that need no device."""
        root = self._root
        self._check_source_texts()
        text = MADE_OF_OBJECTS + yaml_text({**self._data, "root": root.as_posix()})
        if len(text.encode()) > MAX_BYTES:
            raise Position(place="Space").error("the space is larger than 1 MiB")
        return parse_space(text, root / "space.yaml")

    def to_yaml(self) -> str:
        """The same space as a space file, to be saved in the folder that is its `root`.

        It refers to kernels passed as text, and to a problem passed as a class, by file names;
        `written_files` has these files.
        """
        return yaml_text(self._data)

    def to_run_yaml(self) -> str:
        """`to_yaml` for a folder that evotune makes. Error messages then name the objects, not
        lines."""
        return MADE_OF_OBJECTS + self.to_yaml()

    @classmethod
    def from_yaml(cls, path: str | Path) -> Space:
        """The space of a file. Raises SpaceError, with file, line and column, for a mistake in it.

        `root` is the folder in which the file finds its sources.
        """
        document = load_space(Path(path))
        data = read_yaml(Path(path)).data
        assert isinstance(data, dict)
        given: dict[str, Any] = {**data, "root": document.root}
        problem = given.pop("problem", {})
        given |= {"problem": problem["name"], **problem} if problem else {}
        given.pop("name")
        if document.recorded is not None:  # it may lie next to the file, deeper than the root
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
        """The files of kernels passed as text and of a problem passed as a class: their contents by
        path under the root."""
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
        """The kernels by name. Raises SpaceError for a value of another type, or a name used
        twice."""
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
        """Raises SpaceError for a source that is no text, as bytes are."""
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
        name, text = module_of_definition(self.problem, Position(place="Space.problem"))
        taken = {str(data.get("source")) for data in self._kernel_data.values()}
        return (f"{name.removesuffix('.py')}_problem.py" if name in taken else name), text


_IMPLICIT = {"__name__", "__file__", "__doc__", "__class__", "__module__", "__qualname__"}


class Unusable(Exception):
    """Raised if no module can be made of a class. The message has the reason."""


class Gatherer:
    """Collects the source that a class or a function needs.

    - `pieces`: the definitions, each after the definitions that it uses. `kind` is the last.
    - `statements`: the imports and constants.
    """

    def __init__(self, kind: type | FunctionType) -> None:
        self.pieces: list[Piece] = []
        self._kind = kind
        self._known: dict[str, object] = {}
        self._imports: list[str] = []
        self._constants: list[str] = []
        self._define(kind, kind.__name__)

    @property
    def _reference(self) -> str:
        name = self._kind.__name__
        return (
            f'problem="problem.py:{name}"' if isinstance(self._kind, type) else f'"module:{name}"'
        )

    @property
    def statements(self) -> list[str]:
        return [*dict.fromkeys(self._imports), *self._constants]

    def _take(self, name: str, value: object, user: str, dotted: set[str]) -> None:
        """Adds the import, constant or definition of `name`, a global that `user` uses."""
        if isinstance(value, ModuleType):
            self._import_submodules(name, value, dotted)
        if name in self._known:
            if self._known[name] is not value and not _same(self._known[name], value):
                raise Unusable(
                    f"{self._kind.__name__} uses two different globals of the name {name}, "
                    "from two modules: rename one"
                )
            return
        self._known[name] = value
        if isinstance(value, ModuleType):
            if not _is_installed(value.__name__):
                raise Unusable(
                    f"{user} uses the module {value.__name__}, which is not installed: it is "
                    "found only next to the script. Import its functions and classes by name "
                    "instead"
                )
            self._imports.append(_import_of(name, value.__name__))
            return
        origin = _importable_from(value)
        if origin is not None:
            module, original = origin
            alias = "" if original == name else f" as {name}"
            self._imports.append(f"from {module} import {original}{alias}")
            return
        inner = inspect.unwrap(value) if callable(value) else value  # decorators are in its source
        if isinstance(inner, type | FunctionType):
            self._define(inner, name)
            return
        text = constant_text(value)
        if text is None:
            raise Unusable(
                f"{user} uses the global {name}, {describe(value)}: only modules, functions, "
                "classes and constants can be passed to evotune's processes"
            )
        self._constants.append(f"{name} = {text}")

    def _define(self, value: type | FunctionType, name: str) -> None:
        """Adds the source of a class or a function, after all that it uses."""
        piece = find_source(value)
        if piece is None:
            raise Unusable(
                f"the source of {value.__qualname__} cannot be read: it is in no file and in "
                f"no cell of a notebook. Put it into a file, and pass {self._reference}"
            )
        if name != value.__name__:
            raise Unusable(f"{value.__qualname__} is used by another name, {name}: use its own")
        self._known.setdefault(name, value)
        scope = _scope(value)
        plain = _without_annotations(piece.node)
        dotted = _dotted_names(plain)
        for used in sorted(_globals_of(plain)):
            if used in scope and used not in _IMPLICIT:
                self._take(used, scope[used], value.__qualname__, dotted)
        self.pieces.append(piece)

    def _import_submodules(self, name: str, module: ModuleType, dotted: set[str]) -> None:
        """Imports the submodules that the code uses. `import xml` does not load
        `xml.etree.ElementTree`, even if other code loaded it in this process."""
        for chain in sorted(dotted):
            if chain.startswith(f"{name}."):
                full = module.__name__ + chain.removeprefix(name)
                while full and full not in sys.modules:
                    full = full.rpartition(".")[0]
                if full != module.__name__ and "." in full:
                    self._imports.append(f"import {full}")


def constant_text(value: object) -> str | None:
    """Python source of an equal value; None if the value is no plain constant."""
    try:
        return _constant(value)
    except TypeError:
        return None


def _constant(value: Any) -> str:
    """`constant_text`, but TypeError when the value is no plain constant."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if kind is dict:
        pairs = (f"{_constant(key)}: {_constant(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if kind in (tuple, list, set, frozenset):
        texts = [_constant(item) for item in value]
        if kind in (set, frozenset):
            texts.sort()
        listed = f"[{', '.join(texts)}]"
        return listed if kind is list else f"{kind.__name__}({listed})"
    raise TypeError


def _same(first: object, second: object) -> bool:
    text = constant_text(first)
    return text is not None and text == constant_text(second)


def _import_of(name: str, module: str) -> str:
    return f"import {module}" if name == module else f"import {module} as {name}"


def _importable_from(value: object) -> tuple[str, str] | None:
    """(module, name) to import the value by, with the shortest module path; None if no installed
    module defines it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    name = name or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return None
    if module == "__main__" or module not in sys.modules or not _is_installed(module):
        return None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        place = ".".join(parts[:length])
        if getattr(sys.modules.get(place), name, None) is value:
            return place, name
    return None


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether evotune's processes find the module: they import nothing from the script's folder or
    from the working folder."""
    top = module.partition(".")[0]
    if top == "evotune" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    paths = sysconfig.get_paths()
    if file and any(Path(file).is_relative_to(paths[key]) for key in ("purelib", "platlib")):
        return True
    # It may still be installed, as a link to a folder: a process started like evotune's finds out.
    find = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"
    return subprocess.run([sys.executable, "-P", "-c", find, top], check=False).returncode == 0


def _scope(value: type | FunctionType) -> Mapping[str, Any]:
    """The names that the code can use: enclosing functions' variables and the module's globals."""
    functions = [value] if isinstance(value, FunctionType) else list(methods(value))
    names: dict[str, Any] = {}
    if isinstance(value, type):
        names.update(getattr(sys.modules.get(value.__module__), "__dict__", {}))
    for function in functions:
        names.update(function.__globals__)
    for function in functions:
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # the cell is still empty
                names[name] = cell.cell_contents
    return names


def _without_annotations(node: ast.stmt) -> ast.Module:
    """A copy without annotations. They are never evaluated: the module that is made begins with
    `from __future__ import annotations`."""
    copy = ast.parse(ast.unparse(node))
    for each in ast.walk(copy):
        if isinstance(each, ast.arg):
            each.annotation = None
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            each.returns = None
        elif isinstance(each, ast.AnnAssign):
            each.annotation = ast.Constant(None)
    return ast.fix_missing_locations(copy)


def _globals_of(tree: ast.Module) -> set[str]:
    """The global names that the code uses. Builtins are among them; `_define` skips a builtin
    unless the module hides it."""
    found: set[str] = set()
    tables = [symtable.symtable(ast.unparse(tree), "<class>", "exec")]
    top = tables[0]
    while tables:
        table = tables.pop()
        for symbol in table.get_symbols():
            if symbol.is_global() or (table is top and symbol.is_referenced()):
                found.add(symbol.get_name())
        tables += table.get_children()
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return found - defined


def _dotted_names(tree: ast.Module) -> set[str]:
    """The dotted names in the code, such as `xml.etree.ElementTree`."""
    return {ast.unparse(node) for node in ast.walk(tree) if _is_dotted(node)}


def _is_dotted(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name):
            return True
    return False


# Makes a module of the source of one class, or function, and of all that it uses:
# `module_of_definition`.
# evotune's processes are separate from the caller's. They read a problem from a file, as a space
# file
# names one, and never run the caller's script or notebook again. So the class is taken out of its
# module: its source, the source of functions and classes that it uses, imports of modules, and
# constants by their values.
#
# If all of it comes from one file, each line keeps its number there, so that a message about
# `script.py:17` means the caller's line 17.
_FIRST = "from __future__ import annotations"
_ANY_NAME = "problem.py"


def module_of_definition(kind: type | FunctionType, position: Position) -> tuple[str, str]:
    """The file name and the text of a module that defines the class or the function.

    Raises SpaceError at `position` for one whose source cannot be read, and for a global that
    is neither a module, a function, a class nor a constant.
    """
    try:
        gatherer = Gatherer(kind)
    except Unusable as error:
        raise position.error(str(error)) from error
    first, pieces = [_FIRST, *gatherer.statements], gatherer.pieces
    if len({piece.file for piece in pieces}) == 1:
        pieces = sorted(pieces, key=lambda piece: piece.line)
        if pieces[0].line - pieces[0].is_indented > 1:
            return _file_name(pieces[0].file), _in_place(first, pieces)
    blocks = [f"# {piece.file}:{piece.line}\n{_at_the_margin(piece)}" for piece in pieces]
    return _ANY_NAME, "\n\n\n".join(["\n".join(first), *blocks]) + "\n"


def _file_name(file: str) -> str:
    """The name of the caller's file; `problem.py` for a notebook's cell, which has no such name."""
    path = Path(file)
    usable = path.suffix == ".py" and path.is_file() and path.stem.isidentifier()
    return path.name if usable else _ANY_NAME


def _at_the_margin(piece: Piece) -> str:
    """The piece as a top-level statement. An indented one goes under `if True:`, since moving it to
    the left would change the text inside its strings."""
    return f"if True:\n{piece.text}" if piece.is_indented else piece.text


def _in_place(first: list[str], pieces: list[Piece]) -> str:
    """The module's text: every piece at its own line of the file, the rest in the first line."""
    lines = ["; ".join(first)]
    before = None
    for piece in pieces:
        continues = piece.is_indented and before is not None and before.end == piece.line - 1
        if piece.is_indented and not continues:
            lines += [""] * (piece.line - 2 - len(lines))
            lines.append("if True:")
        lines += [""] * (piece.line - 1 - len(lines))
        lines += piece.text.split("\n")
        before = piece
    return "\n".join(lines) + "\n"


# Makes Python objects of a space file's data.
_OPTIONS = ("when", "otherwise", "default")


def kernel_from_data(name: str, language: str, data: Mapping[str, Any]) -> Kernel:
    """The kernel `name` as an object. `data` must have been read and checked."""
    given = {key: value for key, value in data.items() if key != "language"}
    if "arguments" in given:
        given["arguments"] = [_argument(value) for value in given["arguments"]]
    if "launches" in given:
        given["launches"] = [Launch(**launch) for launch in given["launches"]]
    if "workspace" in given:
        buffers = given["workspace"].items()
        given["workspace"] = {buffer: Workspace(**fields) for buffer, fields in buffers}
    return _kernel_class(language)(name=name, **given)


def _kernel_class(language: str) -> type[Kernel]:
    for kind in Kernel.__subclasses__():
        if kind.language == language:
            return kind
    return type(class_name(language), (Kernel,), {"language": language})


def domain_from_data(data: Any) -> Any:
    """A parameter's values as a `Domain`; a plain list stays a list."""
    if not isinstance(data, dict):
        return data
    ((form, given),) = ((key, value) for key, value in data.items() if key not in _OPTIONS)
    return Domain(form, given, **{key: data[key] for key in _OPTIONS if key in data})


def condition_from_data(data: Any) -> Any:
    """A condition as a `Constraint`; an expression without a reason stays text."""
    return Constraint(**data) if isinstance(data, dict) else data


def _argument(value: Any) -> str | Argument | TensorMap:
    if isinstance(value, str):
        return value
    if "tensor_map" in value:
        return TensorMap(
            value["tensor_map"], **{k: v for k, v in value.items() if k != "tensor_map"}
        )
    return Argument(**value)


_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Writes lists and mappings of scalars on one line, and quotes text that YAML 1.2 would not
    read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _reads_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _reads_as_text(text: str) -> bool:
    try:
        return isinstance(plain_value(text, Position()), str)
    except SpaceError:
        return False


_Dumper.add_representer(str, _text)


def yaml_text(data: Mapping[str, Data]) -> str:
    """A YAML document that `evotune.space.reading` reads as `data`."""
    text: str = yaml.dump(
        dict(data),
        Dumper=_Dumper,
        default_flow_style=None,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )
    return text


# Finds the source of a class or a function, also in a notebook's cell: `find_source`.
@dataclass(frozen=True, slots=True)
class Piece:
    """The source of a class or a function: whole lines of `file`, from `line` to `end`."""

    file: str
    line: int
    end: int
    text: str
    is_indented: bool
    node: ast.stmt


def find_source(value: type | FunctionType) -> Piece | None:
    """The source of a class or a function; None if it was typed at a prompt or generated.

    `inspect.getsource` looks for a class in its module's file, and a notebook has none. But a
    method's code object names its file and line, in a cell as well.
    """
    for file, line in _places(value):
        lines = linecache.getlines(file)
        if not lines:
            continue
        try:
            tree = ast.parse("".join(lines))
        except (SyntaxError, ValueError):  # a cell with a magic command, or changed since
            continue
        node = _defining(tree, value, line)
        if node is not None:
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            end = node.end_lineno or node.lineno
            text = "".join(lines[begin - 1 : end]).rstrip("\n")
            return Piece(file, begin, end, text, node.col_offset > 0, node)
    return None


def _places(value: type | FunctionType) -> Iterator[tuple[str, int]]:
    """(file, a line inside the definition); 0 for an unknown line.

    A script's code names its file as the command line did. That path may mean another file by now,
    so the module's own file comes next.
    """
    functions = [value] if isinstance(value, FunctionType) else list(methods(value))
    lines = [function.__code__.co_firstlineno for function in functions]
    for function, line in zip(functions, lines, strict=True):
        file = function.__code__.co_filename
        yield (os.path.abspath(file) if os.path.exists(file) else file), line
    whole = getattr(sys.modules.get(value.__module__), "__file__", None)
    if whole:
        yield from ((whole, line) for line in lines or [0])


def methods(kind: type) -> Iterator[FunctionType]:
    """The functions that the class itself defines."""
    for value in vars(kind).values():
        inner = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if isinstance(inner, FunctionType) and inner.__qualname__.startswith(kind.__qualname__):
            yield inner


def _defining(
    tree: ast.Module, value: type | FunctionType, line: int
) -> ast.ClassDef | ast.FunctionDef | None:
    """The innermost definition of that name around the line; the last one of several."""
    wanted = ast.ClassDef if isinstance(value, type) else ast.FunctionDef
    found = None
    for node in ast.walk(tree):
        if isinstance(node, wanted) and node.name == value.__name__:
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if not line or begin <= line <= (node.end_lineno or begin):
                found = node
    return found
