"""Makes the problem's `compute` a module of a package, which serves the calls that no kernel
serves.

A package contains neither evotune nor another file of the problem. So the method is copied alone,
and only if it needs nothing but its arguments, Python's own functions, and modules of PyTorch or
`math`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import symtable
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping

COMPUTE_FILE = "_problem_compute.py"
_METHOD = "compute"
_MODULES = ("torch", "math")
_BUILT_IN = frozenset(dir(builtins)) - {"super"}
_HEAD = '''\
"""The problem's `compute`, as {file} has it. It serves the calls that no kernel serves."""

from __future__ import annotations

'''


def compute_source(
    reference: str, files: Mapping[str, bytes], unknown: Collection[str] = ()
) -> bytes | None:
    """The module, for the problem that a space names as `path/to/problem.py:ClassName`; `files` has
    the run's sources by path. None if the method cannot stand alone, is in no file, or lists an
    argument that is `unknown` to a package, such as a size."""
    file, _, name = reference.partition(":")
    if file not in files or not name:
        return None
    try:
        text = files[file].decode("utf-8-sig")
        tree = ast.parse(text)
    except (UnicodeDecodeError, SyntaxError):
        return None
    kind = _class_with_method(tree, name)
    method = None if kind is None else _own_method(kind)
    if kind is None or method is None or _listed(method) & {*unknown}:
        return None
    imports = _imports(tree)
    needed = _needed(text, kind.name, method)
    lines = text.splitlines(keepends=True)[method.lineno - 1 : method.end_lineno]
    own = textwrap.dedent("".join(lines)).rstrip() + "\n"
    known = _built_in(text, tree) | imports.keys()
    if needed is None or not needed <= known or not _is_same(own, method):
        return None
    kept = [imports[each] for each in sorted(needed & imports.keys())]
    head = "".join(f"{line}\n" for line in dict.fromkeys(kept))
    return f"{_HEAD.format(file=file)}{head}\n\n{own}".encode()


def _class_with_method(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """The class `name`, or the first base class in the file, that writes the method."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        found = classes.get(waiting.pop(0))
        if found is None or found.name in seen:
            continue
        if _own_method(found) is not None:
            return found
        seen.add(found.name)
        waiting = [base.id for base in found.bases if isinstance(base, ast.Name)] + waiting
    return None


def _listed(method: ast.FunctionDef) -> set[str]:
    return {each.arg for each in (*method.args.args, *method.args.kwonlyargs)}


def _own_method(kind: ast.ClassDef) -> ast.FunctionDef | None:
    methods = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name == _METHOD]
    return methods[-1] if methods else None


def _imports(tree: ast.Module) -> dict[str, str]:
    """Statements of the file that import PyTorch or `math`, by the name that each gives. A name
    that the file also gives to something else is left out."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in _brought_along(node):
                alone = (
                    ast.Import([each])
                    if isinstance(node, ast.Import)
                    else ast.ImportFrom(node.module, [each], 0)
                )
                found[_name_of(each)] = ast.unparse(alone)
    others = set(_bound(tree.body, is_top=True))
    return {name: line for name, line in found.items() if name not in others}


def _name_of(imported: ast.alias) -> str:
    return imported.asname or imported.name.partition(".")[0]


def _brought_along(node: ast.ImportFrom | ast.Import) -> list[ast.alias]:
    """The names that the statement imports from PyTorch or `math`: a program with a package has
    both."""
    if isinstance(node, ast.ImportFrom):
        known = node.level == 0 and str(node.module).partition(".")[0] in _MODULES
        return node.names if known else []
    return [each for each in node.names if each.name.partition(".")[0] in _MODULES]


def _bound(nodes: Iterable[ast.AST], is_top: bool = False) -> Iterator[str]:
    """The names that statements bind in their own scope. Not among them are the names that the file
    itself (`is_top`) imports from PyTorch or `math`, and the `torch` of a nested
    `import torch.cuda`, since that is the same module."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            known = _brought_along(node)
            if not is_top:
                is_plain = isinstance(node, ast.Import)
                known = [each for each in known if is_plain and not each.asname]
            yield from (_name_of(each) for each in node.names if each not in known)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        yield from _bound(ast.iter_child_nodes(node))


def _built_in(text: str, tree: ast.Module) -> frozenset[str]:
    """Python's own functions that no name of the file hides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            return frozenset()  # its names are in another file
    bound = (
        symbol.get_name()
        for symbol in symtable.symtable(text, "problem", "exec").get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    )
    return _BUILT_IN.difference(bound)


def _needed(text: str, kind: str, method: ast.FunctionDef) -> set[str] | None:
    """The names from outside that the method uses. None if it uses the problem itself, imports
    other modules, or has decorators, or defaults that are no plain values."""
    defaults = filter(None, (*method.args.defaults, *method.args.kw_defaults))
    if method.decorator_list or not all(isinstance(each, ast.Constant) for each in defaults):
        return None
    imports = (n for n in ast.walk(method) if isinstance(n, ast.Import | ast.ImportFrom))
    if any(_brought_along(each) != each.names for each in imports):
        return None
    (table,) = [
        inner
        for outer in symtable.symtable(text, "problem", "exec").get_children()
        if outer.get_name() == kind
        for inner in outer.get_children()
        if inner.get_type() == "function" and inner.get_lineno() == method.lineno
    ]
    named = [each.arg for each in (*method.args.posonlyargs, *method.args.args)]
    # From Python 3.12 on a symbol table does not tell what a comprehension alone uses.
    names = (node for node in ast.walk(method) if isinstance(node, ast.Name))
    if any(each.id in named[:1] and isinstance(each.ctx, ast.Load) for each in names):
        return None
    return {
        symbol.get_name()
        for scope in _with_inner(table)
        for symbol in scope.get_symbols()
        if symbol.is_global()
    }


def _with_inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _with_inner(child)


def _is_same(own: str, method: ast.FunctionDef) -> bool:
    """Whether the text alone still means the method: a text of several lines in it may begin at
    the margin. What its docstring says does not matter."""
    try:
        (found,) = ast.parse(own).body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(found, ast.FunctionDef):
        return False
    said = ast.get_docstring(method)
    if said is not None and said == ast.get_docstring(found):
        found, method = copy.deepcopy(found), copy.deepcopy(method)
        del found.body[0], method.body[0]
    return ast.dump(found) == ast.dump(method)
