"""GPU MODE's tasks: task.yml, reference.py with `ref_kernel`, `generate_input` and
`check_implementation`, and a submission with `custom_kernel(data)`."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evotune.formats.describing import Request, describe
from evotune.formats.flashinfer_bench import read_text
from evotune.formats.given import (
    CANDIDATE_FILE,
    MAKE,
    Given,
    python_text,
    require_agreement,
    usage,
    write_owned,
    write_problem,
)
from evotune.formats.kernelbench import IMPORTS, dtype_of
from evotune.formats.task_problem import CASE
from evotune.space.objects import PythonCallable
from evotune.space.reading.yaml_source import read_yaml
from evotune.trial import Json, Measurement

if TYPE_CHECKING:
    from evotune import Verdict

FORMAT = "gpumode"
SUBMISSION = "@SUBMISSION@"
_REFERENCE = "reference.py"
_RANKINGS = ("last", "mean", "geom")
_FOLDER = "candidate"
_TIMEOUTS = ("test_timeout", "benchmark_timeout", "ranked_timeout")
_CANDIDATE = f'''\
from evotune.formats.task_data import caller
from {{module}} import custom_kernel

CASES = {{cases!r}}


def {MAKE}(configuration, case):
    return caller(custom_kernel, *CASES[case["{CASE}"] - 1])
'''
_COMPARING = {"allclose", "isclose", "assert_close", "verbose_allclose", "verbose_allequal"}
_COMPARING |= {"match_reference", "make_match_reference", "equal"}
_HELPING = {"ref_kernel", "len", "join", "str", "clone", "to", "float", "copy", "deepcopy", "cpu"}


@dataclass(frozen=True)
class Task:
    """A task.yml. `files`: the task's Python files by name, without the submission and the
    evaluator; `submission`: the name that the submission has among them."""

    path: Path
    files: Mapping[str, bytes]
    places: Mapping[str, Path]
    submission: str
    tests: Sequence[Mapping[str, Json]]
    benchmarks: Sequence[Mapping[str, Json]]

    @classmethod
    def read(cls, task: Path) -> Task:
        """Raises UsageError or SpaceError, one line with the file and the field, for a mistake."""
        path = task / "task.yml" if task.is_dir() else task
        read_text(path)  # its error names the file
        data = read_yaml(path).data
        if not isinstance(data, dict):
            raise usage(path, "expected a mapping")
        if data.get("lang", "py") != "py":
            raise usage(path, f"lang: {data['lang']!r} is not supported, only py is")
        if data.get("multi_gpu"):
            raise usage(path, "multi_gpu: evotune judges on one device")
        ranking = data.get("ranking_by", "last")
        if ranking not in _RANKINGS:
            raise usage(path, f"ranking_by: expected one of {', '.join(_RANKINGS)}")
        for name in _TIMEOUTS:
            seconds = data.get(name, 1)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
                raise usage(path, f"{name}: expected seconds, got {seconds!r}")
        cases = {name: _cases(path, name, data.get(name, [])) for name in ("tests", "benchmarks")}
        if not any(cases.values()):
            raise usage(path, "tests: expected at least one case")
        submission, places = _files(path, data)
        files = {name: read_text(place) for name, place in places.items()}
        return cls(path, files, places, submission, cases["tests"], cases["benchmarks"])


def _cases(path: Path, field: str, found: Any) -> list[Mapping[str, Json]]:
    if not isinstance(found, list):
        raise usage(path, f"{field}: expected a list of cases")
    for number, case in enumerate(found):
        if not isinstance(case, dict):
            raise usage(path, f"{field}[{number}]: expected a mapping, name -> value")
        for name, value in case.items():
            if not _is_plain(value):
                raise usage(path, f"{field}[{number}].{name}: expected numbers or texts")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int | str)


def _files(path: Path, data: Mapping[str, Any]) -> tuple[str, dict[str, Path]]:
    """The submission's name, and the paths of the other Python files by name."""
    listed = data.get("files")
    if not isinstance(listed, list):
        raise usage(path, "files: expected a list of {name, source}")
    config = data.get("config")
    main = config.get("main") if isinstance(config, dict) else None
    submission, places = "", {}
    for number, each in enumerate(listed):
        keys = {"name", "source"}
        if (
            not isinstance(each, dict)
            or not keys <= each.keys()
            or not all(isinstance(each[key], str) for key in keys)
        ):
            raise usage(path, f"files[{number}]: expected a name and a source")
        name, source = each["name"], each["source"]
        if Path(name).name != name or not Path(name).stem.isidentifier():
            raise usage(path, f"files[{number}].name: expected a file's name, got {name!r}")
        if source == SUBMISSION:
            submission = name
        elif name.endswith(".py") and name not in (main, "eval.py"):
            places[name] = path.parent / source
    if not submission.endswith(".py"):
        raise usage(path, f"files: expected a Python file with the source {SUBMISSION}")
    if _REFERENCE not in places:
        raise usage(path, f"files: there is no {_REFERENCE}")
    return submission, places


@dataclass(frozen=True)
class Judged:
    """What the log needs: the label of each test's and each benchmark's case, with its words."""

    tests: Sequence[tuple[str, str]]
    benchmarks: Sequence[tuple[str, str]]


def load(candidate: Path, task: Path | None, folder: Path) -> Given:
    """`custom_kernel` as a callable, and `ref_kernel` as a problem: benchmarks are timed, tests are
    checked. Raises UsageError or SpaceError, one line with the file and the field, for a mistake.
    """
    if task is None:
        raise usage(candidate, "name the task's folder, which has task.yml, as the task")
    known = Task.read(task)
    content = read_text(candidate)
    reference = known.places[_REFERENCE]
    needed = {_REFERENCE: ["ref_kernel", "generate_input"]}
    texts = {
        name: python_text(known.places[name], found, needed.get(name, []))
        for name, found in known.files.items()
    }
    own = python_text(candidate, content, ["custom_kernel"])
    places = {known.places[name]: found for name, found in known.files.items()}
    require_agreement({candidate: content, **places})
    # The reference stands first: see `ForeignReference.reference_files`.
    files = {_REFERENCE: texts[_REFERENCE], **texts}
    benchmarks, tests = list(known.benchmarks), list(known.tests)
    timed = benchmarks or tests
    rest = [case for case in tests if case not in timed]
    asked = [dict(case) for case in (*timed, *rest)]
    kind = "GpuModeProblem"
    cases = describe(Request(kind, reference.name, files, asked), folder)
    if has_own_check(texts[_REFERENCE]):
        kind = "CheckedTaskProblem"
    dtype = dtype_of(cases)
    members: dict[str, object] = {
        "dtypes": (dtype,),
        "cases": tuple(cases),
        "timed": len(timed),
        "reference_name": reference.name,
        "reference_files": files,
    }
    problem = write_problem(folder, kind, [IMPORTS[0].format(base=kind)], members, known.path.name)
    module = Path(known.submission).stem
    written = {**texts, known.submission: own}
    callable_file = _CANDIDATE.format(module=module, cases=[case.passing for case in cases])
    write_owned(folder / _FOLDER, {**written, f"evotune_{CANDIDATE_FILE}": callable_file})
    labels = {str(case): f"({number})" for number, case in reversed([*enumerate(asked, 1)])}
    judged = Judged(_labelled(tests, labels), _labelled(benchmarks, labels))
    shapes = [{CASE: number} for number in range(1, len(timed) + 1)]
    return Given(
        PythonCallable(folder / _FOLDER / f"evotune_{CANDIDATE_FILE}", MAKE),
        {"root": folder, "problem": problem, "dtype": dtype, "shapes": shapes},
        FORMAT,
        judged,
    )


def _labelled(
    cases: Sequence[Mapping[str, Json]], labels: Mapping[str, str]
) -> list[tuple[str, str]]:
    words = ("; ".join(f"{name}: {value}" for name, value in case.items()) for case in cases)
    return [(labels[str(dict(case))], each) for case, each in zip(cases, words, strict=True)]


def has_own_check(reference: str) -> bool:
    """Whether `check_implementation` does more than compare with `ref_kernel` element by element.
    Then it decides what is right; else evotune's tolerance does, which is derived from rounding
    errors."""
    tree = ast.parse(reference)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check_implementation":
            called = {
                each.func.attr if isinstance(each.func, ast.Attribute) else _name(each.func)
                for each in ast.walk(node)
                if isinstance(each, ast.Call)
            }
            compares = bool(called & _COMPARING) and "ref_kernel" in ast.unparse(node)
            return not (compares and called <= _COMPARING | _HELPING)
        if isinstance(node, ast.Assign) and any(
            _name(target) == "check_implementation" for target in node.targets
        ):
            return "match_reference" not in ast.unparse(node.value)
        if isinstance(node, ast.ImportFrom) and any(
            (each.asname or each.name) == "check_implementation" for each in node.names
        ):
            return True
    return False


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def result(judged: Judged, verdict: Verdict) -> str:
    """The lines of GPU MODE's log. Times are in nanoseconds: `mean` is the median of the samples,
    `best` the least one, `err` half of the interval of the speedup as a share of the time. `std`
    and `worst` are not kept and so NaN. A test that was not reached has failed, with the verdict's
    reason."""
    outcome = verdict.outcome
    statuses: dict[str, str] = {}
    for check in outcome.checks:
        if statuses.get(check.case) != "failed":
            statuses[check.case] = check.status
    lines = [f"test-count: {len(judged.tests)}"]
    for number, (label, words) in enumerate(judged.tests):
        passed = verdict.passed or statuses.get(label) == "passed"
        lines += [f"test.{number}.spec: {words}"]
        lines += [f"test.{number}.status: {'pass' if passed else 'fail'}"]
        if not passed:
            lines += [f"test.{number}.error: {_reason(verdict)}"]
    timed = {each.case: each for each in outcome.measurements if each.counts}
    if verdict.passed:
        lines += [f"benchmark-count: {len(judged.benchmarks)}"]
        for number, (label, words) in enumerate(judged.benchmarks):
            lines += [f"benchmark.{number}.spec: {words}"]
            lines += [f"benchmark.{number}.{key}: {each}" for key, each in _times(timed[label])]
    else:
        lines += [f"error: {_reason(verdict)}"]
    lines += [f"check: {'pass' if verdict.passed else 'fail'}"]
    return "\n".join(lines) + "\n"


def _reason(verdict: Verdict) -> str:
    return f"{'undecided: ' if verdict.undecided else ''}{verdict.reason}"


def _times(found: Measurement) -> list[tuple[str, float]]:
    half = (found.speedup_high - found.speedup_low) / 2 / found.speedup
    return [
        ("runs", found.samples),
        ("mean", found.time_us * 1000),
        ("std", math.nan),
        ("err", half * found.time_us * 1000),
        ("best", found.time_min_us * 1000),
        ("worst", math.nan),
    ]
