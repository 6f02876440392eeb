"""A family's run in its folder: which cases go to which spaces, the budget, and how the races went.

runs/<id>/family.json   what this module reads and writes, always as a whole
runs/<id>/<run>/        an ordinary run of one space for the cases of one group
runs/<id>/lock          held by the process that works on the family

The outcomes are in the stores of the runs. The file has what does not follow from them: what was
asked for, and each decision of a race once it is made. So a family that was killed at any moment
goes on with the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evotune.errors import StoreError, UsageError
from evotune.runs.folder import FAMILY_FILE, RunFolder, list_runs
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Value
from evotune.util.files import whole_file

FACT = "family"
"""The name of a fact in the store of each run of a family: the group and the space of the run."""


class Contender(msgspec.Struct, frozen=True):
    """A space that can compute the cases of a group. `dtype`: replaces the dtype in its file; ""
    leaves that."""

    space: str
    dtype: str = ""


class Group(msgspec.Struct, frozen=True):
    """Cases that one search tunes for together.

    - `cases`: the heaviest first; `labels`: their names.
    - `contenders`: the spaces that race, the most promising first.
    - `passed_over`: other spaces that can compute the cases, with the reason why they do not race.
    - `share`: the group's share of the family's budget.
    """

    name: str
    problem: str
    dtype: str
    cases: tuple[GivenCase, ...]
    labels: tuple[str, ...]
    contenders: tuple[Contender, ...]
    passed_over: Mapping[str, str] = msgspec.field(default_factory=dict)
    share: float = 1.0

    @property
    def count(self) -> float:
        """The sum of the weights of its cases."""
        return sum(case.count for case in self.cases)


class Unserved(msgspec.Struct, frozen=True):
    """A case that no shipped space can compute on the device, and why, in words."""

    case: str
    why: str
    count: float = 1


class Step(msgspec.Struct, frozen=True):
    """A search of one space up to these totals. None stands for no limit."""

    space: str
    trials: int | None
    minutes: float | None
    champions: int = 0


class Race(msgspec.Struct):
    """The decisions so far in the race of a group.

    - `first`, `second`: the searches of all contenders, and of the better ones; None until they are
      decided. `last`: the winner's, and after it those of other finalists while no champion was
      confirmed.
    - `scores`: for each space, ln of the speedup that it surely reached in the first searches: the
      greatest lower end of an interval.
    - `failed`: spaces that have no configuration for the cases, and why.
    - `done`: whether the budget at that time left nothing to do.
    """

    first: tuple[Step, ...] | None = None
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    second: tuple[Step, ...] | None = None
    last: tuple[Step, ...] = ()
    done: bool = False

    @property
    def finalists(self) -> tuple[str, ...]:
        return tuple(step.space for step in self.second or ())

    @property
    def winner(self) -> str:
        """The space whose champions are confirmed; "" before that is decided."""
        return self.last[-1].space if self.last else ""


class FamilyBudget(msgspec.Struct, frozen=True):
    """Totals for the whole family; None stands for no limit. Without any limit each search has the
    space's own number of trials."""

    trials: int | None = None
    minutes: float | None = None


class Family(msgspec.Struct):
    """The content of `family.json`.

    - `device`: the request for the device, the same for each run; `device_name`: its model.
    - `options`: additional options of each run.
    - `budgets`, `seeds`: those of each group of a portfolio, if they do not follow from shares.
    - `state`: running, interrupted or finished.
    """

    name: str
    device: str
    device_name: str
    groups: tuple[Group, ...]
    unserved: tuple[Unserved, ...] = ()
    budget: FamilyBudget = FamilyBudget()
    options: dict[str, Value] = msgspec.field(default_factory=dict)
    champions: int = 3
    races: dict[str, Race] = msgspec.field(default_factory=dict)
    budgets: dict[str, FamilyBudget] = msgspec.field(default_factory=dict)
    seeds: dict[str, int] = msgspec.field(default_factory=dict)
    created: str = ""
    command: tuple[str, ...] = ()
    state: str = "running"
    version: int = 1


def read_family(folder: RunFolder, name: str = FAMILY_FILE) -> Family:
    """Raises StoreError if the file is damaged, UsageError if it cannot be read."""
    path = folder.path / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=Family)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} is damaged: {error}") from error


def write_family(folder: RunFolder, family: Family, name: str = FAMILY_FILE) -> None:
    """Replaces the file; a process that is killed meanwhile leaves the earlier one."""
    text = msgspec.json.format(msgspec.json.encode(family), indent=1)
    with whole_file(folder.path / name) as file:
        file.write(text + b"\n")


def family_state(folder: RunFolder, family: Family) -> str:
    """The family's state; `killed` if it is stored as running and no process works on it."""
    running = family.state == "running" and folder.holder() is None
    return "killed" if running else family.state


def family_fact(group: str, space: str) -> Mapping[str, Any]:
    return {FACT: {"group": group, "space": space}}


def family_runs(folder: RunFolder) -> dict[tuple[str, str], RunFolder]:
    """The runs of a family by group and space."""
    return runs_of_groups(folder.path)


def runs_of_groups(runs_dir: Path) -> dict[tuple[str, str], RunFolder]:
    """The runs in a folder that belong to a family, by group and space."""
    found: dict[tuple[str, str], RunFolder] = {}
    for run in list_runs(runs_dir):
        with RunStore.open_for_reading(run.store) as store:
            fact = store.meta(FACT)
        if isinstance(fact, dict):
            found[str(fact.get("group")), str(fact.get("space"))] = run
    return found


def winning_runs(folder: RunFolder, family: Family) -> dict[str, RunFolder]:
    """The run of the winner of each group that has one, by the group's name."""
    runs = family_runs(folder)
    keys = ((name, race.winner) for name, race in family.races.items())
    return {key[0]: runs[key] for key in keys if key in runs}


def is_confirmed(run: RunFolder) -> bool:
    """Whether a champion of the run passed its confirmation."""
    with RunStore.open_for_reading(run.store) as store:
        return any(outcome.ok for outcome in store.confirmations().values())


def exportable_kinds(folder: RunFolder) -> dict[str, list[RunFolder]]:
    """The winners' runs with a confirmed champion, by problem and dtype: `attention float16`. Each
    kind needs a package of its own."""
    family = read_family(folder)
    kinds: dict[str, list[RunFolder]] = {}
    groups = {group.name: group for group in family.groups}
    for name, run in winning_runs(folder, family).items():
        if is_confirmed(run):
            kinds.setdefault(f"{groups[name].problem} {groups[name].dtype}", []).append(run)
    return kinds


def exportable_runs(folder: RunFolder) -> list[RunFolder]:
    """The winners' runs with a confirmed champion, for one package. Raises UsageError if there is
    none, or if they are of several problems or dtypes, which need a package each."""
    kinds = exportable_kinds(folder)
    if not kinds:
        raise UsageError(f"the family {folder.id} has no confirmed champion yet")
    if len(kinds) > 1:
        told = "; ".join(
            f"{kind}: {' '.join(str(run.path) for run in runs)}" for kind, runs in kinds.items()
        )
        raise UsageError(f"a package has one problem and dtype; export the runs of one: {told}")
    (runs,) = kinds.values()
    return runs
