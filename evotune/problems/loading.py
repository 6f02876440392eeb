"""Problems from a Python file: `name: path/to/problem.py:ClassName` in a space.

Reading such a space runs that file: see `evotune.user_code`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from evotune.errors import UsageError
from evotune.problems.user import UserProblem
from evotune.user_code import run_content, trust

_REFERENCE = re.compile(r"([^:]+\.py):([A-Za-z_][A-Za-z0-9_]*)")
_MOST_BYTES = 1 << 20


def is_file_reference(name: str) -> bool:
    """Whether a problem's name means a class in a file rather than a built-in problem."""
    return ".py" in name or ":" in name


def problem_source(name: str, root: Path) -> tuple[str, bytes]:
    """(path under `root`, content) of the file that a reference names; UsageError if unusable."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        raise UsageError(f"problem {name!r}: expected path/to/problem.py:ClassName")
    path = (root / found[1]).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UsageError(f"problem {name!r} lies outside the space's root {root}")
    try:
        content = path.read_bytes()
    except OSError as error:
        lost = isinstance(error, FileNotFoundError)
        hint = "; `root:` in the space says where to look" if lost else ""
        raise UsageError(f"problem {name!r}: {error.strerror}: {path}{hint}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"problem {name!r}: the file is larger than {_MOST_BYTES} bytes")
    return path.relative_to(root.resolve()).as_posix(), content


def load_problem(name: str, dtype: str, root: Path) -> UserProblem:
    """An instance of the class; UsageError, one line, whatever is wrong with the file."""
    relative, content = problem_source(name, root)
    sha256 = hashlib.sha256(content).hexdigest()
    trust.require((root / relative).resolve(), sha256)
    kind = _class(name, root / relative, content, f"evotune_problem_{sha256[:16]}")
    if dtype not in kind.dtypes:
        raise UsageError(f"problem {name} has no dtype {dtype!r}; it has {', '.join(kind.dtypes)}")
    return kind(dtype)


def _class(name: str, path: Path, content: bytes, module_name: str) -> type[UserProblem]:
    wanted = name.rpartition(":")[2]
    module = sys.modules.get(module_name)
    if module is None:
        try:
            module = run_content(module_name, str(path), content)
        except Exception as error:
            raise UsageError(f"{path} cannot be imported: {_in_words(error)}") from error
        sys.modules[module_name] = module
    kind = getattr(module, wanted, None)
    if not isinstance(kind, type) or not issubclass(kind, UserProblem):
        raise UsageError(f"{path} has no class {wanted} derived from evotune.problems.UserProblem")
    missing = sorted(kind.__abstractmethods__)
    if missing:
        raise UsageError(f"{path}: {wanted} lacks {', '.join(missing)}")
    if not kind.sizes:
        raise UsageError(f"{path}: {wanted} lacks sizes, the names that a shape must give")
    return kind


def _in_words(error: Exception) -> str:
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    return " ".join(f"{type(error).__name__}: {error}{line}".split())
