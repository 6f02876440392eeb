"""A portfolio of the family `attention`. For each searched case the spaces that can compute it
race.

The decisions of the races are in `RUNS/portfolio/races.json`; the winner's run is the search of the
case.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.errors import SpaceError
from evotune.portfolios.case_searches import FACT, CaseSearches, Observing
from evotune.portfolios.family_file import (
    FACT as FAMILY_FACT,
)
from evotune.portfolios.family_file import (
    Family,
    FamilyBudget,
    Group,
    read_family,
    write_family,
)
from evotune.portfolios.family_groups import require_cases, sorted_cases
from evotune.portfolios.family_race import Races
from evotune.portfolios.matrix_store import FOLDER, PortfolioRequest
from evotune.runs.folder import FAMILY, RunFolder
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.runs.spaces import find_space, read_kernel_sources
from evotune.space.document import SpaceDocument, load_space
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Json

_FILE = "races.json"


@dataclass(frozen=True, slots=True)
class FamilyCases:
    """The cases of a family's portfolio, which have one problem and one dtype.

    - `setup`: the setup of the space that races first for the heaviest case, under the family's
      name. The portfolio needs only the problem and the device from it, which are the same in all
      spaces.
    - `kept`: the cases.
    - `groups`: the group of each case, by the case's label.
    - `skipped`: which cases are left out, and why, in words.
    """

    setup: KernelSetup
    kept: tuple[GivenCase, ...]
    groups: Mapping[str, Group]
    skipped: str

    def digest(self) -> str:
        """A digest of the files of all spaces that race."""
        found = hashlib.sha256()
        names = {c.space for group in self.groups.values() for c in group.contenders}
        for name in sorted(names):
            for path, content in sorted(_files(load_space(find_space(name))).items()):
                found.update(hashlib.sha256(content).digest() + path.encode())
        return found.hexdigest()


def family_cases(request: PortfolioRequest) -> FamilyCases:
    """The cases of the problem and dtype with the greatest weight; the others need a portfolio of
    their own. Raises UsageError if no shipped space can compute any case."""
    found = sorted_cases(request.cases, request.device)
    require_cases(found)
    weights: dict[tuple[str, str], float] = {}
    for group in found.groups:
        kind = group.problem, group.dtype
        weights[kind] = weights.get(kind, 0.0) + group.count
    chosen = max(weights, key=lambda kind: weights[kind])
    groups = {
        label: msgspec.structs.replace(group, name=label, cases=(case,), labels=(label,), share=1.0)
        for group in found.groups
        if (group.problem, group.dtype) == chosen
        for label, case in zip(group.labels, group.cases, strict=True)
    }
    told = [f"{each.case}: {each.why}" for each in found.unserved]
    told += [
        f"{', '.join(group.labels)}: a portfolio of {' '.join(chosen)} has no {group.dtype} "
        f"{group.problem}: make another one of these cases"
        for group in found.groups
        if (group.problem, group.dtype) != chosen
    ]
    first = next(iter(groups.values())).contenders[0]
    setup = load_kernel_setup(find_space(first.space), request.device, dtype=first.dtype)
    kept = tuple(group.cases[0] for group in groups.values())
    document = dataclasses.replace(setup.document, name=FAMILY)
    setup = dataclasses.replace(setup, document=document)
    return FamilyCases(setup, kept, groups, "; ".join(told))


class FamilySearches(CaseSearches):
    """The searches of a family's portfolio: the winner's run of each case that was searched."""

    def __init__(
        self,
        identity: str,
        groups: Mapping[str, Group],
        *,
        device: str,
        runs_dir: Path,
        command: tuple[str, ...],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(identity, FAMILY, device, runs_dir, command)
        self._groups = groups
        self._say = say
        self._file = RunFolder(runs_dir / FOLDER)
        self._family = Family(FAMILY, device, "", ())
        if (self._file.path / _FILE).is_file():
            self._family = read_family(self._file, _FILE)
        self._all: dict[str, list[RunFolder]] = {}
        for label, run in self._own_runs():
            self._all.setdefault(label, []).append(run)
        self.runs = {label: self._chosen(label) for label in self._all}

    def is_finished(self, label: str) -> bool:
        race = self._family.races.get(label)
        return race is not None and race.done

    def trials(self) -> int:
        found = 0
        for run in (run for runs in self._all.values() for run in runs):
            with RunStore.open_for_reading(run.store, checked=True) as store:
                found += store.count()
        return found

    def elapsed_s(self, label: str) -> float:
        found = 0.0
        for run in self._all.get(label, []):
            with RunStore.open_for_reading(run.store) as store:
                found += store.elapsed_s()
        return found

    def search(
        self,
        label: str,
        case: GivenCase,
        options: Mapping[str, Json],
        warm_start: str | None,
        observing: Observing,
    ) -> None:
        """Runs the race for a case, or the rest of it. Each search begins with recorded champions,
        not with `warm_start`."""
        family = self._family
        if label not in family.budgets:
            family.budgets[label] = FamilyBudget(options.get("trials"), options.get("minutes"))
            family.seeds[label] = int(options.get("seed", 0))
            self._keep()
        budget = family.budgets[label]
        races = Races(
            self._runs_dir,
            family.races,
            keep=self._keep,
            observing=observing,
            say=self._say,
            champions=int(options.get("champions", 1)),
            device=self._device,
            command=self._command,
            facts={FACT: {"id": self._identity, "case": label}},
        )
        seconds = None if budget.minutes is None else 60 * budget.minutes
        try:
            races.run_group(
                self._groups[label], budget.trials, seconds, {"seed": family.seeds[label]}
            )
        finally:
            own = [run for (name, _), run in sorted(races.runs.items()) if name == label]
            if own:
                self._all[label] = own
                self.runs[label] = self._chosen(label)
        if label not in self.runs:
            failed = family.races[label].failed
            raise SpaceError("; ".join(f"{space}: {why}" for space, why in failed.items()))

    def _own_runs(self) -> list[tuple[str, RunFolder]]:
        return [(label, run) for label, run in self.all_runs() if label in self._groups]

    def _chosen(self, label: str) -> RunFolder:
        """The winner's run; the first one while there is no winner."""
        runs, race = self._all[label], self._family.races.get(label)
        if race is not None and race.winner:
            for run in runs:
                with RunStore.open_for_reading(run.store) as store:
                    fact = store.meta(FAMILY_FACT)
                if isinstance(fact, dict) and fact.get("space") == race.winner:
                    return run
        return runs[0]

    def _keep(self) -> None:
        write_family(self._file, self._family, _FILE)


def _files(document: SpaceDocument) -> dict[str, bytes]:
    files = {"space.yaml": document.text.encode()}
    for kernel in document.kernels:
        files |= read_kernel_sources(document, kernel)
    return files
