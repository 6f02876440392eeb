"""The name of an exported package, and the commands that make, install and use one."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass

from evotune.errors import UsageError
from evotune.util.command_line import install_command, run_command

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]*[A-Za-z0-9])?")
_TAKEN = frozenset(
    {"torch", "aten", "prim", "prims", "evotune", "transformers", "numpy", "pip", "setuptools"}
    | {"filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "triton"}
    | {"typing_extensions", "functorch", "torchgen"}
)
"""Packages, also the ones that PyTorch needs, and namespaces of PyTorch's operators. A package has
a namespace of its own name."""
_IN_TORCH_OPS = frozenset({"higher_order", "import_module", "load_library", "loaded_libraries"})
"""Members of `torch.ops` that are no namespaces of operators."""


def default_name(space: str) -> str:
    """The space's name as an identifier; it may still be none that `checked_name` takes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", space)


def checked_name(name: str) -> str:
    """The name; UsageError when a package cannot have it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be the name of a package: letters, digits and _, beginning with a "
            "letter and no keyword; choose one with --name"
        )
    if name in _TAKEN or name in sys.stdlib_module_names:
        raise UsageError(
            f"a package named {name!r} would hide the Python module of that name; choose another "
            "name with --name"
        )
    if name in _IN_TORCH_OPS:
        raise UsageError(
            f"torch.ops.{name} is PyTorch's own, and would be the package's operators; choose "
            "another name with --name"
        )
    return name


def offered_name(space: str) -> str:
    """A name for a package of the space: its own if that can be one."""
    own = default_name(space)
    for name in (own, f"{own}_kernel", f"kernel_{own}"):
        try:
            return checked_name(name)
        except UsageError:
            continue
    return "kernel"


def use(name: str, call: str = "") -> str:
    """The Python line with which a program uses the package. `call`: its function, if known."""
    if call == "attention":
        return f"import {name}; {name}.activate()"
    return f"import {name}; help({name}.{call})" if call else f"import {name}; help({name})"


@dataclass(frozen=True, slots=True)
class PackageCommands:
    """How a run's winner gets into a program: two lines for the shell, and one of Python."""

    export: str
    install: str
    use: str


def package_commands(run_path: str, space: str, problem: str) -> PackageCommands:
    """For a run of this space and problem, under a name that the package can have. `problem`: as
    the space names it; a problem of the user's own is a file and a class."""
    name = offered_name(space)
    named = () if name == default_name(space) else ("--name", name)
    folder = f"{name}_package"
    return PackageCommands(
        export=run_command("export", run_path, "-o", folder, *named),
        install=install_command(folder),
        use=use(name, "attention" if problem == "attention" else ""),
    )
