"""KernelBench's and GPU MODE's tasks: candidates are judged, verdicts are written in their words,
and mistakes are said in a line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evotune.errors import EvotuneError, UsageError
from evotune.formats import detect, gpumode, kernelbench, load
from evotune.formats.gpumode import has_own_check
from evotune.formats.task_problem import accepts
from evotune.trial import Check, OutcomeKind
from tests.formats.judging import Judge, given
from tests.formats.verdicts import passed, refused

DATA = Path(__file__).parent / "data"
BENCH, MODE = DATA / "kernelbench", DATA / "gpumode"
SUM, PEAK = MODE / "scaled_sum", MODE / "row_peak"


@pytest.mark.soak
def test_a_model_with_weights_of_the_seed(judge: Judge) -> None:
    task = BENCH / "linear_norm_gelu.py"
    right = judge.judge(BENCH / "right.py", task)
    assert right.passed, right.reason
    wrong = judge.judge(BENCH / "wrong.py", task)
    assert "output_0 is off by 4." in wrong.reason


def test_a_model_with_two_outputs_and_weights_in_another_order(judge: Judge) -> None:
    task = BENCH / "two_outputs.py"
    right = judge.judge(BENCH / "two_outputs_right.py", task)
    assert right.passed, right.reason
    wrong = judge.judge(BENCH / "two_outputs_wrong.py", task)
    assert "output_1 is off by" in wrong.reason


@pytest.mark.soak
def test_a_task_whose_data_has_the_output_and_names_cuda(judge: Judge, tmp_path: Path) -> None:
    right = judge.judge(SUM / "right.py", SUM)
    assert right.passed, right.reason
    wrong = judge.judge(SUM / "wrong.py", SUM)
    assert "output_0 is off by" in wrong.reason
    with given(SUM / "right.py", SUM, tmp_path) as found:
        assert found.origin == JUDGED


def test_a_task_that_checks_itself(judge: Judge) -> None:
    right = judge.judge(PEAK / "right.py", PEAK)
    assert right.passed, right.reason
    wrong = judge.judge(PEAK / "wrong.py", PEAK)
    assert "same refuses the outputs" in wrong.reason


def test_formats_are_told_apart() -> None:
    assert detect(BENCH / "right.py", BENCH / "linear_norm_gelu.py") == "kernelbench"
    assert detect(SUM / "right.py", SUM) == "gpumode"
    assert detect(SUM / "right.py", SUM / "task.yml") == "gpumode"
    assert detect(SUM / "right.py", None) == "gpumode"
    assert detect(SUM / "task.py", None) == "evotune"
    assert detect(Path("kernel.cu"), None) == "evotune"


CHECKS = {
    "check_implementation = make_match_reference(ref_kernel, rtol=1e-3)": False,
    "def check_implementation(data, output):\n"
    "    return verbose_allclose(output, ref_kernel(data))": False,
    "def check_implementation(data, output):\n"
    "    expected = ref_kernel(data)\n"
    "    reasons = verbose_allclose(output, expected)\n"
    "    return len(reasons) == 0, ' '.join(reasons)": False,
    "def check_implementation(data, output):\n    return bool((output == data).all())": True,
    "def check_implementation(data, output):\n"
    "    return torch.allclose(output.sort()[0], ref_kernel(data))": True,
    "from checks import check_implementation": True,
    "": False,
}


@pytest.mark.parametrize("text", CHECKS)
def test_only_a_check_of_its_own_replaces_the_comparison(text: str) -> None:
    assert has_own_check(f"def ref_kernel(data):\n    return data\n\n\n{text}\n") == CHECKS[text]


def test_checks_of_all_versions_are_understood() -> None:
    assert accepts(True)
    assert accepts((True, ""))
    assert accepts("")
    assert not accepts((False, "mismatch"))
    assert not accepts("mismatch")


def test_kernelbench_result() -> None:
    record = json.loads(kernelbench.result(passed("(1)")))
    assert record["compiled"]
    assert record["correctness"]
    assert record["runtime"] == pytest.approx(10.0)
    assert record["ref_runtime"] == pytest.approx(20.0)
    assert record["runtime_stats"] == {"mean": pytest.approx(10.0), "num_trials": 100}
    assert record["metadata"]["speedup"] == pytest.approx(2.0)
    wrong = json.loads(kernelbench.result(refused(OutcomeKind.WRONG_RESULT, "off by 1")))
    assert (wrong["compiled"], wrong["correctness"], wrong["runtime"]) == (True, False, -1.0)
    assert wrong["metadata"]["reason"] == "off by 1"
    broken = json.loads(kernelbench.result(refused(OutcomeKind.COMPILE_ERROR, "no module")))
    assert not broken["compiled"]
    unsure = json.loads(kernelbench.result(refused(OutcomeKind.UNDECIDED, "too noisy")))
    assert unsure["metadata"]["undecided"]


JUDGED = gpumode.Judged(
    tests=[
        ("(2)", "size: 127; scale: 0.5; seed: 4242"),
        ("(3)", "size: 1; scale: 2.0; seed: 12"),
    ],
    benchmarks=[("(1)", "size: 20000; scale: 0.5; seed: 7")],
)


def lines_of(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_gpumode_log() -> None:
    log = lines_of(gpumode.result(JUDGED, passed("(1)")))
    assert log["test-count"] == "2"
    assert log["test.1.spec"] == "size: 1; scale: 2.0; seed: 12"
    assert log["test.1.status"] == "pass"
    assert log["benchmark.0.spec"] == "size: 20000; scale: 0.5; seed: 7"
    assert float(log["benchmark.0.mean"]) == pytest.approx(10_000.0)
    assert float(log["benchmark.0.best"]) == pytest.approx(9000.0)
    assert float(log["benchmark.0.err"]) == pytest.approx(500.0)
    assert log["check"] == "pass"
    found = (("(2)", "passed"), ("(3)", "failed"))
    checks = tuple(Check(label, "normal", status) for label, status in found)
    log = lines_of(gpumode.result(JUDGED, refused(OutcomeKind.NAN, "NaN in output_0", checks)))
    assert (log["test.0.status"], log["test.1.status"]) == ("pass", "fail")
    assert log["test.1.error"] == log["error"] == "NaN in output_0"
    assert log["check"] == "fail"
    assert "benchmark.0.mean" not in log


# Mistakes

TASKS = {
    "no files": ("files:", "folders:", "task.yml: files: expected a list"),
    "no submission": ('"@SUBMISSION@"', "task.py", "a Python file with the source @SUBMISSION@"),
    "no reference": ("name: reference.py", "name: other.py", "files: there is no reference.py"),
    "another language": ("lang: py", "lang: cu", "lang: 'cu' is not supported"),
    "a ranking": ("ranking_by: geom", "ranking_by: luck", "ranking_by: expected one of last"),
    "a time limit": ("test_timeout: 180", "test_timeout: soon", "test_timeout: expected seconds"),
    "a size of NaN": ("size: 127", "size: .nan", "NaN|finite|expected numbers"),
    "a case of text": ("{size: 1, scale: 2.0, seed: 12}", "one", r"tests\[1\]: expected a mapping"),
    "a lost file": ("../utils.py", "../lost.py", "lost.py: No such file"),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_mistake_in_a_task_is_one_line_with_its_field(tmp_path: Path, name: str) -> None:
    old, new, expected = TASKS[name]
    shutil.copytree(MODE, tmp_path / "tasks")
    task = tmp_path / "tasks" / "scaled_sum"
    text = (task / "task.yml").read_text()
    assert old in text
    (task / "task.yml").write_text(text.replace(old, new))
    with pytest.raises(EvotuneError, match=expected) as caught:
        load(task / "right.py", task, "gpumode", tmp_path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_of_kernelbench_is_one_line(tmp_path: Path) -> None:
    task, candidate = tmp_path / "task.py", tmp_path / "candidate.py"
    candidate.write_text("class ModelNew:\n    pass\n")
    for text, expected in (
        ("class Model:\n    pass\n", "task.py: has no get_inputs"),
        ("def Model(:\n", "task.py: line 1: "),
        ("raise ValueError\nModel = get_inputs = get_init_inputs = 1\n", "task.py:1: ValueError"),
        (
            "class Model:\n    pass\n\n\ndef get_inputs():\n    return [1]\n\n\n"
            "def get_init_inputs():\n    return []\n",
            "task.py: the inputs: expected at least one tensor",
        ),
    ):
        task.write_text(text)
        with pytest.raises(UsageError, match=expected) as caught:
            load(candidate, task, "kernelbench", tmp_path)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="name the file with Model as the task"):
        load(candidate, None, "kernelbench", tmp_path)
    candidate.write_text("class Other:\n    pass\n")
    with pytest.raises(UsageError, match=r"candidate\.py: has no ModelNew"):
        load(candidate, task, "kernelbench", tmp_path)


def test_code_from_elsewhere_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody_agreed: None
) -> None:
    monkeypatch.chdir(tmp_path)
    for candidate, task in (
        (BENCH / "right.py", BENCH / "linear_norm_gelu.py"),
        (SUM / "right.py", SUM),
    ):
        with pytest.raises(UsageError, match="read it, then add --trust"):
            load(candidate, task, detect(candidate, task), tmp_path)
