"""Exported packages in this process: imported, switched on and off together, checked, counted."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch

from evotune.errors import EvotuneError, UsageError

_OF_THE_CASE = ("not measured to win", "outside the domain", "layout", "alignment", "features")
"""Kinds of misses of a package about whose reasons a search knows more."""


class LoadedPackages:
    """Exported packages in this process, which serve SDPA together.

    - `folders`: those of the modules. `fresh`: they are loaded again, since they may have changed.
    - `fast_path_off`: while they serve, PyTorch's fast path for nn.TransformerEncoderLayer and
      nn.MultiheadAttention is off, because nobody else can serve it.
    """

    def __init__(
        self, folders: Sequence[str], *, fast_path_off: bool = False, fresh: bool = False
    ) -> None:
        self._modules = [imported(Path(folder), fresh=fresh) for folder in folders]
        self._fast_path_off = fast_path_off

    def __bool__(self) -> bool:
        return bool(self._modules)

    def activate(self) -> None:
        for module in self._modules:
            module.activate()
        if self._fast_path_off:
            torch.backends.mha.set_fastpath_enabled(False)

    def deactivate(self) -> None:
        for module in self._modules:
            module.deactivate()
        if self._fast_path_off:
            torch.backends.mha.set_fastpath_enabled(True)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """They serve without a warning at a miss: `tune_model` names misses itself."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            for module in self._modules:
                warnings.filterwarnings("ignore", f"{module.__name__}: ", UserWarning)
                stack.enter_context(module.active())
            stack.enter_context(self.calling_sdpa())
            yield

    @contextlib.contextmanager
    def calling_sdpa(self) -> Iterator[None]:
        """Layers call SDPA, if they are to."""
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(before and not self._fast_path_off)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    def check(self) -> None:
        """Raises EvotuneError if a kernel is wrong on this machine."""
        for module in self._modules:
            with contextlib.redirect_stdout(io.StringIO()):
                result = module.check()
            if not result:
                faults = "; ".join(f"{row.case}: {row.fault}" for row in result.rows if row.fault)
                raise EvotuneError(f"{module.__name__}.check() failed: {faults or 'no case'}")

    def counts(self) -> tuple[int, dict[str, int]]:
        """How many calls kernels have served, and how many were missed for each reason. Only a
        reason that does not follow from the case is told in words."""
        served = 0
        missed: dict[str, int] = {}
        for module in self._modules:
            info = module.info()
            served += info["calls"]
            for kind, told in info["misses"].items():
                why = "" if kind in _OF_THE_CASE else f"{kind}: {told['first']}"
                missed[why] = missed.get(why, 0) + told["count"]
        return served, missed


def imported(folder: Path, *, fresh: bool) -> ModuleType:
    """The package whose module lies in `folder`. Raises UsageError if the process has another
    module of that name."""
    name, place = folder.name, str(folder.parent)
    known = sys.modules.get(name)
    if known is not None and Path(str(known.__file__)).parent.resolve() != folder.resolve():
        raise UsageError(f"this process has another module {name}; name another folder")
    if known is not None and not fresh:
        return known
    sys.path.insert(0, place)
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name) if known is None else importlib.reload(known)
    finally:
        sys.path.remove(place)
