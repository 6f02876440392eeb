"""Writes confirmed champions of runs as a Python package: `evotune export`.

The package needs PyTorch and not evotune: machine code, a description of the cases that each kernel
serves, a certificate of what was checked and measured, and the modules of `export/runtime/`. The
same runs give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.registry import cores_in_use
from evotune.errors import UsageError
from evotune.export._champions import (
    BuiltChampion,
    Selection,
    built,
    checked_cases,
    confirmed,
    selected,
    selected_by_rule,
)
from evotune.export.case_shapes import CaseShapes, call_name, case_shapes
from evotune.export.configuration_file import FILE, best_of, configuration_file, is_configured
from evotune.export.descriptions import certificate, dispatch, frame, json_text, package_files
from evotune.problems import UserProblem
from evotune.runs.confirmed_champions import Champion
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.runs.setup import KernelSetup
from evotune.timing.processes import TOO_NOISY
from evotune.trial import Value
from evotune.util.commands import checked_name, default_name
from evotune.util.processes import interruptible
from evotune.util.words import counted


@dataclass(frozen=True, slots=True)
class Exported:
    """A package that was written.

    - `folder`: the folder with `pyproject.toml`.
    - `name`: the package's name.
    - `call`: its function: `attention`, or the problem's name.
    - `inputs`: the tensors that the function takes.
    - `champions`: run and trial of each kernel.
    - `served`: the number of regions that they won.
    - `whole_domain`: whether they serve all cases on which they were checked, won or not.
    - `slower_because`: why calls take longer than they could, if a launcher could not be built.
    - `too_noisy`: run and trial of the kernels whose speed differed too much between processes.
    - `few_threads`: the only programs that the kernels serve, if they were measured on fewer CPU
      cores than PyTorch uses here by default.
    - `configuration`: of callables, the values that were written; there is no package then.
    """

    folder: Path
    name: str
    call: str
    inputs: tuple[str, ...]
    device: str
    champions: tuple[tuple[str, int], ...]
    served: int
    whole_domain: bool = False
    slower_because: str = ""
    too_noisy: tuple[tuple[str, int], ...] = ()
    few_threads: str = ""
    configuration: Mapping[str, Value] | None = None

    @property
    def doubts(self) -> Iterator[str]:
        """A line for each kernel whose figures are uncertain."""
        for run, trial in self.too_noisy:
            yield (
                f"trial {trial} of run {run} is too_noisy: its speed differed by more than a "
                "tenth between processes; run it again on a quiet machine"
            )


def export_runs(runs: Sequence[RunFolder], folder: Path, name: str | None = None) -> Exported:
    """Writes the package into `folder`, which must be empty or not exist; of callables only the
    best configuration (`configuration_file.py`).

    Raises EvotuneError (exit 1) if a run has no confirmed champion, or if none is faster than
    PyTorch. Raises UsageError for an invalid name or folder, for runs that do not belong together,
    and for a problem that cannot be exported. Raises EnvironmentProblem if this machine's compilers
    make other machine code than the run measured.
    """
    _require_place(folder, name)
    distinct = {run.path.resolve(): run for run in runs}
    opened = [ReopenedRun.load(run, anywhere=True) for run in distinct.values()]
    if any(map(is_configured, opened)):
        return _export_configuration(opened, folder)
    champions = [each for run in opened for each in confirmed(run)]
    _require_alike(champions)
    return _export(selected(champions), folder, name)


def _export_configuration(opened: list[ReopenedRun], folder: Path) -> Exported:
    champion = best_of(opened)
    _write(folder, {FILE: configuration_file(champion)})
    return Exported(
        folder=folder,
        name=champion.run.setup.name,
        call="",
        inputs=(),
        device=champion.run.setup.profile.name,
        champions=(champion.key,),
        served=len(champion.outcome.measurements),
        too_noisy=(champion.key,) if TOO_NOISY in champion.outcome.flags else (),
        configuration=champion.configuration.to_json(),
    )


def export_portfolio(portfolio: Path, folder: Path, name: str | None = None) -> Exported:
    """Writes the package of the portfolio in a folder of runs: its kernels and its rule. Raises
    UsageError if the portfolio is not finished, StoreError if it was changed.
    """
    _require_place(folder, name)
    chosen = selected_by_rule(portfolio)
    _require_alike(chosen.champions)
    return _export(chosen, folder, name)


def _export(chosen: Selection, folder: Path, name: str | None) -> Exported:
    name = checked_name(name or _default_name(chosen))
    proposals = [checked_cases(champion) for champion in chosen.champions]
    cases = [job.case for proposal in proposals for job in proposal.cases]
    setup = chosen.best.run.setup
    shapes = case_shapes(setup.planner.problem, cases)
    with interruptible():
        kernels = [
            built(champion, proposal, shapes, [c for n, c in chosen.timed if n == number])
            for number, (champion, proposal) in enumerate(
                zip(chosen.champions, proposals, strict=True)
            )
        ]
        _write(folder, _contents(name, chosen, kernels, shapes))
    return Exported(
        folder=folder,
        name=name,
        call=call_name(setup.problem_spec.name, setup.planner.problem),
        inputs=shapes.inputs,
        device=setup.profile.name,
        champions=tuple(champion.key for champion in chosen.champions),
        served=len(chosen.served),
        whole_domain=isinstance(setup.planner.problem, UserProblem),
        slower_because=registry.named(setup.profile.backend).exported_slower_because(),
        too_noisy=tuple(
            champion.key for champion in chosen.champions if TOO_NOISY in champion.outcome.flags
        ),
        few_threads=_few_threads(setup),
    )


def _few_threads(setup: KernelSetup) -> str:
    """Kernels of users' problems also serve programs with more threads than were measured."""
    used = cores_in_use(setup.profile)
    if used is None or isinstance(setup.planner.problem, UserProblem):
        return ""
    threads, cores = used
    more = registry.named(setup.profile.backend).requests[0]
    return (
        f"the kernels were measured with {counted(threads, 'thread')} and serve no program in "
        f"which PyTorch has more, {cores} by default here: call torch.set_num_threads({threads}) "
        f"there, or tune again with --device {more}:{cores}"
    )


def _contents(
    name: str, chosen: Selection, kernels: Sequence[BuiltChampion], shapes: CaseShapes
) -> dict[str, bytes]:
    """Every file of the package by its path under the folder."""
    described = dispatch(name, chosen, kernels, shapes)
    files = package_files(name, kernels)
    files["dispatch.json"] = json_text(described).encode()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    certified = certificate(name, chosen, kernels, described, dict(sorted(hashes.items())))
    files["certificate.json"] = json_text(certified).encode()
    found = {f"{name}/{path}": content for path, content in files.items()}
    return found | frame(name, certified, described)


def _default_name(chosen: Selection) -> str:
    """The space's name; of several spaces, the problem's."""
    names = {champion.run.setup.name for champion in chosen.champions}
    if len(names) == 1:
        return default_name(*names)
    setup = chosen.best.run.setup
    return call_name(setup.problem_spec.name, setup.planner.problem)


def _require_alike(champions: Sequence[Champion]) -> None:
    """Raises UsageError unless all runs solve one problem on one device."""
    first = champions[0].run.setup
    for champion in champions:
        setup = champion.run.setup
        problems = [
            f"{each.problem_spec.name} {each.problem_spec.dtype}" for each in (first, setup)
        ]
        if problems[0] != problems[1]:
            raise UsageError(f"the runs are of different problems: {' and '.join(problems)}")
        devices = [
            (each.profile.name, each.profile.arch, dict(each.profile.attributes))
            for each in (first, setup)
        ]
        if devices[0] != devices[1]:
            _refuse_devices(first.profile, setup.profile)
        file = setup.problem_spec.name.partition(":")[0]
        if first.files.get(file) != setup.files.get(file):
            raise UsageError(f"the runs are of different problems: their {file} differ")


def _refuse_devices(first: DeviceProfile, other: DeviceProfile) -> NoReturn:
    threads = [each.attributes.get("threads") for each in (first, other)]
    if first.name == other.name and threads[0] != threads[1]:
        counts = " and ".join(map(str, threads))
        raise UsageError(
            f"the runs were measured with {counts} threads: export runs of as many threads each"
        )
    names = f"{first.name} and {other.name}"
    differ = f"{names}, which differ in other figures" if first.name == other.name else names
    raise UsageError(f"the runs were made on different devices: {differ}")


def _require_place(folder: Path, name: str | None) -> None:
    """Raises UsageError for a name that cannot be, or a folder that is not empty."""
    if name is not None:
        checked_name(name)
    try:
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: name a new folder")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}") from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes all files or none: they are written aside and then moved."""
    try:
        with _aside(folder) as written:
            for path, content in files.items():
                target = written / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            if not folder.is_dir():
                os.replace(written, folder)
                return
            for each in sorted(written.iterdir()):
                os.replace(each, folder / each.name)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder on the same disk: in `folder` if that exists, else next to it."""
    place = folder if folder.is_dir() else folder.absolute().parent
    place.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".export-", dir=place))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
