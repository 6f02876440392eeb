"""Opens the package that these modules lie in, and gives it its public names."""

from __future__ import annotations

import platform
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ._attention_calls import AttentionCalls
from ._attention_package import BEFORE, AttentionKernels, Call, Outputs
from ._certificate import Contents
from ._checking import Result, check_attention
from ._dense_models import serving
from ._feature_calls import FeatureCalls
from ._left_calls import LeftCalls
from ._loaded_kernels import VERSION, LoadedKernels
from ._missed import Misses, shown
from ._named_calls import NamedCalls, optional_of, options_of
from ._named_kernels import NamedKernels
from ._operators import AttentionOperator
from ._padded_models import PaddedModels
from ._problem_checking import check_problem
from ._problem_package import ProblemKernels
from ._ragged_calls import RaggedCalls
from ._ragged_checking import check_ragged
from ._ragged_package import BEFORE as RAGGED_BEFORE
from ._ragged_package import CALLS, RaggedKernels
from ._sdpa_hook import Hook
from ._transformers_hook import register

ATTENTION = "attention"


class Package(Protocol):
    def public(self) -> dict[str, Callable[..., Any]]:
        """The public names of the module, and their values."""


def load(folder: Path, name: str, reloaded: Package | None = None) -> Package:
    """The package in `folder`, which is imported as the module `name`. It takes the place of the
    package `reloaded`, which the module loaded before: if that one serves PyTorch, this one does.

    Raises ImportError, one line, if its description cannot be read. If a file differs from the
    certificate, a warning says so, and no kernel is used.
    """
    contents = Contents(folder)
    if contents.damage:
        warnings.warn(f"{name}: {contents.damage}; no kernel is used", stacklevel=2)
    try:
        loaded = _opened(contents, name)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if not contents.damage:
            raise
        raise ImportError(f"{name}: {contents.damage}") from error
    if isinstance(loaded, AttentionPackage) and isinstance(reloaded, AttentionPackage):
        loaded.hook.take_over(reloaded.hook)
    return loaded


def _opened(contents: Contents, name: str) -> Package:
    if contents.dispatch["problem"]["name"] == ATTENTION:
        return AttentionPackage(contents, name)
    if contents.dispatch["problem"]["name"] in CALLS:
        return RaggedPackage(contents, name)
    return ProblemPackage(contents, name)


class AttentionPackage:
    """A package of attention kernels."""

    def __init__(self, contents: Contents, name: str) -> None:
        self._name = name
        self._contents = contents
        self._misses = Misses(name, BEFORE)
        operator = AttentionOperator(name)
        self._loaded = LoadedKernels(contents)
        self._kernels = AttentionKernels(contents, self._loaded, self._misses)
        operator.implement(self._kernels)
        if operator.decisions is not None:
            self._misses.collect = operator.decisions.collect
        self._operator = operator
        self._calls = AttentionCalls(self._kernels, operator, self._misses)
        self._feature_calls = FeatureCalls(self._kernels, operator, self._calls)
        self._calls.with_features = self._feature_calls.attention
        self.hook = Hook(self._calls.attempt)

    def public(self) -> dict[str, Callable[..., Any]]:
        return {
            ATTENTION: _published(self._calls.attention, ATTENTION, self._name),
            "activate": self.hook.activate,
            "deactivate": self.hook.deactivate,
            "active": self.hook.active,
            "register_transformers": self.register_transformers,
            "info": self.info,
            "check": self.check,
            "misses": self._misses.cases,
            "write_misses": self._misses.write,
        }

    def register_transformers(self) -> None:
        """Makes the package's name a value of `attn_implementation` in transformers."""
        left = LeftCalls(self._misses)
        serve = serving(self._calls.attempt, self._feature_calls, left)
        register(self._name.rpartition(".")[2], serve, left)

    def info(self) -> Facts:
        """Facts about the package on this machine: the device that it is for and whether it is
        here, the launcher, loaded files, served regions, calls served, and misses by kind."""
        native = self._operator.decisions
        facts = {
            "package": self._name,
            "operator": f"torch.ops.{self._operator.namespace}.{ATTENTION}",
            **device_facts(self._contents, self._loaded),
            **version_facts(self._contents, self._loaded),
            **self._loaded.facts(),
            "active": self.hook.is_active,
            **length_facts(self._contents),
            "served": self._kernels.dispatch.regions(),
            "score_mods": list(self._kernels.score_mods),
            "calls": self._kernels.calls() + (native.calls() if native else 0),
            "misses": self._misses.by_kind(),
        }
        return Facts(facts)

    def check(self) -> Result:
        """Compares every case that was timed and is served with SDPA and float64 on this machine,
        prints a table, and returns the result, which is true when all agree.

        If PyTorch or the driver differ from those of the measurements, a check that passes lets the
        kernels serve from then on in this process. Functions that torch.compile has compiled before
        do not change.
        """
        return _checked(
            self._loaded,
            lambda: check_attention(self._kernels, self._attempted),
            self._forget,
        )

    def _attempted(self, call: Call) -> Outputs | None:
        """The outputs, computed as calls are, or None if no kernel serves the call."""
        if not call.is_plain:
            return self._feature_calls.attempt(call)
        out = self._calls.attempt(*call[:3], call.mask, 0.0, *call[3:6])
        return None if out is None else (out, None)

    def _forget(self) -> None:
        self._kernels.forget()
        self._calls.forget()
        if self._operator.decisions is not None:
            self._operator.decisions.forget()


class _NamedPackage:
    """A package of kernels that take tensors by name."""

    def __init__(self, contents: Contents, name: str, before: str) -> None:
        self._name = name
        self._contents = contents
        self._misses = Misses(name, before)
        self._loaded = LoadedKernels(contents)
        self._calls: NamedCalls
        self._kernels: NamedKernels

    def public(self) -> dict[str, Callable[..., Any]]:
        return {
            "info": self.info,
            "misses": self._misses.cases,
            "write_misses": self._misses.write,
        }

    def info(self) -> Facts:
        """Facts about the package on this machine, as those of a package for attention."""
        facts = {
            "package": self._name,
            "operator": f"torch.ops.{self._calls.namespace}.{self._kernels.call_name}",
            **device_facts(self._contents, self._loaded),
            **version_facts(self._contents, self._loaded),
            **self._loaded.facts(),
            **length_facts(self._contents),
            "served": self._kernels.dispatch.regions(),
            "calls": self._kernels.calls,
            "misses": self._misses.by_kind(),
        }
        return Facts(facts)


class ProblemPackage(_NamedPackage):
    """A package of kernels of a user's problem."""

    def __init__(self, contents: Contents, name: str) -> None:
        super().__init__(contents, name, "the fallback")
        description = contents.dispatch
        inputs = description["problem"]["inputs"]
        self._calls = NamedCalls(
            name, description, inputs, options_of(description), optional_of(description)
        )
        self._own_kernels = ProblemKernels(contents, self._loaded, self._misses)
        self._kernels = self._own_kernels
        self._calls.implement(self._kernels)

    def public(self) -> dict[str, Callable[..., Any]]:
        name = self._kernels.call_name
        return {
            name: _published(self._calls.function(), name, self._name),
            "set_fallback": self._calls.set_fallback,
            "check": self.check,
            **super().public(),
        }

    def check(self) -> Result:
        """Calls every timed case, won or not; compares it with the fallback if there is one,
        otherwise with itself, bit for bit. Prints a table, and returns the result. If versions
        differ, a check that passes lets the kernels serve, as for attention."""
        kernels = self._own_kernels
        return _checked(self._loaded, lambda: check_problem(kernels), kernels.forget)


class RaggedPackage(_NamedPackage):
    """A package of kernels of attention over sequences of different lengths."""

    def __init__(self, contents: Contents, name: str) -> None:
        super().__init__(contents, name, RAGGED_BEFORE)
        self._own_calls = RaggedCalls(name, contents.dispatch)
        self._own_kernels = RaggedKernels(contents, self._loaded, self._misses)
        self._calls, self._kernels = self._own_calls, self._own_kernels
        self._calls.implement(self._kernels)

    def public(self) -> dict[str, Callable[..., Any]]:
        name = self._kernels.call_name
        return {
            name: _published(self._own_calls.function(), name, self._name),
            "assert_tables": self.assert_tables,
            "check": self.check,
            **({} if self._own_kernels.is_paged else {"register_transformers": self.register}),
            **super().public(),
        }

    def register(self) -> None:
        """Makes the package's name a value of `attn_implementation` in transformers: kernels serve
        padded batches, whose tokens are packed before and unpacked behind them."""
        left = LeftCalls(self._misses)
        serve = PaddedModels(self._own_kernels, left).serve
        register(self._name.rpartition(".")[2], serve, left)

    def assert_tables(self, on: bool = True) -> None:
        """Makes the GPU assert, at each call and without a wait, that lengths and tables fit the
        tensors, or with `on=False` not. This takes some twenty small launches, and applies to later
        calls, captured ones too. On a CPU lengths and tables are always checked."""
        self._own_kernels.asserts_tables = on
        self._own_kernels.forget()

    def check(self) -> Result:
        """Compares every case that was timed and is served with PyTorch and float64 on this
        machine, prints a table, and returns the result, as packages of attention do."""
        kernels = self._own_kernels
        return _checked(self._loaded, lambda: check_ragged(kernels), kernels.forget)


def _published(function: Callable[..., Any], name: str, package: str) -> Callable[..., Any]:
    """The function, as a name of the package, so that pickle finds it if a model refers to it."""
    function.__module__, function.__qualname__ = package, name
    return function


def _checked(
    loaded: LoadedKernels, check: Callable[[], Result], forget: Callable[[], None]
) -> Result:
    """The result of a check, which is printed. Versions that it accepts are checked once more, by
    the way that calls take from then on; `forget` forgets decisions that were made before."""
    versions, result = loaded.versions, check()
    refusal = versions.refusal()
    if result and refusal:
        versions.accepted = True
        forget()
        result = check()
        if not result:
            versions.accepted = False
            forget()
    print(result)
    if result and refusal:
        print(f"{versions.difference()}: the kernels serve calls of this process from now on")
    return result


# Facts for `info` that every kind of package has.
_WIDTH = 110
_MOST_LINES = 12  # for one fact


class Facts(dict[str, Any]):
    """Facts by name. Printed, each fact is a line or a few; long ones are cut."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = []
        for name, value in self.items():
            told = list(_told(value)) or ["none"]
            if len(told) > _MOST_LINES:
                left = len(told) - _MOST_LINES + 1
                told = [*told[: _MOST_LINES - 1], f"and {left} more"]
            for number, text in enumerate(told):
                cut = textwrap.shorten(shown(text), _WIDTH, placeholder=" …")
                lines.append(f"{'' if number else name:{width}}  {cut}".rstrip())
        return "\n".join(lines)


def _told(value: Any) -> Iterator[str]:
    """The lines of one fact."""
    if isinstance(value, Mapping):
        yield from (f"{name}: {_in_a_line(each)}" for name, each in value.items())
    elif isinstance(value, list):
        yield from map(_in_a_line, value)
    else:
        yield _in_a_line(value) or "-"


def _in_a_line(value: Any) -> str:
    """A region in words, or any other value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Mapping):
        return str(value)
    if "ranges" not in value:
        return ", ".join(f"{name} {_in_a_line(each)}" for name, each in value.items())
    words = [f"{name} {_in_a_line(each)}" for name, each in value["fixed"].items()]
    for name, (low, high) in value["ranges"].items():
        if isinstance(high, int) and name != "elements":
            words.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    least = f"at least {value['speedup_low']:.3f}x: " if "speedup_low" in value else ""
    return least + ", ".join(words)


def device_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The device that the kernels are for, and why they are not used here ("" when they are)."""
    try:
        refused = loaded.refused(torch.device(loaded.device_type, loaded.current_index()))
        why = refused.words if refused else ""
        matches = refused is None or refused.kind == VERSION
    except (RuntimeError, AssertionError) as error:  # PyTorch has no such devices here
        why, matches = " ".join(str(error).split()), False
    return {"device": loaded.device_name, "device_matches": matches, "why_not": why}


def length_facts(contents: Contents) -> dict[str, Any]:
    """The lengths that each kernel executed one by one, in words."""
    champions = contents.certificate.get("champions", [])
    told = (each.get("lengths", ["lengths not executed"]) for each in champions)
    return {"lengths": [line for lines in told for line in lines]}


def version_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The versions with which the kernels were measured, and those of this process; whether they
    count as the same; whether a check in this process has passed with other ones."""
    measured = dict(contents.certificate.get("environment", {}))
    if driver := contents.certificate.get("device", {}).get("driver"):
        measured["driver"] = driver
    versions = loaded.versions
    return {
        "measured_with": measured,
        "versions": {**versions.here, "python": platform.python_version()},
        "versions_match": not versions.difference(),
        "versions_accepted": versions.accepted,
    }
