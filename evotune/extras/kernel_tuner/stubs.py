"""Modules that take the place of kernel_tuner, cupy, pycuda and others while a script is recorded.

`tune_kernel` records its arguments and ends the script. CuPy's functions are NumPy's. Everything
that only a GPU or Kernel Tuner itself could answer is a `Missing` object: the script may create it,
call it and pass it on, and it raises `NeedsGpu` when its value is needed.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import inspect
import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import numpy as np

from evotune.extras.kernel_tuner.traced import CONSTRAINTS

_NUMPY_LIKE = ("cupy", "cupyx")
_OPAQUE = ("kernel_tuner", "pycuda", "pyopencl")
_WRITING = frozenset("wax+")
_CHANGING = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.truncate")


class NeedsGpu(Exception):
    """Raised if the script needs the value of something that only a GPU or Kernel Tuner can
    provide."""


class Finished(BaseException):
    """Raised once the call is recorded. No `except Exception` of a script catches it."""


class Written(BaseException):
    """Raised if the script is about to change a file after it got an invented result."""


class Missing:
    """Stands for something that is not installed: a module's attribute, or a function's result."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._path}.{name}")

    def __call__(self, *_: object, **__: object) -> Any:
        return Missing(f"{self._path}()")

    def __or__(self, _: object) -> Any:  # of flags
        return self

    __ror__ = __and__ = __rand__ = __or__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __str__(self) -> str:
        return self._path

    def _needed(self, *_: object) -> NoReturn:
        raise NeedsGpu(f"the script needs the value of {self._path}, which is not computed here")

    __int__ = __index__ = __float__ = __iter__ = __len__ = __array__ = __getitem__ = _needed
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __mul__ = __rmul__ = _needed
    __sub__ = __rsub__ = __truediv__ = __floordiv__ = __fspath__ = _needed


class Ignored:
    """The base of every class of kernel_tuner, such as its observers: takes any arguments."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> Any:
        return Missing(f"the result of a {type(self).__name__}")


class TunablePrecision:
    """An argument whose type a tunable chooses."""

    def __init__(self, *_: object, **__: object) -> None: ...


class KernelResult(np.ndarray):
    """What `run_kernel` returns, and everything computed from it: no value in it is true."""


def named_calls(
    on_call: Callable[[Mapping[str, object], FrameType], object],
    on_invented: Callable[[], None],
) -> tuple[Callable[..., object], Callable[..., object]]:
    """The stubs `tune_kernel` and `run_kernel`. `on_call` is called with the arguments of the
    former by name, `on_invented` before the latter returns."""

    def tune_kernel(  # noqa: PLR0917 (in the order of the real one)
        kernel_name: object, kernel_source: object, problem_size: object, arguments: object,
        tune_params: object, grid_div_x: object = None, grid_div_y: object = None,
        grid_div_z: object = None, restrictions: object = None, answer: object = None,
        atol: object = None, verify: object = None, verbose: object = None, lang: object = None,
        device: object = None, platform: object = None, smem_args: object = None,
        cmem_args: object = None, texmem_args: object = None, compiler: object = None,
        compiler_options: object = None, defines: object = None, log: object = None,
        iterations: object = None, block_size_names: object = None, **others: object,
    ) -> object:  # fmt: skip
        given = {name: value for name, value in locals().items() if name != "on_call"}
        given.update(given.pop("others"))
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        return on_call(given, frame.f_back)

    def run_kernel(
        kernel_name: object, kernel_source: object, problem_size: object, arguments: object,
        *_: object, **__: object,
    ) -> list[object]:  # fmt: skip
        assert isinstance(arguments, Sequence)
        on_invented()
        return [_invented(value) for value in arguments]

    return tune_kernel, run_kernel


def _invented(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    made = value.copy().view(KernelResult)
    if made.dtype.kind == "f":
        made.fill(np.nan)
    return made


def install(functions: Mapping[str, object]) -> None:
    """Makes imports find the stub modules first. `functions`: the functions of kernel_tuner."""
    sys.meta_path.insert(0, _Finder(functions))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, functions: Mapping[str, object]) -> None:
        self._functions = functions

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root not in (*_NUMPY_LIKE, *_OPAQUE, "constraint"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        root, _, rest = spec.name.partition(".")
        if root in _NUMPY_LIKE:
            return _NumpyLike(spec.name, rest)
        known: dict[str, object] = dict(CONSTRAINTS) if root == "constraint" else {}
        if root == "kernel_tuner":
            known = {**self._functions, "TunablePrecision": TunablePrecision}
        elif spec.name == "pycuda.driver":
            known = {"pagelocked_empty": _page_locked, "pagelocked_zeros": _page_locked}
        elif spec.name == "pycuda.gpuarray":
            known = {"to_gpu": _on_gpu, "zeros": np.zeros, "empty": np.zeros}
        return _Opaque(spec.name, known)

    def exec_module(self, module: ModuleType) -> None: ...


class _Opaque(ModuleType):
    """A module in which every class is `Ignored` and everything else is a `Missing`."""

    def __init__(self, name: str, known: Mapping[str, object]) -> None:
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        found = type(name, (Ignored,), {}) if name[0].isupper() else Missing(path)
        if self.__name__.startswith("pycuda"):
            found = Missing(path)
        setattr(self, name, found)
        return found


class _OnDevice(np.ndarray):
    """An array of CuPy's or PyCUDA's: one of NumPy's with their method."""

    def get(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        return self.view(np.ndarray)


def _on_gpu(found: Any, *_: object) -> Any:
    return found.view(_OnDevice) if type(found) is np.ndarray else found


def _page_locked(shape: Any, dtype: Any, order: Any = "C", mem_flags: object = 0) -> Any:
    return np.zeros(shape, dtype, order)


class _NumpyLike(ModuleType):
    """cupy, or one of its modules: NumPy's functions, and a `Missing` for what NumPy lacks."""

    def __init__(self, name: str, inside: str) -> None:
        super().__init__(name)
        self._numpy: Any = np
        for part in inside.split(".") if inside else ():
            self._numpy = getattr(self._numpy, part, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("asnumpy", "ascontiguousarray"):
            return lambda array, *_, **__: np.asarray(array)
        if name.endswith("_pinned"):
            return np.zeros
        found = getattr(self._numpy, name, None)
        if found is None:
            return Missing(f"{self.__name__}.{name}")
        if isinstance(found, ModuleType):
            return _NumpyLike(f"{self.__name__}.{name}", name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *given, **named: _on_gpu(found(*given, **named))


class Overlay:
    """From `begin` on, files that the script writes go to a separate folder, from which it also
    reads them back, because they may come from an invented result. Raises `Written` for any other
    change."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = os.path.realpath(scratch)
        self._kept: dict[str, str] = {}
        self._began = False
        self._open = builtins.open

    def begin(self) -> None:
        if not self._began:
            self._began = True
            builtins.open = io.open = self._opened
            sys.addaudithook(self._watch)

    def _opened(self, file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            real = os.path.realpath(os.fspath(file))
            if real not in self._kept and not _WRITING.isdisjoint(mode):
                kept = os.path.join(self._scratch, str(len(self._kept)))
                if os.path.isfile(real) and "w" not in mode:
                    shutil.copyfile(real, kept)
                self._kept[real] = kept
            file = self._kept.get(real, file)
        return self._open(file, mode, *given, **named)

    def _watch(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes):
            changes = given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        else:
            changes = event in _CHANGING
        if changes:
            real = os.path.realpath(os.fsdecode(given[0]))
            if real != os.devnull and not real.startswith(self._scratch + os.sep):
                raise Written(os.fsdecode(given[0]))
