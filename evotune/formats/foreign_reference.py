"""Problems whose reference is somebody else's code: the base of the problems of all formats.

The file of such a problem is generated. It has the reference as text, which becomes a module at its
first use, in a worker; so the process that plans a run imports no torch. The user agreed to that
text before (`evotune.user_code`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from evotune.problems.problem import FLOAT8, Case, Tensors, torch_dtype
from evotune.problems.user import UserProblem
from evotune.problems.written import Tensor
from evotune.user_code import run_content
from evotune.util.words import printable

if TYPE_CHECKING:
    import random

    import torch

FLOATS = ("float64", "float32", "bfloat16", "float16")
_HALVES = ("bfloat16", "float16")
_DRAWS = 4


class ReferenceFailed(Exception):
    """Raised when the reference raises an exception. The message has its line."""


class ForeignReference(UserProblem):
    """Its subclass in a generated file sets the class variables below.

    - `reference_name`: what messages call the reference's file.
    - `reference_files`: its files by name, the first of which is the reference itself. The others
      are modules that it imports.
    """

    reference_name: ClassVar[str] = ""
    reference_files: ClassVar[Mapping[str, str]] = {}

    _current = threading.local()

    # What a subclass says

    def described_inputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def described_outputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def reference_call(
        self, given: Mapping[str, Any], wide: torch.dtype | None
    ) -> Callable[[], Any]:
        """A call of the reference. `given`: tensors, sizes and constants by name. `wide`: the type
        in which it will compute, in place of those that it names; None for its own."""
        raise NotImplementedError

    def further_cases(self) -> Sequence[Case]:
        """Cases that are checked and not timed."""
        return ()

    # A problem's methods

    def inputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        return self.described_inputs(sizes)

    def outputs(self, **sizes: int) -> Mapping[str, tuple[int, ...] | Tensor]:
        return self.described_outputs(sizes)

    def operations(self, **sizes: int) -> int:
        """One for each element of an output: what the reference does is not known here."""
        count = 0
        for tensor in self.described_outputs(sizes).values():
            elements = 1
            for extent in tensor.shape:
                elements *= extent
            count += elements
        return count

    def compute(self, **inputs: Any) -> Tensors:
        wide = self._wide(inputs)
        return self._outputs(self._called(inputs, wide), inputs, wide)

    def baselines_of(self, **inputs: Any) -> Mapping[str, Callable[[], Tensors]]:
        from evotune.problems.user_torch import widened

        given = widened(self.dtype, inputs)
        call = self.reference_call(given, None)
        names = list(self.described_outputs(self._sizes_in(given)))
        first = self._called(given, None)
        if isinstance(first, tuple | list):
            plain = all(map(_is_tensor, first))
            function = lambda: dict(zip(names, call(), strict=True))  # noqa: E731
        else:
            plain = _is_tensor(first)
            function = lambda: {names[0]: call()}  # noqa: E731
        # The clock sees the reference's call, and as little else as possible.
        typed = self._outputs(first, given, None)
        listed = listed_outputs(first, names)
        if plain and all(v.dtype == typed[n].dtype for n, v in zip(names, listed, strict=True)):
            return {"torch:eager": function}
        return {"torch:eager": lambda: self._outputs(call(), given, None)}

    def yardstick_of(self, **inputs: Any) -> Tensors:
        """As tensor cores compute it: the operands of products have the inputs' type. Each element
        is as far off as in the worst of several draws, since in one it may be right by chance."""
        import torch

        from evotune.formats.reference_modes import coarser

        described = self.described_inputs(self._sizes_in(inputs))
        types = [tensor.dtype or self.dtype for tensor in described.values()]
        halves = [dtype for dtype in types if dtype in _HALVES]
        if not halves:
            return self.compute(**inputs)
        wide = torch.float32
        given = {
            name: value.to(wide) if _is_tensor(value) and value.is_floating_point() else value
            for name, value in inputs.items()
        }
        found = self._outputs(self._called(given, wide), given, wide)
        off = {name: torch.zeros_like(value) for name, value in found.items()}
        for draw in range(_DRAWS):
            with coarser(torch_dtype(halves[0]), draw):
                coarse = self._outputs(self._called(given, wide), given, wide)
            for name, value in coarse.items():
                if value.is_floating_point():
                    off[name] = torch.maximum(off[name], (value - found[name]).abs())
        return {name: value + off[name] for name, value in found.items()}

    def edge_cases(self, case: Case, kept: Any = ()) -> Sequence[Case]:
        own = () if set(self.fixed) == set(self.sizes) else super().edge_cases(case, kept)
        return [*own, *self.further_cases()]

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        self._current.sizes = self.sizes_of(case)
        return super().make_inputs(case, kind, seed, device)

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        self._current.sizes = self.sizes_of(case)
        return super().altered_indices(case, inputs, name, most, rng)

    def given(self, case: Case, method: str) -> dict[str, Any]:
        """All sizes and constants."""
        constants = {name: case.symbols[name] for name in self.constants}
        return {**constants, **self.sizes_of(case)}

    # The reference

    @property
    def current_sizes(self) -> Mapping[str, int]:
        """The sizes of the case whose inputs this thread makes."""
        found: Mapping[str, int] = self._current.sizes
        return found

    @property
    def module(self) -> ModuleType:
        return reference_module(self.reference_files)

    def _called(self, given: Mapping[str, Any], wide: torch.dtype | None) -> Any:
        import torch

        from evotune.formats.reference_modes import widened

        precision = contextlib.nullcontext() if wide is None else widened(wide)
        with self.naming_lines(), torch.no_grad():
            call = self.reference_call(given, wide)
            with precision:
                return call()

    def naming_lines(self) -> _NamedLines:
        """A context in which an exception of the reference gets its file and line."""
        return _NamedLines(self.reference_name, reference_path(self.reference_files))

    def _outputs(self, found: Any, given: Mapping[str, Any], wide: torch.dtype | None) -> Tensors:
        wanted = self.described_outputs(self._sizes_in(given))
        device = next(v.device for v in given.values() if hasattr(v, "device"))
        values = listed_outputs(found, list(wanted))
        return {
            name: self._typed(value, tensor.dtype or self.dtype, wide, device)
            for (name, tensor), value in zip(wanted.items(), values, strict=True)
        }

    @staticmethod
    def _typed(
        value: Any, dtype: str, wide: torch.dtype | None, device: torch.device
    ) -> torch.Tensor:
        import torch

        is_wide = wide is not None and dtype in (*FLOATS, *FLOAT8)
        wanted = wide if is_wide else torch_dtype(dtype)
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=wanted, device=device)
        return value.to(wanted) if value.dtype != wanted else value

    def _wide(self, inputs: Mapping[str, Any]) -> torch.dtype | None:
        """The type that the inputs were converted to; None if they have their own."""
        import torch

        described = self.described_inputs(self._sizes_in(inputs))
        types = {name: tensor.dtype or self.dtype for name, tensor in described.items()}
        floats = {n: dtype for n, dtype in types.items() if dtype in FLOATS}
        for name, dtype in floats.items():
            found: torch.dtype = inputs[name].dtype
            if found != torch_dtype(dtype):
                return found
        if not floats:
            eighths = [inputs[n].dtype for n, dtype in types.items() if dtype in FLOAT8]
            return next((d for d in eighths if d == torch.float64), None if eighths else _double())
        return None

    def _sizes_in(self, given: Mapping[str, Any]) -> Mapping[str, int]:
        return {name: given[name] for name in self.sizes}


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _double() -> torch.dtype:
    import torch

    return torch.float64


def listed_outputs(found: Any, names: Sequence[str]) -> list[Any]:
    """What a reference returned, in the order of the outputs. Raises ReferenceFailed for another
    number of values."""
    if isinstance(found, Mapping):
        missing = [name for name in names if name not in found]
        if missing:
            raise ReferenceFailed(f"the reference returned no {', '.join(missing)}")
        return [found[name] for name in names]
    values = list(found) if isinstance(found, list | tuple) else [found]
    if len(values) != len(names):
        expected = f"expected {', '.join(names)}"
        raise ReferenceFailed(f"the reference returned {len(values)} values, {expected}")
    return values


class _NamedLines:
    """See `ForeignReference.naming_lines`."""

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, ReferenceFailed):
            return
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == self._path]
        place = f"{self._name}:{lines[-1]}" if lines else self._name
        message = printable(str(error))[:300]
        raise ReferenceFailed(f"{place}: {type(error).__name__}: {message}") from error


_modules: dict[str, ModuleType] = {}


def reference_path(files: Mapping[str, str]) -> str:
    """The path that tracebacks name for the reference."""
    return f"/evotune-reference/{_key(files)}/{next(iter(files))}"


def reference_module(files: Mapping[str, str]) -> ModuleType:
    """The module of the first file, made once in a process. It imports the others."""
    key = _key(files)
    if key not in _modules:
        name, text = next(iter(files.items()))
        with tempfile.TemporaryDirectory(prefix="evotune-reference-") as folder:
            for other in files.keys() - {name}:
                path = Path(folder) / other
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(files[other])
            sys.path.insert(0, folder)
            importlib.invalidate_caches()
            try:
                module_name = f"evotune_reference_{key}"
                module = run_content(module_name, reference_path(files), text.encode())
            finally:
                sys.path.remove(folder)
        _modules[key] = sys.modules[module_name] = module
    return _modules[key]


def _key(files: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0{content}".encode())
    return digest.hexdigest()[:16]
