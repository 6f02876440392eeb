"""Writes the files of an exported package: its description, its certificate, and the files for
pip."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.export._champions import BuiltChampion, Selection
from evotune.export.case_shapes import (
    CaseShapes,
    call_name,
    calls,
    completing,
    score_mods,
    to_json,
)
from evotune.export.compute_source import COMPUTE_FILE, compute_source
from evotune.export.package_readme import length_words, readme
from evotune.packages import __version__
from evotune.portfolios.matrix_store import BATCH_HEADS
from evotune.problems import UserProblem
from evotune.problems import attention_masks as masks
from evotune.problems.attention import DIMENSIONS, Attention
from evotune.problems.executed_sizes import band_ends
from evotune.problems.problem import CONTIGUOUS, torch_name
from evotune.runs.confirmed_champions import Champion
from evotune.runs.given_cases import spaces_on
from evotune.space.reading.case_file import CaseEntry
from evotune.trial import Json, Region
from evotune.util.words import escaped_json, printable
from evotune.workers.executor import TIMED

FORMAT = 1
_REQUIRES = {"python": ">=3.10", "torch": ">=2.6"}
INIT = '''\
"""{summary}

`info()` tells what it serves, `check()` compares it with the reference on this machine.
"""

from pathlib import Path as _Path

from . import _package

_loaded = _package.load(_Path(__file__).parent, __name__, globals().get("_loaded"))
globals().update(_loaded.public())
__all__ = sorted(_loaded.public())
'''
_PYPROJECT = """\
[build-system]
requires = []
build-backend = "_build"
backend-path = ["."]

[project]
name = "{name}"
version = "{version}"
description = "{summary}"
readme = "README.md"
requires-python = "{python}"
dependencies = ["torch{torch}"]
"""


def dispatch(
    name: str, chosen: Selection, kernels: Sequence[BuiltChampion], shapes: CaseShapes
) -> dict[str, Json]:
    """The content of `dispatch.json`: how the package turns a call into a case, and a case into
    launches."""
    best = chosen.best
    setup, problem = best.run.setup, best.run.planner.problem
    suffix = registry.named(setup.profile.backend).binary_suffix
    layouts = [_layout(each) for each in chosen.champions]
    scope = setup.space.case_scope({}, {"dtype": problem.dtype})
    others = {
        tensor: torch_name(dtype)
        for tensor, dtype in shapes.dtypes.items()
        if dtype != problem.dtype
    }
    values = {tensor: list(map(to_json, ends)) for tensor, ends in shapes.values(scope).items()}
    extents = {
        tensor: [to_json(node) for node in nodes] for tensor, nodes in shapes.nodes(scope).items()
    }
    timed = [case for each in chosen.champions for case in each.run.setup.cases[TIMED]]
    ranked = sorted(
        range(len(kernels)), key=lambda n: (-chosen.champions[n].bound, chosen.champions[n].key)
    )
    completed = completing(shapes)
    modified = score_mods(region.fixed for each in kernels for region, _ in each.regions)
    return {
        "format": FORMAT,
        "package": name,
        "problem": {
            "name": problem.name,
            "dtype": problem.dtype,
            "inputs": list(shapes.inputs),
            "outputs": list(shapes.outputs),
            "call": call_name(setup.problem_spec.name, problem),
            **({"types": others} if others else {}),
            **({"values": values} if values else {}),
        },
        "device": _device(setup.profile),
        "cases_from": calls(problem, shapes, list({case.label: case for case in timed}.values())),
        "shapes": extents,
        "quantities": {
            quantity: to_json(node)
            for quantity, node in shapes.quantities(scope).items()
            if quantity != BATCH_HEADS or any(BATCH_HEADS in each.ranges for each in chosen.served)
        },
        "kernels": [
            {
                "champion": number,
                "binaries": [binary.to_json(suffix) for binary in each.binaries],
                **each.plan.to_json(),
            }
            for number, each in enumerate(kernels)
        ],
        "served": [
            {**region.to_json(layouts[region.kernel]), "fixed": completed(region.fixed)}
            for region in chosen.served
        ],
        "domain": [
            {
                "kernel": number,
                "fixed": completed(region.fixed),
                "ranges": {quantity: list(ends) for quantity, ends in region.ranges.items()},
                "layout": layouts[number],
                **({} if compiled is None else {"compiled": dict(compiled)}),
                **({"mask_sizes": list(region.mask_sizes)} if region.mask_sizes else {}),
                **(_executed(region) if isinstance(problem, UserProblem) else {}),
            }
            for number in ranked
            for region, compiled in kernels[number].regions
        ],
        **({"timed": [dict(case.symbols) for _, case in chosen.timed]} if chosen.timed else {}),
        **({"score_mods": modified} if modified else {}),
        **({"spaces": _spaces(best)} if isinstance(problem, Attention) else {}),
    }


def _spaces(champion: Champion) -> dict[str, Json]:
    """The shipped spaces that take the champion's first timed case with a mask, by the mask's
    kind: the package names them when it does not serve one."""
    setup = champion.run.setup
    symbols = setup.cases[TIMED][0].symbols
    shape = {name: symbols[name] for name in DIMENSIONS["q"] + DIMENSIONS["k"]}
    found: dict[str, Json] = {}
    for kind in (masks.PADDING, masks.BOOL, masks.BIAS):
        entry = CaseEntry({}, shape, {"mask": kind}, champion.problem.dtype)
        answers = spaces_on(setup.profile, entry)
        found[kind] = [each.space for each in answers if not each.why]
    return found


def _executed(region: Region) -> dict[str, Json]:
    """The sizes that were executed in pairs, as ranges, and the lengths that were executed one by
    one. Kernels of other problems than attention serve their whole domain, so the package holds
    each call to both; what attention serves is clipped to them beforehand."""
    found: dict[str, Json] = {}
    if region.pairs:
        found["pairs"] = {
            names: [
                [
                    list(band_ends(name, number))
                    for name, number in zip(names.split(), pair, strict=True)
                ]
                for pair in pairs
            ]
            for names, pairs in region.pairs.items()
        }
    if region.executed is not None:
        found["lengths"] = {each.name: [list(r) for r in each.ranges] for each in region.executed}
    return found


def _layout(champion: Champion) -> str:
    """`strided` if the champion was right on tensors with several kinds of strides."""
    checked = set(champion.domain.layout.split(", "))
    return "strided" if checked - {CONTIGUOUS} else CONTIGUOUS


def certificate(
    name: str,
    chosen: Selection,
    kernels: Sequence[BuiltChampion],
    described: Mapping[str, Json],
    files: Mapping[str, str],
) -> dict[str, Json]:
    """The content of `certificate.json`: what was checked and measured, on which device, with which
    versions, for which bytes. `described`: the content of `dispatch.json`; `files`: the SHA-256 of
    every other file of the package."""
    best = chosen.best
    setup, problem = best.run.setup, best.run.planner.problem
    record = _record(best)
    return {
        "format": FORMAT,
        "package": name,
        "version": _version(files),
        "summary": summary_line(best),
        "requires": dict(_REQUIRES),
        "evotune": __version__,
        "platform": sysconfig.get_platform(),
        "problem": problem.name,
        "dtype": problem.dtype,
        "device": _device(setup.profile),
        "environment": record,
        "measured": {each.run.run.id: each.created for each in chosen.champions},
        "files": dict(files),
        "call_sha256": _call_sha256(described),
        "champions": [_champion(each.champion) for each in kernels],
    } | ({"portfolio": dict(chosen.rule)} if chosen.rule is not None else {})


def _call_sha256(described: Mapping[str, Json]) -> str:
    """The hash of those parts of `dispatch.json` on which a fallback depends, computed as in the
    package's `_certificate.py`. So a fallback still serves if another part was changed."""
    parts = [described[part] for part in ("problem", "cases_from", "shapes")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def package_files(name: str, kernels: Sequence[BuiltChampion]) -> dict[str, bytes]:
    """The files of the package itself, without its two JSON files."""
    setup = kernels[0].champion.run.setup
    backend = registry.named(setup.profile.backend)
    files = {
        "__init__.py": INIT.format(summary=summary_line(kernels[0].champion)).encode(),
        **_runtime(),
        **backend.exported_files(name),
    }
    problem = setup.planner.problem
    unknown: set[str] = set()
    if isinstance(problem, UserProblem):
        unknown = {*problem.sizes, *problem.flags, *problem.constants} - {*problem.ranges}
    if compute := compute_source(setup.problem_spec.name, setup.files, unknown):
        files[COMPUTE_FILE] = compute
    for each in kernels:
        for binary in each.binaries:
            files[binary.file(backend.binary_suffix)] = binary.code
    return files | _sources([each.champion for each in kernels])


def frame(
    name: str, certified: Mapping[str, Any], described: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files next to the package, with which `pip` installs it."""
    head = _PYPROJECT.format(
        name=name, version=certified["version"], summary=certified["summary"], **_REQUIRES
    )
    builder = resources.files(__package__).joinpath("_wheel_builder.py").read_bytes()
    return {
        "pyproject.toml": head.encode(),
        "_build.py": builder,
        "README.md": readme(certified, described).encode(),
    }


def _runtime() -> dict[str, bytes]:
    """The modules that every package carries."""
    folder = resources.files(__package__).joinpath("runtime")
    return {
        each.name: each.read_bytes()
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".py") and each.name != "__init__.py"
    }


def _sources(champions: Sequence[Champion]) -> dict[str, bytes]:
    """The space and the sources, as each run has them; by run if there are several."""
    runs = {champion.run.run.id: champion.run.setup.files for champion in champions}
    several = len(runs) > 1
    return {
        f"sources/{f'{run}/' if several else ''}{path}": content
        for run, files in sorted(runs.items())
        for path, content in sorted(files.items())
    }


def _device(profile: DeviceProfile) -> dict[str, Json]:
    attributes = dict(profile.attributes)
    found: dict[str, Json] = {
        "backend": profile.backend,
        "name": profile.name,
        "arch": profile.arch,
        "attributes": attributes,
    }
    found |= {
        each: attributes[each] for each in ("multiprocessors", "threads") if each in attributes
    }
    return found | ({"driver": profile.driver} if profile.driver else {})


def _record(champion: Champion) -> dict[str, Json]:
    """The versions that the run recorded. Command and folders stay out of it."""
    record = champion.record()
    kept = ("evotune", "python", "platform", "packages")
    found = {name: record[name] for name in kept if name in record}
    if compiler := record.get("compiler"):
        found["compiler"] = " ".join(word for word in str(compiler).split() if "/" not in word)
    return found


def _versions(champion: Champion) -> dict[str, Json]:
    """The versions that must be those of a program for the kernel to serve there."""
    packages = champion.record().get("packages", {})
    found = {"torch": packages.get("torch"), "driver": champion.run.setup.profile.driver}
    return {name: version for name, version in found.items() if version}


def _champion(champion: Champion) -> dict[str, Json]:
    outcome = champion.outcome
    return {
        "run": champion.run.run.id,
        "space": champion.run.setup.name,
        "trial": champion.number,
        "versions": _versions(champion),
        "configuration": champion.configuration.to_json(),
        "figures": [
            {
                "case": each.case,
                "time_us": each.time_us,
                "baseline": each.baseline,
                "baseline_us": each.baseline_us,
                "speedup": each.speedup,
                "low": each.speedup_low,
                "high": each.speedup_high,
                "samples": each.samples,
                "cache": each.cache,
                "held_out": each.held_out,
            }
            for each in outcome.measurements
        ],
        "checks": [check.to_json() for check in outcome.checks],
        "flags": list(outcome.flags),
        "lengths": length_words(champion.domain),
        "domain": champion.domain.to_json(),
    }


def summary_line(champion: Champion) -> str:
    """One line without quotes, for the package's metadata."""
    setup = champion.run.setup
    call = call_name(setup.problem_spec.name, setup.planner.problem)
    text = f"{call} in {setup.problem_spec.dtype} for {setup.profile.name}."
    return " ".join(printable(text).replace('"', "'").replace("\\", "/").split())


def _version(files: Mapping[str, str]) -> str:
    """Changes with every file of the package."""
    text = "\n".join(f"{name} {sha256}" for name, sha256 in sorted(files.items()))
    return f"1.0+b{hashlib.sha256(text.encode()).hexdigest()[:8]}"


_WIDTH = 100


def json_text(found: Json) -> str:
    """The value as JSON with sorted keys, of characters that a terminal shows."""
    return escaped_json(_text(found, "")) + "\n"


def _text(found: Json, indent: str) -> str:
    line = json.dumps(found, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(found, list | Mapping):
        return line
    inner = indent + " "
    begin, end = "[]" if isinstance(found, list) else "{}"
    parts = _parts(found, inner)
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


def _parts(found: Json, indent: str) -> Iterator[str]:
    if isinstance(found, list):
        for each in found:
            yield _text(each, indent)
        return
    for name, value in sorted(found.items()):
        yield f"{json.dumps(name, ensure_ascii=False)}: {_text(value, indent)}"
