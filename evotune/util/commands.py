"""Makes command lines for messages, which a user can paste into a shell unchanged."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from evotune.errors import UsageError

RUNS_DIR = Path("runs")
"""The default folder of the runs."""


def command_line(*words: object) -> str:
    """`evotune WORD …`, with each word quoted if a shell would otherwise change it."""
    return f"{_program()} {shlex.join(map(str, words))}"


def run_command(name: str, run: str | Path, *words: object) -> str:
    """`evotune NAME RUN WORD …` for the run in the folder `run`, which may be anywhere."""
    folder = Path(run).absolute()
    where = _runs_dir(folder.parent)
    return command_line(name, folder.name, *words, *(("--runs-dir", where) if where else ()))


def python_command(*words: object) -> str:
    """`python WORD …` for the Python that runs evotune: its path, because `python` may be another
    environment's.
    """
    python = "python" if _program() == "evotune" else shlex.quote(sys.executable)
    return f"{python} {shlex.join(map(str, words))}"


def install_command(folder: str | Path) -> str:
    """The line that installs the exported package in `folder` where evotune itself is installed."""
    path = str(folder)
    path = path if Path(path).is_absolute() else f"./{path}"  # a bare name is one of the index
    words = ("pip", "install", "--no-deps", path)
    return shlex.join(words) if _program() == "evotune" else python_command("-m", *words)


def _runs_dir(folder: Path) -> str:
    """The shortest name of the folder from the working folder; "" if it is the default."""
    if folder == RUNS_DIR.absolute():
        return ""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _program() -> str:
    """The shell's words that start this evotune, from any folder: its name alone where the shell
    finds it. The shell does not find it in a virtual environment that is not active."""
    called = Path(sys.argv[0])
    module = called.name == "__main__.py" and called.parent.name == "evotune"
    if not module and called.name != "evotune":
        return "evotune"  # another program uses evotune as a library
    found = shutil.which("evotune")
    script = Path(sys.executable).with_name("evotune") if module else called
    if found is not None and os.path.realpath(found) == os.path.realpath(script):
        return "evotune"
    return (
        f"{shlex.quote(sys.executable)} -m evotune"
        if module
        else shlex.quote(str(called.absolute()))
    )


_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]*[A-Za-z0-9])?")
_TAKEN = frozenset(
    {"torch", "aten", "prim", "prims", "evotune", "transformers", "numpy", "pip", "setuptools"}
    | {"filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "triton"}
    | {"typing_extensions", "functorch", "torchgen"}
)
"""Packages, including those that PyTorch needs, and namespaces of PyTorch's operators. Each
exported package has a namespace of its own name."""
_IN_TORCH_OPS = frozenset({"higher_order", "import_module", "load_library", "loaded_libraries"})
"""Members of `torch.ops` that are not namespaces of operators."""


def default_name(space: str) -> str:
    """The space's name as an identifier, which `checked_name` may still refuse."""
    return re.sub(r"[^A-Za-z0-9_]", "_", space)


def checked_name(name: str) -> str:
    """The name. Raises UsageError if a package cannot have it."""
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
    """A name for a package of the space: the space's own name if it is valid."""
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
    """The commands that bring a run's winner into a program: two lines for the shell, and one of
    Python."""

    export: str
    install: str
    use: str


def package_commands(run_path: str, space: str, problem: str) -> PackageCommands:
    """The commands that export, install and use a package of this space and problem, under a valid
    name. `problem`: its name in the space, which for a user's own problem is a file and a class.
    """
    name = offered_name(space)
    named = () if name == default_name(space) else ("--name", name)
    folder = f"{name}_package"
    return PackageCommands(
        export=run_command("export", run_path, "-o", folder, *named),
        install=install_command(folder),
        use=use(name, "attention" if problem == "attention" else ""),
    )
