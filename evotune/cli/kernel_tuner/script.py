"""Finds the call of `tune_kernel` in a script, and works out the values of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.cli.kernel_tuner.containers import READING, Names, bind, put
from evotune.cli.kernel_tuner.expressions import Evaluator
from evotune.cli.kernel_tuner.numpy_functions import NotRead
from evotune.cli.kernel_tuner.values import (
    Array,
    Dotted,
    Function,
    Leaf,
    Listed,
    Nothing,
    Number,
    ScriptError,
    Table,
    Text,
    Unknown,
    Value,
)
from evotune.errors import UsageError
from evotune.util.files import read_regular
from evotune.util.words import did_you_mean

_MOST_BYTES = 1 << 20
_MOST_CALLERS = 8
_CHANGING = (ast.While, ast.Delete, ast.ClassDef, ast.Match, ast.AsyncFor, ast.AsyncWith)
_NOT_FOLLOWED = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)
_TUNE = "kernel_tuner.tune_kernel"
PARAMETERS = (
    *("kernel_name", "kernel_source", "problem_size", "arguments", "tune_params"),
    *("grid_div_x", "grid_div_y", "grid_div_z", "restrictions", "answer", "atol", "verify"),
    *("verbose", "lang", "device", "platform", "smem_args", "cmem_args", "texmem_args"),
    *("compiler", "compiler_options", "defines", "log", "iterations", "block_size_names"),
)


@dataclass(frozen=True)
class TuneCall:
    """A call of `tune_kernel`. `values` and `lines` hold each given argument's value and line, by
    the name of its parameter."""

    path: Path
    line: int
    values: Mapping[str, Value]
    lines: Mapping[str, int]

    def get(self, name: str) -> Value:
        return self.values.get(name, Nothing())

    def error(self, about: str | int, message: str) -> ScriptError:
        """An error at the line of an argument, when `about` is its name, or at the line `about`."""
        line = about if isinstance(about, int) else self.lines.get(about, self.line)
        return ScriptError(str(self.path), line, message)

    def cannot_tell(self, about: str, what: str, value: Value, hint: str) -> ScriptError:
        why = f": {value.why}" if isinstance(value, Unknown) and value.why else ""
        line: str | int = (value.line if isinstance(value, Unknown) else 0) or about
        return self.error(line, f"cannot tell {what}{why}; {hint}")


def read_call(path: Path, kernel: str | None) -> TuneCall:
    """The script's only call, or the only one for that kernel. UsageError, one line, when there is
    none or more than one."""
    tree = _parsed(path)
    reader = _Reader(path, tree)
    calls = reader.calls
    if not calls:
        raise ScriptError(str(path), 1, "no call of kernel_tuner's tune_kernel() in it")
    read = [reader.read(call) for call in calls]
    if kernel is not None:
        names = [name.text for call in read if isinstance(name := call.get("kernel_name"), Text)]
        if kernel not in names:
            message = f"no call of tune_kernel() for {kernel}{did_you_mean(kernel, names)}"
            raise ScriptError(str(path), read[0].line, message)
        read = [
            call
            for call in read
            if isinstance(name := call.get("kernel_name"), Text) and name.text == kernel
        ]
    if len(read) > 1:
        names = [name.text for call in read if isinstance(name := call.get("kernel_name"), Text)]
        several = len(set(names)) == len(read)
        hint = (
            f"say which with --kernel ({', '.join(names)})"
            if several
            else "import each from a copy of the script with that call alone"
        )
        message = f"tune_kernel() is called {len(read)} times; {hint}"
        raise ScriptError(str(path), read[1].line, message)
    return read[0]


def _parsed(path: Path) -> ast.Module:
    try:
        content = read_regular(path, _MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: a script of more than 1 MiB")
    try:
        return ast.parse(content, filename=str(path))
    except SyntaxError as error:
        raise ScriptError(str(path), error.lineno or 1, f"not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScriptError(str(path), 1, "not Python that can be read") from error


class _Reached(Exception):
    """The next statement contains the call: reading ends before it."""


class _Returned(Exception):
    """A function that is followed returns this value."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class _Reader:
    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree
        self._evaluator = Evaluator(str(path), self._follow)
        self._followed = 0  # functions that call each other, at this moment
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        aliases = dict(_imports(tree))
        self.calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and _dotted(node.func, aliases) == _TUNE
        ]
        self.calls.sort(key=lambda call: call.lineno)
        self._plain = set(_followed_functions(tree, self.calls))

    def read(self, call: ast.Call) -> TuneCall:
        for parent in self._above(call):
            if isinstance(parent, ast.For | ast.While | ast.comprehension | ast.ListComp):
                message = "tune_kernel() is called in a loop; call it once, with one kernel"
                raise ScriptError(str(self._path), call.lineno, message)
        names = self._names_at(call, 0)
        values: dict[str, Value] = {}
        lines: dict[str, int] = {}
        given = list(zip(PARAMETERS, call.args, strict=False))
        if any(isinstance(argument, ast.Starred) for argument in call.args) or any(
            word.arg is None for word in call.keywords
        ):
            message = "tune_kernel() is called with * or **; write its arguments out"
            raise ScriptError(str(self._path), call.lineno, message)
        given += [(word.arg, word.value) for word in call.keywords if word.arg]
        for name, node in given:
            values[name] = self._evaluator.evaluate(node, names)
            lines[name] = node.lineno
        if self._evaluator.exhausted:
            message = "the script takes too many steps to read; make its lists and loops shorter"
            raise ScriptError(str(self._path), call.lineno, message)
        # A script may compute `answer` and not pass it on. It still says the correct result.
        answer = names.get("answer")
        if "answer" not in values and isinstance(answer, Listed):
            values["answer"], lines["answer"] = answer, call.lineno
        return TuneCall(self._path, call.lineno, values, lines)

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _names_at(self, node: ast.AST, depth: int) -> Names:
        """The names and values known right before the statement that contains `node`."""
        above = list(self._above(node))
        function = next((one for one in above if isinstance(one, ast.FunctionDef)), None)
        names: Names = {}
        if function is None:
            self._run_until(self._tree.body, names, {node, *above})
            return names
        self._run_until(self._tree.body, names, set())
        local = dict(names)
        local.update(self._parameters(function, names, depth))
        self._run_until(function.body, local, {node, *above})
        return local

    def _parameters(self, function: ast.FunctionDef, names: Names, depth: int) -> Names:
        """The parameters' values: from the function's call if the script has only one, else from
        the defaults."""
        spec = function.args
        known = [*spec.posonlyargs, *spec.args]
        found: Names = {
            part.arg: Unknown(function.lineno, f"{part.arg} is a parameter of {function.name}()")
            for part in (*known, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg)))
        }
        for part, default in zip(known[::-1], spec.defaults[::-1], strict=False):
            found[part.arg] = self._evaluator.evaluate(default, names)
        for part, stated in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if stated is not None:
                found[part.arg] = self._evaluator.evaluate(stated, names)
        callers = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == function.name
        ]
        if len(callers) == 1 and depth < _MOST_CALLERS:
            (caller,) = callers
            theirs = self._names_at(caller, depth + 1)
            plain = not any(isinstance(argument, ast.Starred) for argument in caller.args)
            if plain:
                for part, argument in zip(known, caller.args, strict=False):
                    found[part.arg] = self._evaluator.evaluate(argument, theirs)
            for word in caller.keywords:
                if word.arg is not None and word.arg in found:
                    found[word.arg] = self._evaluator.evaluate(word.value, theirs)
        return found

    def _follow(
        self, function: Function, arguments: Sequence[Value], keywords: Mapping[str, Value]
    ) -> Value | None:
        """The value that a function of the script returns; None for one that is not followed, as
        one that tunes: its arguments are read where it tunes."""
        node = function.node
        if node not in self._plain or self._followed == _MOST_CALLERS:
            return None
        assert isinstance(node, ast.FunctionDef)
        if self._evaluator.exhausted:
            return Unknown(node.lineno, "the script takes too many steps to read")
        spec = node.args
        known = [part.arg for part in (*spec.posonlyargs, *spec.args)]
        names = {*known, *(part.arg for part in spec.kwonlyargs)}
        if len(arguments) > len(known) or not keywords.keys() <= names:
            return None
        defaults = zip(known[::-1], spec.defaults[::-1], strict=False)
        stated = zip((part.arg for part in spec.kwonlyargs), spec.kw_defaults, strict=True)
        local, around = dict(function.names), dict(function.names)
        for name, default in (*defaults, *stated):
            if default is not None:
                local[name] = self._evaluator.evaluate(default, around)
        local.update({**dict(zip(known, arguments, strict=False)), **keywords})
        self._followed += 1
        try:
            self._run(node.body, local, set())
        except _Returned as returned:
            return returned.value
        finally:
            self._followed -= 1
        return Nothing()

    def _give_up(self, node: ast.stmt, names: Names, why: str) -> None:
        """Makes unknown what the statement may change, or what the function may return there."""
        if self._followed and any(isinstance(part, ast.Return) for part in ast.walk(node)):
            raise _Returned(Unknown(node.lineno, why))
        _forget(node, names, why)

    def _run_until(self, body: list[ast.stmt], names: Names, target: set[ast.AST]) -> None:
        try:
            self._run(body, names, target)
        except _Reached:
            return

    def _run(self, body: list[ast.stmt], names: Names, target: set[ast.AST]) -> None:
        for statement in body:
            self._evaluator.step()
            if statement in target and not isinstance(
                statement, ast.If | ast.With | ast.Try | ast.FunctionDef | ast.ClassDef
            ):
                raise _Reached
            try:
                self._statement(statement, names, target)
            except NotRead:
                self._give_up(statement, names, "it is made in a way that is not followed")

    def _statement(  # noqa: C901, PLR0912 (a case for each kind of statement)
        self, node: ast.stmt, names: Names, target: set[ast.AST]
    ) -> None:
        evaluate = self._evaluator.evaluate
        match node:
            case ast.Import() | ast.ImportFrom():
                names.update((name, Dotted(path)) for name, path in _imported(node))
            case ast.FunctionDef():
                names[node.name] = Function(node, names)
            case ast.Assign() | ast.AnnAssign() if node.value is not None:
                value = evaluate(node.value, names)
                for goal in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(goal, value, names)
            case ast.AugAssign():
                self._assign(node.target, evaluate(self._added(node), names), names)
            case ast.Expr():
                evaluate(node.value, names)
            case ast.Return() if self._followed:
                raise _Returned(evaluate(node.value, names) if node.value else Nothing())
            case ast.With():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, evaluate(item.context_expr, names), names)
                self._run(node.body, names, target)
            case ast.Try():
                self._run([*node.body, *node.orelse, *node.finalbody], names, target)
            case ast.If():
                self._branch(node, names, target)
            case ast.For():
                self._loop(node, names)
            case _ if isinstance(node, _CHANGING):
                self._give_up(node, names, f"it is changed at line {node.lineno}")

    @staticmethod
    def _added(node: ast.AugAssign) -> ast.expr:
        """`a += b` as `a + b`."""
        first = ast.parse(ast.unparse(node.target), mode="eval").body
        whole = ast.copy_location(ast.BinOp(first, node.op, node.value), node)
        for part in ast.walk(first):
            ast.copy_location(part, node)
        return whole

    def _assign(self, goal: ast.expr, value: Value, names: Names) -> None:
        if isinstance(goal, ast.Subscript):
            owner = self._evaluator.evaluate(goal.value, names)
            if isinstance(owner, Table):
                put(owner, self._evaluator.evaluate(goal.slice, names), value)
            elif isinstance(owner, Listed):
                unknown = Unknown(goal.lineno, "an item of the list is replaced")
                owner.items[:] = [unknown for _ in owner.items]
            return
        if isinstance(goal, ast.Tuple | ast.List):
            bind(goal, value, names)
            for part in goal.elts:
                if isinstance(part, ast.Name):
                    names[part.id] = _named(names[part.id], part.id, goal.lineno)
            return
        if isinstance(goal, ast.Name):
            names[goal.id] = _named(value, goal.id, goal.lineno)

    def _branch(self, node: ast.If, names: Names, target: set[ast.AST]) -> None:
        """Runs the branch that contains the call, else the branch that the condition takes. When
        the condition is unknown, the names that either branch changes become unknown."""
        for body in (node.body, node.orelse):
            if any(statement in target for statement in body):
                self._run(body, names, target)
                return
        test = self._evaluator.evaluate(node.test, names)
        if _is_main(node.test):
            self._run(node.body, names, target)
        elif isinstance(test, Number):
            self._run(node.body if test.value else node.orelse, names, target)
        else:
            self._give_up(node, names, f"it depends on a condition at line {node.lineno}")

    def _loop(self, node: ast.For, names: Names) -> None:
        values = self._evaluator.evaluate(node.iter, names)
        if not isinstance(values, Listed) or _leaves_early(node):
            self._give_up(node, names, f"it is changed in a loop at line {node.lineno}")
            return
        for item in list(values.items):
            if self._evaluator.exhausted:
                self._give_up(node, names, "the script takes too many steps to read")
                return
            bind(node.target, item, names)
            self._run(node.body, names, set())


def _named(value: Value, name: str, line: int) -> Value:
    """The value, which now has a name: a plain number becomes one that an expression can name."""
    if isinstance(value, Number) and value.is_constant and value.dtype != "bool":
        return Number(value.value, Leaf(name, value.value), value.dtype)
    if isinstance(value, Array) and not value.name:
        value.name = name
    if isinstance(value, Listed) and len(value.items) <= 3:
        items = [_named(item, f"{name}[{place}]", line) for place, item in enumerate(value.items)
                 if isinstance(item, Number)]  # fmt: skip
        if len(items) == len(value.items):
            return Listed(items, value.tunable)
    return value


def _forget(node: ast.stmt, names: Names, why: str) -> None:
    """Makes every name that the statement may change unknown."""
    for part in ast.walk(node):
        changed: ast.expr | None = None
        if isinstance(part, ast.Name | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            changed = part.value if isinstance(part, ast.Subscript) else part
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            changed = None if part.func.attr in READING else part.func.value
        if isinstance(changed, ast.Name) and not isinstance(names.get(changed.id), Dotted):
            names[changed.id] = Unknown(changed.lineno, why)


def _followed_functions(tree: ast.Module, calls: Sequence[ast.Call]) -> Iterator[ast.FunctionDef]:
    """The functions that neither make one of the calls nor call such a function, and do nothing
    else that is not followed."""
    called = {
        node: {part.func.id for part in ast.walk(node) if _is_named_call(part)}  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    wanted = {*calls}
    tuning = {node.name for node in called if wanted.intersection(ast.walk(node))}
    while more := {n.name for n in called if called[n] & tuning} - tuning:
        tuning |= more
    for node in called:
        plain = not any(isinstance(part, _NOT_FOLLOWED) for part in ast.walk(node))
        spec = node.args
        plain = plain and not (spec.vararg or spec.kwarg or node.decorator_list)
        if plain and node.name not in tuning:
            yield node


def _is_named_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _leaves_early(node: ast.For) -> bool:
    inner = (ast.Break, ast.Continue, ast.Return)
    return any(isinstance(part, inner) for part in ast.walk(node)) or bool(node.orelse)


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(test))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The imported names and their dotted paths. cupy's names are read as numpy's."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            path = f"{node.module}.{alias.name}"
            yield alias.asname or alias.name, _canonical(path)
        elif alias.asname:
            yield alias.asname, _canonical(alias.name)
        else:
            first = alias.name.split(".")[0]
            yield first, _canonical(first)


def _canonical(path: str) -> str:
    """One path for each function: `kernel_tuner.interface.tune_kernel` is
    `kernel_tuner.tune_kernel`, and cupy's functions are numpy's."""
    if path.startswith("kernel_tuner.") and path.endswith(".tune_kernel"):
        return _TUNE
    return "numpy" + path[len("cupy") :] if path.split(".", maxsplit=1)[0] == "cupy" else path


def _dotted(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """`kt.tune_kernel` -> kernel_tuner.tune_kernel."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return _canonical(".".join([aliases.get(node.id, node.id), *reversed(parts)]))
