"""Runs a Kernel Tuner script in a separate process, and turns its call of `tune_kernel` into a
space's files.

Its tunables, restrictions and launch become expressions of a space.
"""

from __future__ import annotations

import ast
import keyword
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evotune.backends.cuda.stated_options import IN_WORDS, is_allowed
from evotune.errors import SpaceError, UsageError
from evotune.extras import Imported
from evotune.extras.kernel_tuner.kernel_source import (
    AXES,
    KernelSource,
    Sizes,
    Tensors,
    find_sizes,
    find_tensors,
    fixed_tunables,
    forwarding_kernel,
    needs_no_wrapper,
    read_kernel,
    tensor_text,
    wrapper,
)
from evotune.extras.kernel_tuner.messages import (
    RECORDER,
    NotRecorded,
    Pointer,
    Recorded,
    RunScript,
    Scalar,
    TunableValue,
    TuneCall,
    Variant,
)
from evotune.extras.kernel_tuner.texts import (
    NAME,
    NamesOf,
    ProblemText,
    ScriptError,
    SpaceText,
    as_condition,
    c_text,
    checked,
    from_text,
    in_a_comment,
    product_text,
    quoted,
    shape_text,
    unparsed,
    unwritten_line,
    whole_number,
)
from evotune.extras.kernel_tuner.traced import NotWritten
from evotune.languages import language
from evotune.space.document import parse_space
from evotune.space.reading.schema import schema_text
from evotune.user_code import trust
from evotune.util.files import read_regular, scratch_folder
from evotune.util.processes import free_memory_bytes
from evotune.workers.child import Child, wait_readable
from evotune.workers.entry import cannot_read

LIMIT_S = 300.0
_MOST_BYTES = 1 << 20
_FREE_SHARE = 0.9  # of the free memory
_WRAPPERS = ("wrapper.cu", "evotune_wrapper.cu", "evotune_wrapper_2.cu")
_SCALARS = {
    **{"int32": "int32", "int64": "int64", "uint32": "int32", "uint64": "int64"},
    **{"float32": "float32", "float64": "float64"},
}


def import_script(
    path: Path,
    *,
    name: str | None,
    kernel: str | None,
    outputs: Sequence[str],
    arguments: Sequence[str],
) -> Imported:
    """See `Importer`. The script is executed, after the user's agreement if it lies elsewhere."""
    content = _read(path)
    trust.require({path.absolute(): content})
    found = _record(path.absolute(), content, kernel, arguments)
    if isinstance(found, NotRecorded):
        error = ScriptError(str(path), found.line)
        raise error.at(found.message, environment=found.environment)
    made = _Space(path, found, outputs).imported(name)
    places = len(re.findall(rb"\btune_kernel\s*\(", content))
    if places > 1 and kernel is None:
        made.notes.append(
            f"took the first call of tune_kernel(), at line {found.line}; --kernel NAME takes that "
            "of another kernel"
        )
    return made


def _read(path: Path) -> bytes:
    try:
        content = read_regular(path, _MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: a script of more than 1 MiB")
    return content


def _record(path: Path, content: bytes, kernel: str | None, arguments: Sequence[str]) -> Recorded:
    memory_bytes = int(free_memory_bytes() * _FREE_SHARE)
    with scratch_folder() as folder:
        written = folder / "written"
        written.mkdir()
        child = Child(RECORDER, folder / "script.log", {})
        try:
            child.send(
                RunScript(
                    str(path), content, tuple(arguments), kernel or "", str(written), memory_bytes
                )
            )
            return _answer(child)
        finally:
            child.kill()


def _answer(child: Child[RunScript, Recorded]) -> Recorded:
    deadline = time.monotonic() + LIMIT_S
    while wait_readable([child], max(0.0, deadline - time.monotonic())):
        messages = child.receive()
        if messages:
            return messages[0]
        if messages is None:
            status = child.reap()
            if cannot_read(status, child.log_tail()):
                return NotRecorded(child.log_tail().splitlines()[-1], environment=True)
            return NotRecorded(f"{child.end_in_words(status)} before tune_kernel() was called")
    return NotRecorded(f"it did not call tune_kernel() within {LIMIT_S:g} s")


class _Space:
    """The space of a recorded call."""

    def __init__(self, path: Path, call: TuneCall, stated: Sequence[str]) -> None:
        self._path = path
        self._call = call
        self._error = ScriptError(str(path), call.line)
        self._source = read_kernel(call, self._error, path.absolute().parent)
        definition = self._source.definition(call)
        self._require_arguments(has_definition=definition is not None)
        signature = definition.parameters if definition else None
        self._tensors: Tensors = find_tensors(call, self._error, signature, stated)
        self._fixed = fixed_tunables(call, block_names_of(call))
        self._tunables: Mapping[str, Sequence[TunableValue]] = {
            name: [self._fixed[name]] if name in self._fixed else values
            for name, values in call.tunables.items()
        }
        self._parameters = parameter_names(self._tunables, self._source.words, self._error)
        taken = {name.upper() for name in (*self._tunables, *self._tensors.names)}
        told = {n: each.name for n, each in enumerate(signature or ())}
        self._sizes: Sizes = find_sizes(call, self._error, told, taken)
        names = dict(self._parameters) | {name: name for name in self._sizes.values}
        self._launching = Launching(call, self._error, names_of(names))
        self._grid = self._launching.grid(self._sizes.extents)
        self._lines = _Lines(self._source, self._tunables, self._parameters, call.defines)
        self._lines.add_launch(self._launching, self._grid, self._sizes, self._error)
        self._entry = self._source.entry
        self._forwarding = ""
        if self._source.needs_forwarding:
            if definition is None:
                message = f"the definition of {self._entry} is not found, so it cannot be called"
                raise self._error.at(message)
            self._entry += "_tuned"
            self._forwarding = forwarding_kernel(self._source, definition, self._entry)

    def _require_arguments(self, *, has_definition: bool) -> None:
        call, error = self._call, self._error
        counts = self._source.parameter_counts
        if counts and not has_definition:
            words = f"{self._source.entry} takes {' or '.join(map(str, counts))} arguments"
            raise error.at(f"{words}, the script gives {len(call.arguments)}")
        for place, argument in enumerate(call.arguments, start=1):
            if isinstance(argument, Scalar) and argument.dtype not in _SCALARS:
                message = f"argument {place} is {argument.dtype}; make it numpy.int32(...) or"
                raise error.at(f"{message} numpy.float32(...)")

    def imported(self, name: str | None) -> Imported:
        files = dict(self._source.files)
        before, after = self._lines.before, self._lines.after
        if any(variant.values for variant in self._call.variants):
            files[self._source.main] = _chosen(self._call.variants, self._parameters).encode()
        main = self._source.main
        if not needs_no_wrapper(self._source, [*before, *after]):
            main = next(other for other in _WRAPPERS if other not in files)
            files[main] = wrapper(self._source, before, after, self._forwarding).encode()
        kept, notes = _options(self._call.compiler_options)
        name = name or self._source.entry
        space = self._space_text(name, main, kept)
        problem = self._problem_text()
        try:
            parse_space(space, Path("space.yaml"))
        except SpaceError as error:
            raise self._error.at(f"the script makes no valid space: {error.message}") from error
        texts = {"problem.py": problem, "space.yaml": space, "space.schema.json": schema_text()}
        files |= {file: text.encode() for file, text in texts.items()}
        return Imported(name, files, [*self._notes(), *notes], unwritten_line(problem))

    def _space_text(self, name: str, main: str, options: Sequence[str]) -> str:
        written = self._launching.written
        names = self._tensors.names
        constraints = constraints_of(self._call, self._error, names_of(self._parameters))
        return SpaceText(
            name=name,
            script=in_a_comment(self._path.name),
            dtype=self._tensors.dtype,
            shape=self._sizes.values,
            kernel=self._source.entry,
            entry=self._entry,
            source=main,
            define=self._lines.define,
            options=options,
            arguments=[self._argument(place) for place in range(len(self._call.arguments))],
            constant_memory={s: names[n] for s, n in self._call.constant_memory.items()},
            grid=_trimmed([written("problem_size", node) for node in self._grid]),
            block=_trimmed([written("the block", node) for node in self._launching.block]),
            shared_bytes=self._launching.shared_bytes(),
            parameters={new: self._tunables[old] for old, new in self._parameters.items()},
            constraints=[*constraints, *self._launching.thread_limit(self._tunables)],
        ).text()

    def _argument(self, place: int) -> str:
        argument = self._call.arguments[place]
        if isinstance(argument, Pointer):
            is_null = argument.array < 0
            return "{value: 0, type: int64}" if is_null else self._tensors.names[argument.array]
        kind = _SCALARS[argument.dtype]
        if place in self._sizes.told and kind == "int32":
            return self._sizes.told[place]
        return f"{{value: {quoted(str(argument.value))}, type: {kind}}}"

    def _problem_text(self) -> str:
        tensors, shapes = self._tensors, self._sizes.shapes
        inputs, rising = {}, {}
        for place in tensors.inputs:
            array, kind, shape = self._call.arrays[place], tensors.types[place], shapes[place]
            text = tensor_text(array, kind, shape_text(shape), tensors.dtype, is_output=False)
            inputs[tensors.names[place]] = text
            if '"indices"' in text:
                ends = (str(array.low), str(array.high))
                rising[tensors.names[place]] = (shape_text(shape), kind, *ends)
        outputs = {
            tensors.names[place]: tensor_text(
                self._call.arrays[place], tensors.types[place], shape_text(shapes[place]),
                tensors.dtype, is_output=True,
            )
            for place in tensors.outputs
        }  # fmt: skip
        return ProblemText(
            script=in_a_comment(self._path.name),
            kernel=self._source.entry,
            sizes=list(self._sizes.values),
            fixed=self._sizes.fixed,
            inputs=inputs,
            outputs=outputs,
            elements=" + ".join(product_text(shapes[place]) for place in tensors.outputs),
            answers=self._answers(),
            sorted_inputs=rising,
        ).text()

    def _answers(self) -> dict[str, str]:
        names = self._tensors.names
        made = {}
        for place, text in self._call.computed.items():
            argument = self._call.arguments[place]
            assert isinstance(argument, Pointer)
            if argument.array in self._tensors.outputs:
                named = re.sub(r"\ba(\d+)\b", lambda found: names[int(found[1])], text)
                made[names[argument.array]] = named
        return made

    def _notes(self) -> list[str]:
        notes = [
            f"{name} is fixed at {value}, its largest value: the size of an array depends on it"
            for name, value in self._fixed.items()
        ]
        notes += [
            f"compute: {name} is {text}, since the script's answer has these values"
            for name, text in self._answers().items()
        ]
        if self._call.left_out:
            notes.append(f"left out: {', '.join(self._call.left_out)}")
        return notes


class _Lines:
    """The lines that give a kernel the names that Kernel Tuner would define for it.

    - before, after: the lines before and after the source
    - define: the sizes that are compiled in
    """

    def __init__(
        self,
        source: KernelSource,
        tunables: Mapping[str, Sequence[TunableValue]],
        parameters: Mapping[str, str],
        defines: Mapping[str, str] | None,
    ) -> None:
        self._source = source
        self._tunables = tunables
        self._plain = defines is None
        self._used = " ".join((defines or {}).values())
        self.define: list[str] = []
        self.before: list[str] = []
        self.after: list[str] = []
        for name, parameter in parameters.items():
            self._name(name, parameter)
        for name, text in (defines or {}).items():
            self.before.append(f"#define {name} {text}")

    def _name(self, name: str, macro: str) -> None:
        """Defines a tunable's name as the macro of its parameter.

        If the source defines the name too, a static_assert after it compares the two values,
        because a source that sets its own value would not be tuned at all. If the script defines
        its own macros, only these and a template's arguments have the tunables' names.
        """
        is_used = self._plain or re.search(rf"\b{name}\b", self._used) is not None
        lines = self.before if is_used else self.after
        words = [value for value in self._tunables[name] if isinstance(value, str)]
        for place, word in enumerate(words):
            condition = "#if" if place == 0 else "#elif"
            lines += [f"{condition} {macro} == {macro}_{word.upper()}", f"#define {name} {word}"]
        if words:
            lines.append("#endif")
        elif "loop_unroll_factor" in name:  # `#pragma unroll` takes no macro
            lines.append(f"constexpr int {name} = {macro};")
        elif name != macro:
            lines.append(f"#define {name} {macro}")
            if self._plain and self._source.defines(name):
                message = (
                    f"the source gives {name} another value than the tuner; remove its #define"
                )
                self.after += [f"#ifdef {name}", f'static_assert({name} == {macro}, "{message}");']
                self.after.append("#endif")

    def add_launch(
        self, launching: Launching, grid: Sequence[ast.expr], sizes: Sizes, error: ScriptError
    ) -> None:
        """Defines the block's and the grid's sizes if the source uses their names, which are macros
        in Kernel Tuner."""
        if not self._plain:
            return
        words = self._source.words
        for name, default in launching.defaults.items():
            if name in words and name not in self._tunables:
                self.before.append(f"#define {name} {default}")
        if "kernel_tuner" in words:
            self.before.append("#define kernel_tuner 1")
        for axis, node in zip(AXES, grid, strict=True):
            if f"grid_size_{axis}" in words:
                text = self._grid_size(node, sizes, error)
                self.before.append(f"#define grid_size_{axis} {text}")

    def _grid_size(self, node: ast.expr, sizes: Sizes, error: ScriptError) -> str:
        """The grid's size as text over macros. The sizes in it are compiled in."""
        try:
            text = c_text(node)
        except NotWritten as reason:
            message = f"the source uses the grid's size, which cannot be written in C: {reason}"
            raise error.at(message) from reason
        for name in sizes.values:
            if re.search(rf"\b{name}\b", text):
                self.define += [] if name in self.define else [name]
                text = re.sub(rf"\b{name}\b", name.upper(), text)
        return text


def _chosen(variants: Sequence[Variant], parameters: Mapping[str, str]) -> str:
    """One source with the texts that a function wrote for some tunables' values."""
    lines = []
    for place, variant in enumerate(variants):
        conditions = [
            f"{parameters[name]} == {parameters[name]}_{value.upper()}"
            if isinstance(value, str)
            else f"{parameters[name]} == {int(value)}"
            for name, value in variant.values.items()
        ]
        lines += [f"{'#elif' if place else '#if'} {' && '.join(conditions)}", variant.text]
    return "\n".join([*lines, "#endif", ""])


def _options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """The compiler options that a space may have, and a line about each of the others."""
    kept, notes = [], []
    for each in options:
        option = f"--{each.lstrip('-')}"
        if is_allowed(option):
            kept.append(option)
        elif not each.startswith("-I"):  # its headers are brought in
            words = f"left out the compiler option {each[:60]!r}; evotune takes"
            notes.append(f"{words} {IN_WORDS}")
    return kept, notes


def _trimmed(sizes: list[str]) -> list[str]:
    while len(sizes) > 1 and sizes[-1] == "1":
        sizes.pop()
    return sizes


_CPP_WORD = re.compile(
    r"alignas|alignof|asm|auto|bool|break|case|catch|char|class|const|constexpr|continue|"
    r"decltype|default|delete|do|double|else|enum|explicit|extern|false|float|for|friend|"
    r"goto|if|inline|int|long|mutable|namespace|new|noexcept|nullptr|operator|private|"
    r"protected|public|register|return|short|signed|sizeof|static|struct|switch|template|"
    r"this|throw|true|try|typedef|typename|union|unsigned|using|virtual|void|volatile|"
    r"wchar_t|while"
)
_TAKEN = language("cuda").taken_macros
_BLOCK_DEFAULTS = (256, 1, 1)
_BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_MOST_THREADS = 1024


def parameter_names(
    tunables: Mapping[str, object], words: frozenset[str], error: ScriptError
) -> dict[str, str]:
    """The parameter's name for each tunable: the tunable's in capitals. It gets an additional _ if
    the source uses that name for something else, or a macro has it."""
    made: dict[str, str] = {}
    for name in tunables:
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            raise error.at(f"the tunable {name!r} cannot be a macro's name")
        if _CPP_WORD.fullmatch(name):
            message = (
                f"the tunable {name!r} is a word of C++: as a macro it would change the kernel"
            )
            raise error.at(f"{message}; rename it")
        upper = name.lstrip("_").upper()
        if not upper or not upper[0].isalpha():
            upper = f"P{upper}"
        while (upper in words and upper != name) or upper in {*made.values(), *_TAKEN}:
            upper += "_"
        made[name] = upper
    return made


def names_of(parameters: Mapping[str, str]) -> NamesOf:
    """A function that returns the name of a tunable in the space's expressions."""

    def node(name: str) -> ast.expr | None:
        found = parameters.get(name)
        return None if found is None else ast.Name(found, ast.Load())

    return node


def constraints_of(call: TuneCall, error: ScriptError, names: NamesOf) -> list[str]:
    """The restrictions as constraints. Raises EvotuneError for a restriction that a space cannot
    express, because without it the search would try configurations that the script excludes."""
    made = []
    for text in call.restrictions:
        try:
            made.append(checked(as_condition(from_text(text, names))))
        except NotWritten as reason:
            what = f"the restriction `{text[:60]}` cannot be written as a constraint: {reason}"
            raise error.at(what) from reason
    return made


class Launching:
    """The launch of a kernel.

    - block_names: the tunables with the block's sizes in x, y and z; Kernel Tuner's default names
      for the sizes that have no tunable
    - block: the block's sizes as expressions
    """

    def __init__(self, call: TuneCall, error: ScriptError, names: NamesOf) -> None:
        self._call = call
        self._error = error
        self._names = names
        self.block_names = block_names_of(call)
        self.defaults = dict(zip(self.block_names, _BLOCK_DEFAULTS, strict=True))
        self.block = [
            names(name) or ast.Constant(default) for name, default in self.defaults.items()
        ]

    def grid(self, extents: Sequence[int | str]) -> list[ast.expr]:
        """The grid in x, y and z: ceil(problem size / product of the divisors). An extent is a
        number, a size's name, or an expression over tunables."""
        nodes: list[ast.expr] = []
        for axis, extent in enumerate(extents):
            what = f"grid_div_{'xyz'[axis]}"
            found = self._call.grid_div[axis]
            divisor = self._divisor(what, found, self.block_names[axis])
            node = self._whole("problem_size", extent)
            if not (_is_one(divisor) or _is_one(node)):
                node = ast.Call(ast.Name("ceil_div", ast.Load()), [node, divisor], [])
            nodes.append(node)
        return [*nodes, *(ast.Constant(1) for _ in range(3 - len(nodes)))]

    def _divisor(self, what: str, found: Sequence[int | str] | None, block_name: str) -> ast.expr:
        if found is None:
            return self._names(block_name) or ast.Constant(1)
        made: ast.expr = ast.Constant(1)
        for item in found:
            factor = self._whole(what, item)
            made = factor if _is_one(made) else ast.BinOp(made, ast.Mult(), factor)
        return made

    def _whole(self, what: str, found: int | str) -> ast.expr:
        if isinstance(found, int):
            return ast.Constant(found)
        try:
            return whole_number(from_text(found, self._names))
        except NotWritten as reason:
            message = f"{what} cannot be written as an expression: {reason}"
            raise self._error.at(message) from reason

    def shared_bytes(self) -> str:
        found = self._call.shared_bytes
        return "" if found == 0 else self.written("the size in smem_args", found)

    def written(self, what: str, found: int | str | ast.expr) -> str:
        """An expression over tunables as text of the space."""
        node = found if isinstance(found, ast.expr) else self._whole(what, found)
        try:
            return checked(node)
        except NotWritten as reason:
            message = f"{what} cannot be written as an expression: {reason}"
            raise self._error.at(message) from reason

    def thread_limit(self, tunables: Mapping[str, Sequence[TunableValue]]) -> list[str]:
        """A constraint on the block's threads, if a block may have more than 1,024. Kernel Tuner
        needs no such restriction, because it skips blocks that are too large for the device."""
        most = 1
        tuned = []
        for name, default in self.defaults.items():
            numbers = [v for v in tunables.get(name, [default]) if isinstance(v, int)]
            most *= max(numbers, default=1)
            node = self._names(name)
            tuned += [] if node is None else [unparsed(node)]
        product = " * ".join(tuned)
        return [f"{product} <= device.threads_per_block"] if tuned and most > _MOST_THREADS else []


def block_names_of(call: TuneCall) -> list[str]:
    names = list(call.block_size_names or ())
    if call.block_size_names is None:
        other_case = [n for n in call.tunables if n.lower() in _BLOCK_NAMES]
        names = sorted((n for n in other_case if n not in _BLOCK_NAMES), key=str.casefold)
    return [*names, *_BLOCK_NAMES[len(names) :]]


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1
