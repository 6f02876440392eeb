"""A tuned callable in the user's own process, on the user's own tensors."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import CallPlan, DeviceProfile, LaunchPlan
from evotune.backends.python.bundle import Bundle
from evotune.backends.python.function_calls import Wanted, returned_tensors, takes_outputs
from evotune.problems.problem import Tensors

if TYPE_CHECKING:
    import torch


class CallableCaller:
    """Imports the modules that were tuned, and builds the callable once for each case."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def refusal(self, device: torch.device) -> str:
        wanted = "cuda" if self._profile.id else "cpu"
        return "" if device.type == wanted else f"the callable was tuned for {self._profile.name}"

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        import torch

        made: AbstractContextManager[None] = contextlib.nullcontext()
        return made if device.type == "cpu" else torch.cuda.device(device)

    def load(self, binary: Path) -> KernelCall:
        bundle = Bundle.read(binary)
        folder = Path(tempfile.mkdtemp(prefix="evotune-callable-"))
        make = getattr(_imported(bundle, folder), bundle.entry)
        built: dict[CallPlan, tuple[Callable[..., Any], bool]] = {}

        def call(plan: LaunchPlan, tensors: Mapping[str, torch.Tensor]) -> Tensors | None:
            assert plan.call is not None
            wanted = Wanted.of(plan.call)
            names = [each.name for each in wanted]
            if plan.call not in built:
                made = make(dict(bundle.configuration), dict(plan.call.symbols))
                built[plan.call] = made, takes_outputs(made, names)
            function, given = built[plan.call]
            if given:
                function(**tensors)
                return None
            inputs = {name: value for name, value in tensors.items() if name not in names}
            return dict(zip(names, returned_tensors(function(**inputs), wanted), strict=True))

        # Tracebacks and compilers read the files as long as the callable lives.
        weakref.finalize(call, shutil.rmtree, folder, ignore_errors=True)
        return call


def _imported(bundle: Bundle, folder: Path) -> ModuleType:
    """The bundle's module, made of exactly its files, which are written into the folder. The
    program's modules of the same names stay as they are."""
    bundle.write(folder)
    place = bundle.place
    own = {name.partition(".")[0] for name in bundle.module_names}
    with _without(own):
        sys.path.insert(0, str(folder / place.folder))
        importlib.invalidate_caches()
        try:
            return importlib.import_module(place.name)
        finally:
            sys.path.pop(0)


@contextlib.contextmanager
def _without(names: set[str]) -> Iterator[None]:
    """Takes modules with these names, and all that they contain, out of the program meanwhile."""
    before = {name: sys.modules.pop(name) for name in _of(names)}
    try:
        yield
    finally:
        if before:
            for name in _of(names):
                del sys.modules[name]
        sys.modules.update(before)


def _of(names: set[str]) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in names]
