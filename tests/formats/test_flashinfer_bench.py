"""FlashInfer-Bench: ten definitions, each with a right and a wrong solution, are read, judged and
written; and what is wrong in a file is said in a line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evotune.errors import UsageError
from evotune.formats import detect, load, result
from evotune.formats import flashinfer_bench as bench
from evotune.formats.constraints import AxisRelations
from evotune.formats.stored_tensors import StoredTensor
from evotune.problems import create_problem
from evotune.trial import Check, OutcomeKind
from tests.formats.judging import Judge, given
from tests.formats.verdicts import passed, refused

DATA = Path(__file__).parent / "data" / "flashinfer_bench"
WRONG = {
    "rmsnorm_h96": "output is off by",
    "fused_add_rmsnorm_h64": "sum is off by",
    "softmax": "out are NaN or infinite",
    "gemm_n48_k80": "C is off by",
    "silu_and_mul_h56": "out is off by",
    "rope_d32": "out is off by",
    "topk_k4": "values is off by",
    "layernorm_h50": "y is off by",
    "histogram_b64": "counts is off by",
    "gqa_paged_decode_h4_kv2_d16_ps1": "output is off by",
}
"""Why the wrong solution is refused."""
SOON = "softmax"


def solution_file(definition: str, which: str) -> Path:
    return next(DATA.glob(f"solutions/*/*/{definition}/{definition}_{which}.json"))


@pytest.mark.parametrize(
    "definition", [pytest.param(n, marks=() if n == SOON else pytest.mark.soak) for n in WRONG]
)
def test_a_right_solution_passes_and_a_wrong_one_is_refused(judge: Judge, definition: str) -> None:
    right = judge.judge(solution_file(definition, "right"))
    assert right.passed, right.reason
    wrong = judge.judge(solution_file(definition, "wrong"))
    assert not wrong.passed
    assert re.search(WRONG[definition], wrong.reason), wrong.reason


def test_all_definitions_are_here() -> None:
    assert {path.stem for path in DATA.glob("definitions/*/*.json")} == set(WRONG)


def copied(folder: Path) -> Path:
    """The data set, read and written again, with traces of both solutions."""
    for path in sorted(DATA.glob("definitions/*/*.json")):
        definition = bench.read_definition(path)
        bench.write_definition(definition, folder)
        (workloads,) = DATA.glob(f"workloads/*/{definition.name}.jsonl")
        traces = bench.read_traces(workloads, definition)
        bench.write_workloads([trace.workload for trace in traces], definition, folder)
        for which in ("right", "wrong"):
            solution = bench.read_solution(solution_file(definition.name, which))
            bench.write_solution(solution, definition, folder)
    return folder


def test_files_are_written_as_they_were_read(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    for path in [*DATA.rglob("*.json"), *DATA.rglob("*.jsonl")]:
        assert (copy / path.relative_to(DATA)).read_text() == path.read_text()


def written_traces(folder: Path) -> list[dict[str, Any]]:
    """Traces of every kind of verdict on one solution, added to the data set in the folder."""
    with given(solution_file("softmax", "right"), None, folder / "scratch") as found:
        labels = list(found.origin.workloads)
        checks = (Check(labels[0], "normal", "passed", 0.5, 1.0, 0.1, 0.6),)
        verdicts = [passed(*labels, checks=checks)]
        verdicts += [refused(k, "a reason", checks) for k in OutcomeKind if k != OutcomeKind.OK]
        text = "".join(result(found, verdict) for verdict in verdicts)
    path = folder / "some.jsonl"
    path.write_text(text)
    bench.append_traces(
        bench.read_traces(path, found.origin.definition), found.origin.definition, folder
    )
    return [json.loads(line) for line in text.splitlines()]


def test_a_verdict_becomes_a_trace_for_each_workload(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    traces = written_traces(tmp_path)
    assert len(traces) == 2 * len(OutcomeKind)
    first = traces[0]
    assert first["solution"] == "softmax_right"
    assert {trace["workload"]["uuid"] for trace in traces} == {"softmax-1", "softmax-2"}
    assert first["evaluation"]["status"] == "PASSED"
    assert first["evaluation"]["performance"] == {
        "latency_ms": 0.01,
        "reference_latency_ms": 0.02,
        "speedup_factor": 2.0,
    }
    assert first["evaluation"]["correctness"]["extra"]["largest_error_over_its_limit"] == 0.5
    statuses = {trace["evaluation"]["status"] for trace in traces}
    assert statuses == {
        *("PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT")
    }


def test_another_shape_or_type_has_its_own_status() -> None:
    from evotune.formats.flashinfer_solutions import evaluation_status

    kind = OutcomeKind.COMPILE_ERROR
    one = "ValueError: out is torch.float32 (3,), expected torch.float32 (4,)"
    assert evaluation_status(kind, one) == "INCORRECT_SHAPE"
    other = "ValueError: out is torch.float16 (4,), expected torch.float32 (4,)"
    assert evaluation_status(kind, other) == "INCORRECT_DTYPE"
    assert evaluation_status(kind, "no module named x") == "COMPILE_ERROR"


def test_an_undecided_verdict_is_no_error_of_the_solution(tmp_path: Path) -> None:
    with given(solution_file("softmax", "right"), None, tmp_path) as found:
        text = result(found, refused(OutcomeKind.UNDECIDED, "the machine is too noisy"))
    evaluation = json.loads(text.splitlines()[0])["evaluation"]
    assert evaluation["status"] == "TIMEOUT"
    assert evaluation["log"] == "undecided: the machine is too noisy"


def test_the_package_reads_all_that_is_written(tmp_path: Path) -> None:
    data = pytest.importorskip("flashinfer_bench.data")
    copy = copied(tmp_path / "set")
    (tmp_path / "set" / "scratch").mkdir()
    written_traces(copy)
    found = data.TraceSet.from_path(str(copy))
    assert set(found.definitions) == set(found.workloads) == set(found.solutions) == set(WRONG)
    assert len(found.traces["softmax"]) == 2 * len(OutcomeKind)


# Mistakes

FIRST = "softmax"


def data_set(folder: Path, file: str, change: Any) -> Path:
    """A copy of the data set with a changed object in a file; its right softmax."""
    copy = folder / "set"
    shutil.copytree(DATA, copy)
    path = next(copy.glob(file))
    text = path.read_text()
    if isinstance(change, str):
        path.write_text(change)
    else:
        found = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
        change(found)
        path.write_text(json.dumps(found) + "\n")
    return copy / solution_file(FIRST, "right").relative_to(DATA)


def pops(*path: str) -> Any:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[name]
        del found[path[-1]]

    return change


def sets(value: Any, *path: Any) -> Any:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[name]
        found[path[-1]] = value

    return change


DEFINITION = "definitions/*/softmax.json"
WORKLOADS = "workloads/*/softmax.jsonl"
SOLUTION = "solutions/*/*/softmax/softmax_right.json"
NO_RUN = "x = 1\n"
MISTAKES = {
    "no inputs": (DEFINITION, pops("inputs"), "missing required field 'inputs'"),
    "a size of text": (
        *(DEFINITION, sets({"type": "const", "value": "x"}, "axes", "rows")),
        r"axes.rows.value: expected 'int', got 'str'",
    ),
    "a size of NaN": (
        *(DEFINITION, sets({"type": "const", "value": float("nan")}, "axes", "rows")),
        "JSON is malformed",
    ),
    "a size of 0": (
        *(DEFINITION, sets({"type": "const", "value": 0}, "axes", "rows")),
        "axes.rows.value: expected an integer of at least 1, got 0",
    ),
    "an unknown field": (DEFINITION, sets(1, "more"), "unknown field 'more'"),
    "no such axis": (DEFINITION, sets(["depth"], "inputs", "x", "shape"), "no axis 'depth'"),
    "no run": (DEFINITION, sets(NO_RUN, "reference"), "reference: has no run"),
    "no Python": (DEFINITION, sets("def run(:\n", "reference"), "reference: line 1: "),
    "no type": (DEFINITION, sets("float9", "inputs", "x", "dtype"), "inputs.x.dtype: expected one"),
    "four bits": (
        *(DEFINITION, sets("float4_e2m1", "inputs", "x", "dtype")),
        "inputs.x.dtype: evotune does not support float4_e2m1",
    ),
    "no expression": (DEFINITION, sets(["rows ="], "constraints"), r"constraints\[0\]: 'rows ='"),
    "no JSON": (DEFINITION, "{", "JSON|truncated"),
    "no size": (WORKLOADS, pops("workload", "axes", "rows"), "workload.axes: rows is missing"),
    "a size below 1": (WORKLOADS, sets(-3, "workload", "axes", "rows"), "workload.axes.rows: exp"),
    "no workload": (WORKLOADS, "", "expected at least one workload"),
    "CUDA": (SOLUTION, sets("cuda", "spec", "language"), "spec.language: cuda is not supported"),
    "no entry": (
        *(SOLUTION, sets("main.py::go", "spec", "entry_point")),
        r"sources \(main.py\): has no go",
    ),
    "no entry file": (
        *(SOLUTION, sets("other.py::run", "spec", "entry_point")),
        "spec.entry_point: sources has no file 'other.py'",
    ),
    "a path above": (SOLUTION, sets("../x.py", "sources", 0, "path"), r"sources\[0\].path: exp"),
    "no definition": (SOLUTION, sets("others", "definition"), "definitions/…/others.json"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_file_and_field(tmp_path: Path, name: str) -> None:
    file, change, expected = MISTAKES[name]
    candidate = data_set(tmp_path, file, change)
    with pytest.raises(UsageError, match=expected) as caught:
        load(candidate, None, "flashinfer-bench", tmp_path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert Path(str(caught.value).partition(":")[0]).name in {
        *("softmax.json", "softmax.jsonl", "softmax_right.json")
    }


def test_a_solution_in_triton_is_a_callable_too(tmp_path: Path) -> None:
    """Its launcher is Python; Triton itself needs a GPU."""
    candidate = data_set(tmp_path, SOLUTION, sets("triton", "spec", "language"))
    found = load(candidate, None, "flashinfer-bench", tmp_path)
    assert found.kernel.language == "python"
    assert found.keywords["shapes"] == [{"rows": 5, "columns": 1}, {"rows": 16, "columns": 200}]


def test_of_many_workloads_six_are_timed_and_all_are_checked(tmp_path: Path) -> None:
    candidate = data_set(tmp_path, "workloads/*/softmax.jsonl", lambda found: None)
    path = candidate.parents[4] / "workloads" / "softmax" / "softmax.jsonl"
    line = json.loads(path.read_text())
    lines = []
    for rows in range(1, 21):
        line["workload"]["axes"]["rows"] = rows
        line["workload"]["uuid"] = f"w{rows}"
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    found = load(candidate, None, "flashinfer-bench", tmp_path)
    rows = [shape["rows"] for shape in found.keywords["shapes"]]
    assert (len(rows), rows[0], rows[-1]) == (6, 1, 20)
    assert [each.uuid for each in found.origin.workloads.values()] == [f"w{n}" for n in rows]
    problem = create_problem(str(found.keywords["problem"]), "float32", tmp_path)
    case = problem.case(found.keywords["shapes"][0], {})
    checked = {edge.symbols["rows"] for edge in problem.edge_cases(case)}
    assert checked >= set(range(1, 21)) - set(rows)


def test_stored_tensors_must_be_of_the_shape_that_the_workload_says(tmp_path: Path) -> None:
    copy = tmp_path / "set"
    shutil.copytree(DATA, copy)
    name = "gqa_paged_decode_h4_kv2_d16_ps1"
    path = next(copy.glob(f"workloads/*/{name}.jsonl"))
    path.write_text(path.read_text().replace('"num_kv_indices":14', '"num_kv_indices":13'))
    candidate = copy / solution_file(name, "right").relative_to(DATA)
    with pytest.raises(UsageError, match=r"inputs.kv_indices: expected int32 \(13,\), found"):
        load(candidate, None, "flashinfer-bench", tmp_path)
    file = copy / "blob" / "workloads" / name / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(UsageError, match="kv_indices: the file is shorter than it says"):
        StoredTensor.find(file, "kv_indices")
    file.write_bytes(b"abc")
    with pytest.raises(UsageError, match="no safetensors file"):
        StoredTensor.find(file, "kv_indices")


def test_reading_executes_nothing_and_judging_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody_agreed: None
) -> None:
    executed = tmp_path / "executed"
    line = f"open({str(executed)!r}, 'w')\n"

    def change(found: dict[str, Any]) -> None:
        found["reference"] = line + found["reference"]

    candidate = data_set(tmp_path, DEFINITION, change)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert detect(candidate, None) == "flashinfer-bench"
    with pytest.raises(UsageError, match="read it, then add --trust"):
        load(candidate, None, "flashinfer-bench", elsewhere)
    monkeypatch.chdir(tmp_path)
    load(candidate, None, "flashinfer-bench", elsewhere)
    assert not executed.exists()


def test_constraints_give_axes_and_are_never_executed() -> None:
    axes = frozenset({"rows", "pages", "width", "half"})
    constraints = ["pages == rows + 1", "width == 2 * half", "rows % 2 == 0", "ptr[-1] == pages"]
    found = AxisRelations.of(constraints, axes, frozenset({"rows", "pages"}))
    assert found.derived == {"pages": "rows + 1"}
    assert found.conditions == ("width == 2 * half", "rows % 2 == 0")
    assert found.names_in_values == {"ptr", "pages"}
    assert found.whole({"rows": 4, "width": 6, "half": 3})["pages"] == 5
    with pytest.raises(ValueError, match="rows % 2 == 0 does not hold"):
        found.whole({"rows": 3, "width": 6, "half": 3})
    hidden = AxisRelations.of(["__import__('os').abort() == 0"], axes, axes)
    assert not hidden.conditions
    circle = AxisRelations.of(["rows == pages", "pages == rows"], axes, axes)
    assert len(circle.derived) == 1
