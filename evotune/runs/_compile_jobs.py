"""Compiler runs of a space's kernels: the macros, options and sources of a configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import POINTERS, CompileJob, LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.base.source_checks import POINTER
from evotune.backends.base.sources import fingerprint, told_folder
from evotune.languages import language
from evotune.problems.problem import Case, Problem
from evotune.runs._space_files import source_path
from evotune.runs.launches import Rejected
from evotune.space.document import SpaceDocument
from evotune.space.specs import KernelSpec, filled
from evotune.trial import Configuration, Value


class CompileJobs:
    """Makes the compiler runs of one space on one device. SpaceError when two macros collide,
    UsageError when a compiler could not be told the folder."""

    def __init__(
        self,
        document: SpaceDocument,
        problem: Problem,
        profile: DeviceProfile,
        sources: Mapping[str, Mapping[str, bytes]],
    ) -> None:
        """`sources`: the files of each kernel. If a file changes later, the compiler refuses it."""
        self._document = document
        self._problem = problem
        self._profile = profile
        self._sources = {name: fingerprint(files) for name, files in sources.items()}
        self._source_paths = {k.name: source_path(document, k) for k in document.kernels}
        self._choices = _choice_constants(document)
        self._root = told_folder(document.root)
        self._refuse_collisions()

    def at(self, root: Path) -> CompileJobs:
        """The same jobs, with the sources read under another root."""
        moved = copy.copy(self)
        moved._root = told_folder(root)
        return moved

    def job(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        case: Case,
        plan: LaunchPlan,
        compiled_in: Sequence[Value],
    ) -> CompileJob:
        """The compiler run for a configuration on a case; `plan`: its launches there;
        `compiled_in`: the values of the kernel's compiled-in names."""
        defines = dict(self._choices)
        for name, value in configuration.items():
            if name != "KERNEL":
                defines[name] = _as_integer(name, value, defines)
        for index, dtype in enumerate(self._problem.dtypes, start=1):
            defines[f"DTYPE_{dtype.upper()}"] = index
        defines["DTYPE"] = defines[f"DTYPE_{self._problem.dtype.upper()}"]
        formulas = self._problem.formulas(case)
        for name, value in zip(kernel.compiled_in, compiled_in, strict=True):
            if name != "dtype" and name not in formulas:
                defines[name.upper()] = _as_integer(name, value, defines)
        return CompileJob(
            language=kernel.language,
            root=self._root,
            source=self._source_paths[kernel.name],
            defines=tuple(defines.items()),
            options=tuple(filled(option, configuration) for option in kernel.options),
            arch=self._profile.arch,
            sources_sha256=self._sources[kernel.name],
            formulas=tuple(formulas[n] for n in kernel.define if n in formulas and formulas[n][1]),
            **self._typed(kernel, case, plan),
        )

    def _typed(self, kernel: KernelSpec, case: Case, plan: LaunchPlan) -> dict[str, Any]:
        """The entries and argument types, as the language's compiler takes them."""
        if not language(kernel.language).one_entry:
            entries = {launch.entry: None for launch in plan.launches} or {kernel.entry: None}
            given = (POINTER if a.type in POINTERS else a.type for a in plan.arguments)
            return {"entries": tuple(entries), "signature": tuple(given)}
        pointees = {spec.name: f"*{spec.dtype}" for spec in self._problem.tensors(case)}
        pointees |= {workspace.name: "*byte" for workspace in kernel.workspace}
        extra = language(kernel.language).extra_arguments
        own = plan.arguments[: len(plan.arguments) - len(extra)]
        types = (pointees.get(a.name, "*byte") if a.type in POINTERS else a.type for a in own)
        return {"entry": kernel.entry, "signature": tuple(types)}

    def _refuse_collisions(self) -> None:
        """SpaceError at the second of two things that would become the same -D name."""
        taken = {f"DTYPE_{dtype.upper()}" for dtype in self._problem.dtypes} | {"DTYPE"}
        kernels = self._document.kernels
        own = {name for kernel in kernels for name in language(kernel.language).taken_macros}
        for kernel in kernels:
            places = zip(kernel.compiled_in, kernel.compiled_in_positions, strict=True)
            if wrong := [(name, place) for name, place in places if name.upper() in own]:
                name, place = wrong[0]
                raise place.error(
                    f"the compiler's own header uses {name.upper()}, so '{name}' cannot be "
                    "compiled in; pass it as an argument"
                )
        for kernel in self._document.kernels:
            taken |= {name.upper() for name in kernel.compiled_in}
        for spec in self._document.parameters:
            choices = [v for v in (*spec.parameter.values, spec.otherwise) if isinstance(v, str)]
            words = [f"{spec.name}_{word.upper()}" for word in dict.fromkeys(choices)]
            for name in (spec.name, *(words if spec.name != "KERNEL" else ())):
                if name in own:
                    raise spec.position.error(
                        f"the compiler's own header uses {name}, so no macro can have this name; "
                        "rename the parameter"
                    )
                if name in taken:
                    raise spec.position.error(
                        f"{spec.name} needs the macro {name}, which is taken by another parameter, "
                        "choice, dtype or compiled-in symbol"
                    )
                taken.add(name)


def _choice_constants(document: SpaceDocument) -> dict[str, int]:
    """NAME_CHOICE constants for every parameter that has identifiers among its values.

    They count from 1: the preprocessor takes a name it does not know for 0, and a choice that
    a space leaves out must not look like one that it has.
    """
    constants: dict[str, int] = {}
    for spec in document.parameters:
        if spec.name == "KERNEL":
            continue
        words = (*spec.parameter.values, spec.otherwise)
        identifiers = list(dict.fromkeys(word for word in words if isinstance(word, str)))
        for index, word in enumerate(identifiers, start=1):
            constants[f"{spec.name}_{word.upper()}"] = index
    return constants


def _as_integer(name: str, value: Value, constants: Mapping[str, int]) -> int:
    if isinstance(value, str):
        return constants[f"{name.upper()}_{value.upper()}"]
    if value != int(value):
        raise Rejected(f"'{name}' is {value}: only a whole number can be compiled in")
    return int(value)
