"""`evotune export`: what it prints, its mistakes with their exit codes, and the hints around it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

import evotune
from evotune.backends import registry
from evotune.backends.cpu import CpuBackend
from evotune.export import exporting
from evotune.runs.folder import RunFolder
from evotune.store import RunStore
from evotune.user_code import trust
from evotune.util.commands import checked_name, offered_name
from tests.export.making import fabricated, own_problem, tiny_space, with_speedup
from tests.runs.runs import RECORDING, recorded_space, run_here

from .conftest import Invoke


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny kernels gain less than a call of a package costs."""
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `runs` with one confirmed run of softmax and one of attention."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("softmax-cpu", "attention-cpu"):
        fabricated(tiny_space(name, folder / name), folder)
    return folder / "runs"


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


def run_of(runs: Path, space: str) -> RunFolder:
    (path,) = runs.glob(f"*-{space}")
    return RunFolder(path)


def test_it_writes_a_package_and_says_how_to_use_it(
    invoke: Invoke, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax, attention = run_of(runs, "softmax-cpu"), run_of(runs, "attention-cpu")
    done = invoke("export", softmax.id, "-o", "pkg", "--trust")
    assert (done.exit_code, "softmax_cpu" in done.stdout) == (0, True), done.output
    assert f"trial 0 of run {softmax.id}" in done.stdout
    assert "install: pip install --no-deps ./pkg\n" in done.stderr
    assert "use: import softmax_cpu; help(softmax_cpu.softmax)\n" in done.stderr
    assert (tmp_path / "pkg" / "softmax_cpu" / "certificate.json").is_file()
    done = invoke("export", "latest", "-o", "more", "--name", "mine", "--format", "json", "--trust")
    assert json.loads(done.stdout) == {
        "folder": "more",
        "name": "mine",
        "call": "attention",
        "inputs": ["q", "k", "v"],
        "device": json.loads((attention.path / "environment.json").read_text())["device"]["name"],
        "kernels": [{"run": attention.id, "trial": 0}],
        "served": 4,
        "slower_because": "",
        "too_noisy": [],
        "configuration": None,
    }
    assert "use: import mine; mine.activate()\n" in done.stderr
    assert "note:" not in done.stderr
    monkeypatch.setattr(exporting, "cores_in_use", lambda profile: (1, 2))
    done = invoke("export", attention.id, "-o", "few")
    assert (
        "note: the kernels were measured with 1 thread and serve no program in which PyTorch has "
        "more, 2 by default here: call torch.set_num_threads(1) there, or tune again with "
        "--device cpu:2\n"
    ) in done.stderr
    monkeypatch.setattr(CpuBackend, "exported_slower_because", lambda self: "g++ fails (why)")
    done = invoke("export", softmax.id, "-o", "slow", "--trust")
    assert "note: g++ fails (why)\n" in done.stderr
    assert "warning:" not in done.stderr


def test_a_kernel_whose_figures_are_too_noisy_is_told(
    invoke: Invoke, runs: Path, tmp_path: Path
) -> None:
    softmax = run_of(runs, "softmax-cpu")
    with RunStore.open_for_writing(softmax.store) as store:
        for number, outcome in store.confirmations().items():
            noisy = msgspec.structs.replace(outcome, flags=("too_noisy",))
            store.confirm(number, noisy, 100.0)
    done = invoke("export", softmax.id, "-o", "pkg", "--trust")
    assert done.exit_code == 0, done.output
    assert f"warning: trial 0 of run {softmax.id} is too_noisy: " in done.stderr
    with pytest.warns(UserWarning, match="too_noisy: its speed differed by more than a tenth"):
        evotune.open_run(softmax.path).export(tmp_path / "more", trust=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("export latest", "Missing option '-o'"),
        ("export -o pkg", "Missing argument 'RUN...'"),
        ("export nothing -o pkg", "error: no run 'nothing' in runs (2 runs are there)"),
        ("export latest -o full", "error: full is not empty: name a new folder"),
        ("export latest -o pkg --name json", "error: a package named 'json' would hide"),
        ("export latest -o pkg --name 1a", "error: '1a' cannot be the name of a package"),
        ("export SOFTMAX latest -o pkg", "error: the runs are of different problems: "),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(
    invoke: Invoke, runs: Path, tmp_path: Path, arguments: str, words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    softmax = run_of(runs, "softmax-cpu").id
    done = invoke(*arguments.replace("SOFTMAX", softmax).split(), "--trust")
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    if words.startswith("error"):
        assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "pkg").exists()


@pytest.mark.soak
def test_runs_that_have_nothing_to_export_say_so(invoke: Invoke, tmp_path: Path) -> None:
    run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=5)
    done = invoke("export", "latest", "-o", "pkg")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "there is no kernel in it" in done.stderr
    slow = fabricated(tiny_space("attention-cpu", tmp_path / "a"), tmp_path, speedup=0.7)
    done = invoke("export", slow.id, "-o", "pkg", "--trust")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "no confirmed champion is surely faster than PyTorch" in done.stderr
    other = fabricated(tiny_space("softmax-cpu", tmp_path / "s"), tmp_path, fingerprint="0" * 64)
    done = invoke("export", other.id, "-o", "pkg", "--trust")
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "is not the code that was measured" in done.stderr


@pytest.mark.soak
def test_runs_of_several_devices_make_no_package(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fabricated(tiny_space("softmax-cpu", tmp_path / "here"), tmp_path)
    other = dataclasses.replace(registry.named("cpu").profile("cpu"), name="Another CPU")
    with monkeypatch.context() as patch:
        patch.setattr(type(registry.named("cpu")), "profile", lambda *_, **__: other)
        elsewhere = fabricated(tiny_space("softmax-cpu", tmp_path / "elsewhere"), tmp_path)
    done = invoke("export", here.id, elsewhere.id, "-o", "pkg", "--trust")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "the runs were made on different devices: " in done.stderr
    assert done.stderr.endswith(" and Another CPU\n")
    assert not (tmp_path / "pkg").exists()


def test_runs_of_two_problem_files_of_one_name_make_no_package(
    invoke: Invoke, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    runs = []
    for folder, more in zip(folders, ("", "\n    note = 1\n"), strict=True):
        folder.mkdir()
        runs.append(own_problem(folder, more=more).path)
    done = invoke("export", *runs, "-o", "pkg", "--trust")
    words = "error: the runs are of different problems: their problem.py differ\n"
    assert (done.exit_code, done.stderr) == (2, words)
    assert not (tmp_path / "pkg").exists()


def test_a_damaged_run_ends_with_4(invoke: Invoke, runs: Path) -> None:
    run = run_of(runs, "softmax-cpu")
    content = run.store.read_bytes()
    run.store.write_bytes(content[:9000])
    done = invoke("export", run.id, "-o", "pkg", "--trust")
    assert (done.exit_code, done.stderr.count("\n")) == (4, 1)
    run.store.write_bytes(content)
    source = next(run.sources.rglob("problem.py"))
    source.write_text(source.read_text() + "\n# changed\n")
    done = invoke("export", run.id, "-o", "pkg", "--trust")
    assert done.exit_code == 4
    assert "was changed since the run began" in done.stderr


def test_code_that_came_with_a_run_is_agreed_to_first(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own_problem(tmp_path)
    monkeypatch.setenv("EVOTUNE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(trust, "_agreed", set())
    done = invoke("export", run.id, "-o", "pkg")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "came with a run's folder" in done.stderr
    assert "add --trust" in done.stderr
    assert invoke("export", run.id, "-o", "pkg", "--trust").exit_code == 0


def test_a_run_with_a_winner_ends_with_the_lines_that_export_and_use_it(
    invoke: Invoke, runs: Path, tmp_path: Path
) -> None:
    run = run_of(runs, "softmax-cpu")
    for speedup, offered in ((0.8, False), (1.3, True)):
        with_speedup(run, speedup)
        said = invoke("resume", run.id, "--trials", "1", "--trust")
        assert ("\nexport: evotune export" in said.stderr) is offered, said.stderr
        assert ("\nuse: pip install --no-deps ./softmax_cpu_package" in said.stderr) is offered
    used = next(text for text in said.stderr.splitlines() if text.startswith("use: "))
    compile(shlex.split(used)[-1], "python -c", "exec")  # Python's, whatever the problem's file is
    line = next(text for text in said.stderr.splitlines() if text.startswith("export: "))
    done = invoke(*line.removeprefix("export: evotune ").split(), "--trust")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "softmax_cpu_package" / "softmax_cpu" / "dispatch.json").is_file()


def test_a_run_on_a_recording_offers_no_package(invoke: Invoke) -> None:
    assert "export:" not in invoke("run", RECORDING, "--trials", "5").stderr


@pytest.mark.parametrize("space", ["attention-mma", "queue", "2d", "x.", "torch", "-", "class"])
def test_an_offered_name_can_be_one(space: str) -> None:
    name = offered_name(space)
    assert checked_name(name) == name
