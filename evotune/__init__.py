"""evotune: an evolutionary kernel autotuner that checks before it measures.

    import evotune

    run = evotune.tune("softmax-cpu", trials=60)
    print(run.best.configuration, run.best.speedup)
    softmax = run.best.kernel()                  # a function of torch tensors

`tune` searches a space, given as a file or as objects (`Space`, `CudaKernel`, …), and `open_run`
opens an earlier run; both return a `Run`. `tune_model` tunes attention for a PyTorch model and
measures what it gains. `record` lists the calls of attention that a model makes, and `tune_family`
tunes the shipped attention spaces for such a list.
`check`, `compile`, `gate` and `replay` do the same as the commands of these names. Nothing is
imported before it is used.
"""

# This file imports nothing: `python -m evotune` begins with it, before Ctrl-C is taken care of and
# while a file of the working folder could still take a module's place.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from evotune.api.case_portfolio import portfolio
    from evotune.api.checking import check, compile
    from evotune.api.family import tune_family
    from evotune.api.family_run import FamilyRun, open_family
    from evotune.api.gating import Verdict, gate
    from evotune.api.model_package import ModelPackage
    from evotune.api.model_tuning import tune_model
    from evotune.api.recording_calls import Calls, record, recording
    from evotune.api.run import Candidate, Run, open_run
    from evotune.api.tuning import replay, tune
    from evotune.errors import EvotuneError
    from evotune.packages import __version__
    from evotune.problems.user import UserProblem as Problem
    from evotune.search.catalog import AskTell as Strategy
    from evotune.space.objects import (
        Argument,
        Constraint,
        CppKernel,
        CudaKernel,
        Launch,
        Space,
        TensorMap,
        TritonKernel,
        Workspace,
        booleans,
        choices,
        ints,
        powers_of_two,
        values,
    )
    from evotune.space.objects import PythonCallable as Callable
    from evotune.trial import Configuration, Outcome, Trial

_OBJECTS = "evotune.space.objects"
_PLACES = {
    "Verdict": "evotune.api.gating",
    "gate": "evotune.api.gating",
    "check": "evotune.api.checking",
    "compile": "evotune.api.checking",
    "portfolio": "evotune.api.case_portfolio",
    "replay": "evotune.api.tuning",
    "FamilyRun": "evotune.api.family_run",
    "open_family": "evotune.api.family_run",
    "tune_family": "evotune.api.family",
    "ModelPackage": "evotune.api.model_package",
    "tune_model": "evotune.api.model_tuning",
    "Calls": "evotune.api.recording_calls",
    "record": "evotune.api.recording_calls",
    "recording": "evotune.api.recording_calls",
    "Candidate": "evotune.api.run",
    "Run": "evotune.api.run",
    "open_run": "evotune.api.run",
    "tune": "evotune.api.tuning",
    "EvotuneError": "evotune.errors",
    "Problem": "evotune.problems.user:UserProblem",
    "Strategy": "evotune.search.catalog:AskTell",
    "Argument": _OBJECTS,
    "Callable": f"{_OBJECTS}:PythonCallable",
    "Constraint": _OBJECTS,
    "CppKernel": _OBJECTS,
    "CudaKernel": _OBJECTS,
    "Launch": _OBJECTS,
    "Space": _OBJECTS,
    "TensorMap": _OBJECTS,
    "TritonKernel": _OBJECTS,
    "Workspace": _OBJECTS,
    "booleans": _OBJECTS,
    "choices": _OBJECTS,
    "ints": _OBJECTS,
    "powers_of_two": _OBJECTS,
    "values": _OBJECTS,
    "Configuration": "evotune.trial",
    "Outcome": "evotune.trial",
    "Trial": "evotune.trial",
    "__version__": "evotune.packages",
}

__all__ = [
    "Argument",
    "Callable",
    "Calls",
    "Candidate",
    "Configuration",
    "Constraint",
    "CppKernel",
    "CudaKernel",
    "EvotuneError",
    "FamilyRun",
    "Launch",
    "ModelPackage",
    "Outcome",
    "Problem",
    "Run",
    "Space",
    "Strategy",
    "TensorMap",
    "Trial",
    "TritonKernel",
    "Verdict",
    "Workspace",
    "__version__",
    "booleans",
    "check",
    "choices",
    "compile",
    "gate",
    "ints",
    "open_family",
    "open_run",
    "portfolio",
    "powers_of_two",
    "record",
    "recording",
    "replay",
    "tune",
    "tune_family",
    "tune_model",
    "values",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'evotune' has no attribute {name!r}")
    import importlib

    module, _, original = _PLACES[name].partition(":")
    found: object = getattr(importlib.import_module(module), original or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
