"""`tune_model`: from a PyTorch model to a package that makes it faster, and to the gain.

All work lies in one folder, and each step that is done is kept there, so a call that was
interrupted goes on:

DIR/model.json     the model in words, its calls of attention, packages, gains
DIR/runs/          the runs of the family `attention`: one for all calls, more for misses
DIR/package/       the exported package; DIR/package_DTYPE/ for calls of another dtype
DIR/calls.json, DIR/misses.json   files of cases for `--cases`
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from evotune.api.family_run import FamilyRun, all_families, observing_runs, saying
from evotune.api.model_package import Gain, ModelCall, ModelPackage
from evotune.errors import EvotuneError, StoreError, UsageError
from evotune.export.case_shapes import case_shapes
from evotune.export.exporting import export_runs
from evotune.portfolios.case_searches import Observing
from evotune.portfolios.family_file import FamilyBudget, exportable_kinds
from evotune.portfolios.family_groups import sorted_cases
from evotune.portfolios.family_race import FamilyRequest, start_family
from evotune.problems import create_problem
from evotune.recorder.calls import Calls
from evotune.runs.folder import RunFolder
from evotune.runs.given_cases import profile_of
from evotune.space.reading.case_file import CaseEntry
from evotune.store import RunStore
from evotune.util.commands import checked_name, default_name
from evotune.util.files import whole_file
from evotune.util.words import counted, shorten

__all__ = ["Gain", "ModelCall", "ModelPackage", "Target", "tune_model", "tune_target"]

FOLDER = "tuned_model"
MINUTES = 10.0
WAYS = ("eager", "compiled", "graph")
SDPA = "F.scaled_dot_product_attention"
FAST_PATH = "nn fast path"
_FILE = "model.json"
_PROBLEM = "attention"
_COMPILER = "inductor"


class Target(Protocol):
    """What is tuned: a model with its inputs, or a script. `what`: in words. `again`: how to tune
    for the misses alone."""

    what: str
    again: str

    def recorded(self, *, fast_path_off: bool) -> tuple[list[ModelCall], str]:
        """Its calls of attention, timed without a package, and the request for their device."""

    def measure(self, package: ModelPackage) -> None:
        """Adds calls, gains and faults to the package. Raises EvotuneError if a kernel is wrong on
        this machine."""


def tune_model(
    model: Callable[..., Any],
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    trials: int | None = None,
    folder: str | Path = FOLDER,
    misses_only: bool = False,
    ways: Sequence[str] = WAYS,
    on_note: Callable[[str], object] | None = None,
) -> ModelPackage:
    """Tunes attention for `model(*inputs, **kwargs)`, exports a package, and measures what the
    model gains. Prints one screen and returns the package.

    Records the calls of attention, tunes the shipped spaces for them, exports the winners, compares
    the package with the reference on this machine, compares the model's results with and without
    it, and times the model in alternation. Calls that no kernel serves go to PyTorch as before.

    - `model`: a module or any function, compiled or not. It is called as it would be without: under
      torch.no_grad() if you call `tune_model` there, because kernels compute no gradients. Inputs
      are copied; the model's parameters and buffers are not.
    - `minutes`, `trials`: for the search, as in `tune_family`; without both, ten minutes. Recording
      and timing take a minute or more in addition.
    - `folder`: for everything. A call with the same folder and model continues: recorded calls and
      finished runs are kept, more minutes extend the search, an exported package is checked, and
      times are measured again. Its name becomes the package's: `tuned_model_attention`.
    - `misses_only`: tunes for the calls that were not served the last time; the package then serves
      both.
    - `ways`: how to time the model: `eager`, `compiled`, `graph`.
    - `on_note`: gets a line for each step; by default they go to stderr.

    A gain is reported if its 95% interval does not hold 1. Ctrl-C raises KeyboardInterrupt; the
    same call goes on. An exception of the model is raised as it is. Raises UsageError for a folder
    of another model, EvotuneError if a kernel is wrong on this machine.
    """
    if unknown := set(ways) - set(WAYS):
        raise UsageError(f"unknown way {', '.join(map(str, unknown))}; there are {', '.join(WAYS)}")
    target = _ModelTarget(model, inputs, dict(kwargs or {}), ways)
    say = saying(on_note or _to_stderr)
    observing = observing_runs(None, say)
    found = tune_target(
        target,
        Path(folder),
        observing,
        say,
        minutes=minutes,
        trials=trials,
        misses_only=misses_only,
    )
    print(found)
    return found


def _to_stderr(line: str) -> None:
    print(f"evotune: {line}", file=sys.stderr, flush=True)


class _Exported(msgspec.Struct):
    """A package of one kind of calls. `champions`: run and trial of each that it was made of."""

    name: str
    champions: list[str]


class _Kept(msgspec.Struct):
    """The content of `model.json`. `packages`: by problem and dtype."""

    what: str
    device: str
    fast_path_off: bool
    calls: list[ModelCall]
    packages: dict[str, _Exported] = {}
    package: ModelPackage | None = None
    version: int = 1


def tune_target(
    target: Target,
    folder: Path,
    observing: Observing,
    say: Callable[[str], None],
    *,
    minutes: float | None = None,
    trials: int | None = None,
    misses_only: bool = False,
) -> ModelPackage:
    """`tune_model` for a caller that watches the searches."""
    checked_name(_package_name(folder))
    if folder.exists() and not (folder / _FILE).is_file() and any(_strangers(folder)):
        raise UsageError(f"{folder} is not empty and has no {_FILE}: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror or error}") from error
    with RunFolder(folder).locked():
        work = _Work(target, folder, observing, say)
        work.record()
        work.search(minutes, trials, misses_only=misses_only)
        return work.measure(work.export())


class _Work:
    """The steps, each of which is kept in the folder when it is done."""

    def __init__(
        self, target: Target, folder: Path, observing: Observing, say: Callable[[str], None]
    ) -> None:
        self._target = target
        self._folder = folder
        self._runs = folder / "runs"
        self._observing = observing
        self._say = say
        self._kept = self._read()

    def record(self) -> None:
        """Keeps the calls of attention. If layers took PyTorch's fast path, which nobody else can
        serve, the calls that they make without it are recorded."""
        if self._kept.device:
            self._say(f"{self._folder} has {counted(len(self._kept.calls), 'case')} recorded")
            return
        self._say(f"recording the calls of attention of {self._target.what}")
        calls, device = self._target.recorded(fast_path_off=False)
        fast_path_off = any(call.call.get("function") == FAST_PATH for call in calls)
        if fast_path_off:
            calls, device = self._target.recorded(fast_path_off=True)
        self._kept = _Kept(self._target.what, device, fast_path_off, calls)
        self._save("calls.json", calls)
        self._keep()

    def search(self, minutes: float | None, trials: int | None, *, misses_only: bool) -> None:
        """Runs the family for the calls, or continues its run."""
        families = all_families(self._runs)
        last = families[-1] if families else None
        if last is not None and (last.state != "finished" or not misses_only):
            given = FamilyBudget(trials, minutes)
            same = given in (FamilyBudget(), last.found.budget)
            if last.state != "finished" or not same:
                last.resumed(self._observing, self._say, trials=trials, minutes=minutes)
            return
        calls = self._kept.calls
        if misses_only:
            if self._kept.package is None:
                raise UsageError(f"{self._folder} has no measured calls yet: tune for all first")
            calls = self._kept.package.misses
        entries = self._weighed([call for call in calls if not self._untunable(call)])
        if not entries or not sorted_cases(entries, self._kept.device).groups:
            self._say("no call of attention can be tuned")
            return
        if minutes is None and trials is None:
            minutes = MINUTES
        request = FamilyRequest(
            cases=entries,
            device=self._kept.device,
            runs_dir=self._runs,
            budget=FamilyBudget(trials, minutes),
            options={"seed": len(families)},
        )
        start_family(request, self._observing, self._say)

    def export(self) -> list[Path]:
        """Exports the winners of all searches, unless the package of just these is there. Returns
        the modules' folders."""
        kinds: dict[str, list[RunFolder]] = {}
        for family in all_families(self._runs):
            for kind, runs in exportable_kinds(family.folder).items():
                kinds.setdefault(kind, []).extend(runs)
        base = _package_name(self._folder)
        found = []
        for kind, runs in kinds.items():
            kept = self._kept.packages.get(kind)
            first = kept is None and not self._kept.packages
            name = kept.name if kept else base if first else f"{base}_{kind.partition(' ')[2]}"
            place = self._folder / f"package{name.removeprefix(base)}"
            champions = [each for run in runs for each in _champions(run)]
            made = (place / name / "certificate.json").is_file()
            if kept is None or kept.champions != champions or not made:
                if not self._exported(runs, place, name):
                    continue
                self._kept.packages[kind] = _Exported(name, champions)
                self._keep()
            found.append(place / name)
        return found

    def measure(self, folders: Sequence[Path]) -> ModelPackage:
        """What the packages gain. Each call that is not served gets the reason."""
        self._say("timing, without and with the package in turn" if folders else "timing")
        kept = self._kept
        names = [str(folder.absolute()) for folder in folders]
        device = f"{profile_of(kept.device).name} ({kept.device})"
        package = ModelPackage(
            what=kept.what, device=device, calls=[], folders=names, fast_path_off=kept.fast_path_off
        )
        if kept.calls:
            self._target.measure(package)
        best = _best_measured(all_families(self._runs))
        for at, call in enumerate(package.calls):
            if call.gain is None:
                package.calls[at] = msgspec.structs.replace(call, why=self._why_not(call, best))
        tunable = (_NOT_TUNED, _LOST)
        if any(call.why.startswith(tunable) for call in package.misses):
            package.again = self._target.again
        kept.package = package
        self._save("misses.json", package.misses)
        self._keep()
        return package

    def _save(self, name: str, calls: Sequence[ModelCall]) -> None:
        Calls.of(call.recorded for call in calls).save(self._folder / name)

    def _exported(self, runs: Sequence[RunFolder], place: Path, name: str) -> bool:
        """Replaces the package. False if no kernel wins a case."""
        self._say(f"exporting {name}")
        new = self._folder / ".new-package"
        shutil.rmtree(new, ignore_errors=True)
        try:
            export_runs(runs, new, name)
        except EvotuneError as error:
            if error.exit_code != EvotuneError.exit_code:
                raise
            self._say(str(error))
            return False
        shutil.rmtree(place, ignore_errors=True)
        os.replace(new, place)
        return True

    def _why_not(self, call: ModelCall, best: Mapping[tuple[str, str], _Best]) -> str:
        if why := self._untunable(call):
            return why
        found = sorted_cases([call.recorded.entry], self._kept.device)
        if not found.groups:
            return found.unserved[0].why
        if call.why:
            return call.why
        group = found.groups[0]
        best_one = best.get((group.labels[0], group.dtype))
        return _NOT_TUNED if best_one is None else best_one.words

    def _untunable(self, call: ModelCall) -> str:
        """Why no package serves such a call, whatever is tuned; "" if one may."""
        function = str(call.call.get("function", ""))
        if function.startswith("transformers "):
            return (
                f"transformers computes it by its {function.partition(' ')[2]!r} attention; "
                "model.set_attn_implementation('sdpa') makes it a call of SDPA"
            )
        if function == FAST_PATH:
            return "PyTorch's fast path, which nobody else can serve"
        if function != SDPA:
            return f"the program calls {function}, and a package replaces {SDPA} alone"
        kind = self._kept.device.partition(":")[0]
        if call.call.get("device") != kind:
            return f"it runs on {call.call.get('device')}, the other calls on {kind}"
        return _beyond_packages(call)

    def _weighed(self, calls: Sequence[ModelCall]) -> list[CaseEntry]:
        """The cases, each with its share of attention's time, in thousandths, as its weight."""
        whole = sum(call.total_us for call in calls) or 1.0
        weights = (max(1, round(1000 * call.total_us / whole)) for call in calls)
        return [call.entry(weight) for call, weight in zip(calls, weights, strict=True)]

    def _read(self) -> _Kept:
        path = self._folder / _FILE
        if not path.is_file():
            return _Kept(self._target.what, "", False, [])
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(f"{path} is damaged: {error}") from error
        if kept.what != self._target.what:
            raise UsageError(
                f"{self._folder} is of {kept.what}, not of {self._target.what}: name another folder"
            )
        return kept

    def _keep(self) -> None:
        with whole_file(self._folder / _FILE) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._kept), indent=1) + b"\n")


_LOST = "the best kernel, of"
_NOT_TUNED = "no kernel was tuned for it"


def _strangers(folder: Path) -> Iterator[Path]:
    """What a call that was interrupted before it kept anything does not leave."""
    return (
        each for each in folder.iterdir() if each.name not in ("lock", "calls.json", "script.log")
    )


def _package_name(folder: Path) -> str:
    own = default_name(folder.absolute().name)
    return f"{own if own[:1].isalpha() else f'tuned_{own}'}_{_PROBLEM}"


def _champions(run: RunFolder) -> list[str]:
    with RunStore.open_for_reading(run.store) as store:
        found = store.confirmations().items()
        return [f"{run.id}:{number}" for number, outcome in sorted(found) if outcome.ok]


class _Best(NamedTuple):
    """The best kernel of a case that no package serves. `low`: the lower end of its interval."""

    low: float
    words: str


def _best_measured(families: Sequence[FamilyRun]) -> dict[tuple[str, str], _Best]:
    """The best kernels by case and dtype: confirmed ones, or of the search if none is confirmed."""
    found: dict[tuple[str, str], _Best] = {}
    for row in (row for family in families for row in family.rows()):
        confirmed = [each for each in row.data.confirmations.values() if each.ok]
        outcomes = confirmed or [trial.outcome for trial in row.data.trials]
        where = "" if confirmed else " in the search; none was confirmed"
        for m in (m for outcome in outcomes for m in outcome.measurements if m.counts):
            figures = f"{m.speedup:.3f}x [{m.speedup_low:.3f}, {m.speedup_high:.3f}]"
            words = f"{_LOST} {row.space}, had {figures} of SDPA's speed{where}"
            if confirmed and m.speedup_low > 1.0:
                words += ", which saves less than a call of a package costs"
            key = m.case, row.group.dtype
            if key not in found or m.speedup_low > found[key].low:
                found[key] = _Best(m.speedup_low, words)
    return found


def _beyond_packages(call: ModelCall) -> str:
    """Why a package cannot describe such a call; "" if it can, or no problem has the case."""
    try:
        problem = create_problem(call.problem, call.dtype)
        case = problem.case(dict(call.shape), dict(call.variant))
    except ValueError:
        return ""
    try:
        case_shapes(problem, [case])
    except UsageError as error:
        return str(error).rpartition(": ")[2]
    return ""


class _ModelTarget:
    """A model, or any function, with its inputs."""

    again = "evotune.tune_model(…, misses_only=True) tunes for them alone"

    def __init__(
        self,
        model: Callable[..., Any],
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        ways: Sequence[str],
    ) -> None:
        self._model = model
        self._inputs = (tuple(inputs), dict(named))
        self._ways = ways
        self.what = _described(model, self._inputs)

    def recorded(self, *, fast_path_off: bool) -> tuple[list[ModelCall], str]:
        import torch

        from evotune.api.loaded_packages import LoadedPackages
        from evotune.api.model_timing import device_request, timed_calls

        calls = timed_calls(self._once, LoadedPackages([], fast_path_off=fast_path_off))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # for the searches' processes
        return calls, device_request(calls)

    def measure(self, package: ModelPackage) -> None:
        from evotune.api import model_timing as timing
        from evotune.api.loaded_packages import LoadedPackages

        loaded = LoadedPackages(package.folders, fast_path_off=package.fast_path_off, fresh=True)
        loaded.check()
        calls = timing.timed_calls(self._once, loaded)
        if package.set_calls(calls):
            timing.compare_results(self._once, loaded, package)
        if package.fault or not package.served_share:
            return
        given, named = _copied(self._inputs)
        on_gpu = timing.on_gpu(calls)
        for way in self._ways:
            try:
                model = self._in_way(way, on_gpu)
                run = functools.partial(model, *given, **named)
                graph = way == "graph"
                package.gains[way] = timing.timed_pair(
                    run, run, timing.OF_MODELS, around=loaded.active, graph=graph, on_gpu=on_gpu
                )
            except _NotTimed as reason:
                package.skipped[way] = str(reason)
            except Exception as error:  # noqa: BLE001 - the model's, or the compiler's
                package.skipped[way] = shorten(f"{type(error).__name__}: {error}", 200)

    def _once(self) -> Any:
        """Calls the model on copies of its inputs, which it may change."""
        given, named = _copied(self._inputs)
        return self._model(*given, **named)

    def _in_way(self, way: str, on_gpu: bool) -> Callable[..., Any]:
        """The function to time. Raises _NotTimed, with the reason, if there is none."""
        import torch

        compiled = _is_compiled(self._model)
        if way == "eager" and compiled:
            raise _NotTimed("the model is compiled already")
        if way == "graph" and not on_gpu:
            raise _NotTimed("a CUDA graph needs a GPU")
        if way == "compiled" and not compiled:
            return torch.compile(self._model, backend=_COMPILER)
        return self._model


class _NotTimed(Exception):
    pass


def _is_compiled(model: Any) -> bool:
    """Whether torch.compile made the function or module, or `module.compile()` was called."""
    return (
        type(model).__name__ == "OptimizedModule"
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def _described(model: Any, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
    """`ViT of float32[8,3,224,224]`: the model and its inputs in words."""
    from torch.utils import _pytree

    inner = getattr(model, "_orig_mod", model)
    name = getattr(inner, "__qualname__", type(inner).__name__).replace("<locals>.", "")
    words = []
    for leaf in _pytree.tree_leaves(inputs):
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            dtype = str(leaf.dtype).removeprefix("torch.")
            words.append(f"{dtype}[{','.join(map(str, leaf.shape))}]")
        else:
            words.append(repr(leaf) if isinstance(leaf, int | str) else type(leaf).__name__)
    return f"{name} of {', '.join(words)}" if words else str(name)


def _copied(inputs: Any) -> Any:
    """Copies of the inputs. What cannot be copied is given as it is."""
    import torch
    from torch.utils import _pytree

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.deepcopy(leaf)
        return leaf

    return _pytree.tree_map(copied, inputs)
