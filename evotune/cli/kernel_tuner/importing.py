"""Turns a Kernel Tuner script into the files of a space."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.backends.cuda.stated_options import IN_WORDS, is_allowed
from evotune.cli.kernel_tuner import expression_text as expressions
from evotune.cli.kernel_tuner.arguments import SCALARS, Arguments
from evotune.cli.kernel_tuner.expression_text import NotWritten
from evotune.cli.kernel_tuner.kernel_source import (
    KernelSource,
    needs_no_wrapper,
    read_kernel,
    wrapper,
)
from evotune.cli.kernel_tuner.script import TuneCall, read_call
from evotune.cli.kernel_tuner.sizes import AXES, Sizes, extents, find_sizes
from evotune.cli.kernel_tuner.texts import (
    ProblemText,
    SpaceText,
    quoted,
    torch_expression,
    unwritten_line,
)
from evotune.cli.kernel_tuner.tunables import (
    BLOCK_DEFAULTS,
    Launching,
    Tunables,
    names_of,
    parameter_names,
    read_constraints,
    read_tunables,
)
from evotune.cli.kernel_tuner.values import NAME, Array, Leaf, Listed, Nothing, Number, Text
from evotune.errors import SpaceError
from evotune.space.document import parse_space
from evotune.space.reading.schema import schema_text

# --- The lines that give a kernel the names that Kernel Tuner would define for it -----------------


class Adapter:
    """Collects the lines for one kernel.

    - before, after: the lines before and after the source
    - define: the sizes that are compiled in
    """

    def __init__(
        self, source: KernelSource, tunables: Tunables, parameters: dict[str, str], sizes: Sizes
    ) -> None:
        self._source = source
        self._tunables = tunables
        self._sizes = sizes
        self.define = list(sizes.tunables.values())
        self.before: list[str] = []
        self.after: list[str] = []
        for name, parameter in parameters.items():
            self._name(name, parameter)
        for name, size in sizes.tunables.items():
            self._name(name, size.upper())

    def _name(self, name: str, macro: str) -> None:
        """Defines a tunable's name as the macro of its parameter or size.

        Where the source defines the name too, a static_assert after it compares the two values: a
        source that sets its own value would not be tuned at all.
        """
        words = [value for value in self._tunables[name] if isinstance(value, str)]
        for place, word in enumerate(words):
            condition = "#if" if place == 0 else "#elif"
            self.before += [f"{condition} {macro} == {macro}_{word.upper()}"]
            self.before += [f"#define {name} {word}"]
        if words:
            self.before.append("#endif")
            return
        if "loop_unroll_factor" in name:  # `#pragma unroll` takes no macro
            self.before.append(f"constexpr int {name} = {macro};")
        elif name != macro:
            self.before.append(f"#define {name} {macro}")
            if self._source.defines(name):
                message = (
                    f"the source gives {name} another value than the tuner; remove its #define"
                )
                self.after += [f"#ifdef {name}", f'static_assert({name} == {macro}, "{message}");']
                self.after.append("#endif")

    def add_launch(
        self, call: TuneCall, block_names: Sequence[str], grid: Sequence[ast.expr]
    ) -> None:
        """Defines the block's and the grid's sizes where the source uses their names, which are
        macros in Kernel Tuner."""
        words = self._source.words
        for name, default in zip(block_names, BLOCK_DEFAULTS, strict=True):
            if name in words and name not in self._tunables:
                self.before.append(f"#define {name} {default}")
        if "kernel_tuner" in words:
            self.before.append("#define kernel_tuner 1")
        for axis, node in zip(AXES, grid, strict=True):
            if f"grid_size_{axis}" in words:
                self.before.append(f"#define grid_size_{axis} {self._grid_size(call, node)}")

    def _grid_size(self, call: TuneCall, node: ast.expr) -> str:
        """The grid's size as text over macros. The sizes in it are compiled in."""
        try:
            text = expressions.c_text(node)
        except NotWritten as reason:
            message = f"the source uses the grid's size, which cannot be written in C: {reason}"
            raise call.error("problem_size", message) from reason
        for name in self._sizes.values:
            if re.search(rf"\b{name}\b", text):
                self.define += [] if name in self.define else [name]
                text = re.sub(rf"\b{name}\b", name.upper(), text)
        return text


_REFUSED = {
    "texmem_args": "textures are not supported; read the array through a pointer",
    "defines": "put the macros into tune_params or into the source",
}
_WRAPPERS = ("wrapper.cu", "evotune_wrapper.cu", "evotune_wrapper_2.cu")


@dataclass(frozen=True)
class Imported:
    """The files of a new space.

    - files: their contents by name
    - notes: lines that tell the user about them
    - unwritten: the line of problem.py where the user must write `compute`; 0: it is written
    """

    name: str
    files: dict[str, bytes]
    notes: list[str]
    unwritten: int


def import_script(
    path: Path, name: str | None, kernel: str | None, outputs: Sequence[str]
) -> Imported:
    """The space of a script. ScriptError, one line, for the first thing that cannot be told.

    - name: the space's name; the kernel's if None
    - kernel: the kernel to take where the script tunes several
    - outputs: the arrays that the kernel writes, where that cannot be told
    """
    call = read_call(path, kernel)
    for argument, why in _REFUSED.items():
        if not isinstance(call.get(argument), Nothing):
            raise call.error(argument, f"{argument}: {why}")
    entry = _entry(call)
    source = read_kernel(call, entry)
    tunables = read_tunables(call)
    arguments = Arguments(call, source, entry, outputs)
    sizes, dimensions = find_sizes(call, extents(call), arguments, list(tunables))
    parameters = parameter_names(tunables, source, sizes)
    names = names_of(parameters, sizes)
    if not parameters:
        why = "every tunable is a size of the arrays, so nothing is left to tune"
        raise call.error("tune_params", why)
    launching = Launching(call, tunables, sizes, names)
    grid = launching.grid(dimensions)
    adapter = Adapter(source, tunables, parameters, sizes)
    adapter.add_launch(call, launching.block_names, grid)

    files = dict(source.files)
    main = source.main
    if not needs_no_wrapper(source, adapter.before):
        main = next(other for other in _WRAPPERS if other not in files)
        files[main] = wrapper(source, adapter.before, adapter.after).encode()
    options, notes = _options(call)
    space = SpaceText(
        name=name or entry,
        script=_harmless(path.name),
        dtype=arguments.dtype,
        shape=sizes.values,
        kernel=entry,
        source=main,
        define=adapter.define,
        options=options,
        arguments=[_argument(value, sizes) for value in arguments.values],
        constant_memory={s: array.name for s, array in arguments.constant_memory.items()},
        grid=_trimmed([expressions.checked(node) for node in grid]),
        block=_trimmed([expressions.checked(node) for node in launching.block]),
        shared_bytes=launching.shared_bytes(),
        parameters={parameter: tunables[name] for name, parameter in parameters.items()},
        constraints=[*read_constraints(call, names), *launching.thread_limit()],
    ).text()
    problem = ProblemText(
        script=_harmless(path.name),
        kernel=entry,
        sizes=list(sizes.values),
        fixed=sizes.fixed,
        inputs={array.name: _shape(array, sizes) for array in arguments.inputs},
        outputs={array.name: _shape(array, sizes) for array in arguments.outputs},
        answers=_answers(call, arguments, sizes),
    ).text()
    try:
        parse_space(space, Path("space.yaml"))
    except SpaceError as error:
        message = f"the script makes no valid space: {error.message}"
        raise call.error("tune_params", message) from error
    texts = {"problem.py": problem, "space.yaml": space, "space.schema.json": schema_text()}
    files |= {file: text.encode() for file, text in texts.items()}
    notes = [*_sizes_told(sizes), *notes]
    return Imported(name or entry, files, notes, unwritten_line(problem))


def _entry(call: TuneCall) -> str:
    found = call.get("kernel_name")
    if not isinstance(found, Text):
        raise call.cannot_tell("kernel_name", "the kernel's name", found, "write it out")
    if not NAME.fullmatch(found.text):
        message = f"{found.text!r} is not a plain kernel name; templates are not supported"
        raise call.error("kernel_name", message)
    return found.text


def _harmless(name: str) -> str:
    """The file's name with a _ for each unusual character: the name is written into comments, and
    quotes or line ends in it would end them."""
    return re.sub(r"[^A-Za-z0-9_. +-]", "_", name)


def _sizes_told(sizes: Sizes) -> list[str]:
    return [
        f"{tunable} is fixed at {sizes.values[size]}, not a parameter: sizes of arrays depend on it"
        for tunable, size in sizes.tunables.items()
    ]


def _shape(array: Array, sizes: Sizes) -> list[str]:
    try:
        return [expressions.python_text(sizes.node(size)) for size in array.shape]
    except NotWritten:  # a size that cannot be written as an expression keeps its value (`fixed`)
        return [str(size.value) for size in array.shape]


def _argument(value: Array | Number, sizes: Sizes) -> str:
    if isinstance(value, Array):
        return value.name
    kind = SCALARS[value.dtype]
    name = sizes.name_of(value.tree) if isinstance(value.tree, Leaf) else None
    if name is not None and kind == "int32":
        return name
    try:
        text = expressions.checked(sizes.node(value))
    except NotWritten:  # as for shapes
        text = str(value.value)
    return f"{{value: {quoted(text)}, type: {kind}}}"


def _answers(call: TuneCall, arguments: Arguments, sizes: Sizes) -> dict[str, str]:
    """A torch expression for each output whose value the script's `answer` gives as an expression.

    A script with its own comparison (`verify`) gives none: its answer need not be the output.
    """
    answer = call.get("answer")
    made: dict[str, str] = {}
    if not isinstance(answer, Listed) or not isinstance(call.get("verify"), Nothing):
        return made
    for value, expected in zip(arguments.values, answer.items, strict=False):
        if not isinstance(value, Array) or value not in arguments.outputs:
            continue
        if isinstance(expected, Array) and _extents(value) == _extents(expected):
            try:
                made[value.name] = torch_expression(expected, arguments.inputs, sizes.varies)
            except NotWritten:
                continue
    return made


def _extents(array: Array) -> list[int | float]:
    return [size.value for size in array.shape]


def _options(call: TuneCall) -> tuple[list[str], list[str]]:
    """The compiler options that a space may have, and a line about each of the others."""
    found = call.get("compiler_options")
    if isinstance(found, Nothing):
        return [], []
    kept, notes = [], []
    for item in found.items if isinstance(found, Listed) else [found]:
        if not isinstance(item, Text):
            hint = "make it a list of texts"
            raise call.cannot_tell("compiler_options", "a compiler option", item, hint)
        option = f"--{item.text.lstrip('-')}"
        if is_allowed(option):
            kept.append(option)
        else:
            words = f"left out the compiler option {item.text[:60]!r}; evotune takes"
            notes.append(f"{words} {IN_WORDS}")
    return kept, notes


def _trimmed(sizes: list[str]) -> list[str]:
    while len(sizes) > 1 and sizes[-1] == "1":
        sizes.pop()
    return sizes
