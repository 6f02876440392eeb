"""Whole runs on the CPU with real compilers, killed and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from report.runs import make_run, ok

from evotune.cli.main import application
from evotune.cli.progress import PlainProgress
from evotune.run_options import RunOptions
from evotune.runs import environment
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.observer import SilentObserver
from evotune.runs.setup import load_setup
from evotune.runs.spaces import snapshot
from evotune.runs.starting import resume_run, stored_options
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.trial import Configuration, Trial
from evotune.workers.executor import TIMED
from tests.patience import PATIENCE_S

from .runs import (
    brief_confirmations,
    evotune,
    history,
    kill_when_stored,
    run_here,
    start_killable,
    stored,
)

ROOT = Path(__file__).parents[2]
SPACE = f"""
name: tiny-attention
root: {ROOT}
problem:
  name: attention
  shapes: [{{batch: 1, heads: 2, seq_len: 64, head_dim: 32}}]
  variants: [{{causal: false}}, {{causal: true}}]
kernels:
  scalar:
    source: kernels/attention/1_scalar.cpp
    entry: attention_forward
    define: [head_dim, causal]
    arguments:
      [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k,
       q_stride_batch, q_stride_head, q_stride_row, k_stride_batch, k_stride_head, k_stride_row,
       v_stride_batch, v_stride_head, v_stride_row, out_stride_batch, out_stride_head,
       out_stride_row]
parameters:
  BLOCK_N: {{pow2: [16, 128], default: 64}}
  UNROLL: {{pow2: [8, 16]}}
  SCHEDULE: {{choices: [static, dynamic, guided]}}
  CHUNK: {{pow2: [1, 64]}}
search: {{population: 8, elites: 3, lookahead: 4}}
budget: {{trials: 10}}
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "tiny.yaml"
    path.write_text(SPACE)
    return path


def replayed(run: RunFolder, device: str = "cpu") -> list[Configuration]:
    """The configurations that an unbroken search proposes, given the run's stored outcomes."""
    trials = history(run)
    with RunStore.open_for_reading(run.store) as store:
        settings = stored_options(store)
        space_file = str(store.meta("space_file"))
    space = load_setup(run.sources / space_file, device, run).space
    strategy = create_strategy("evolution", space, settings)
    asked: list[Configuration] = []
    for number in range(len(trials)):
        while strategy.told < number - settings.lookahead:
            told = strategy.told
            strategy.tell(Trial(told, asked[told], trials[told].outcome))
        configuration = strategy.ask(number, asked[strategy.told :])
        assert configuration is not None
        asked.append(configuration)
    return asked


NOTHING_DONE = """
name: nothing-done
problem: {name: attention, dtype: float32, shapes: [{batch: 1, heads: 1, seq_len: 8, head_dim: 16}]}
kernels: {empty: {source: kernels/empty.cpp, entry: attention_forward, arguments: [q, k, v, out]}}
parameters: {A: [1, 2, 3], B: [1, 2, 3]}
try_first: [{A: 3}, {B: 2, A: 2}]
search: {strategy: random}
"""


def test_what_the_space_says_is_tried_first(space: Path, tmp_path: Path) -> None:
    """The order holds although the run stops and resumes in between. That all trials fail does
    not matter here."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/empty.cpp").write_text('extern "C" void attention_forward() {}')
    space.write_text(NOTHING_DONE)
    run = run_here(space, tmp_path / "runs", device="cpu", trials=2)
    resume_run(run, SilentObserver(), trials=5)
    tried = [tuple(dict(trial.configuration).values()) for trial in history(run)]
    assert tried[:3] == [(1, 1), (3, 1), (2, 2)]
    assert len({*tried}) == 5


def searched(space: Path, runs_dir: Path) -> RunFolder:
    """A run that has confirmed one of its two trials, made without running anything."""
    setup = load_setup(space, "cpu")
    labels = [case.label for case in setup.cases[TIMED]]
    first, second = ok(2.0, cases=labels), ok(1.5, cases=labels)
    values = dict(setup.space.default())
    run = make_run(
        runs_dir,
        [first, second],
        confirmations={0: first},
        configurations={0: values, 1: {**values, "BLOCK_N": 32}},
        environment=json.dumps(environment.describe(setup.profile, (), setup.languages)),
        meta={
            "space": setup.name,
            "device": setup.profile.to_json(),
            "baselines": {"chosen": dict.fromkeys(labels, "sdpa:math")},
            "settings": RunOptions(trials=2, champions=1).to_json(),
        },
    )
    run.sources.mkdir()
    with RunStore.open_for_writing(run.store) as store:
        snapshot(run, setup.files)
        store.set_meta("space_file", setup.space_file)
    return run


def searches(space: Path, runs_dir: Path) -> RunFolder:
    return run_here(space, runs_dir, device="cpu", trials=3, champions=1)


@pytest.mark.soak
@pytest.mark.parametrize("make", [searched, pytest.param(searches, marks=pytest.mark.soak)])
def test_more_champions_are_confirmed_later_and_the_first_one_is_not_again(
    space: Path, tmp_path: Path, make: Callable[[Path, Path], RunFolder]
) -> None:
    notes: list[str] = []
    space.write_text(SPACE.replace("[{causal: false}, {causal: true}]", "[{causal: true}]"))
    with brief_confirmations():
        run = make(space, tmp_path / "runs")
        with RunStore.open_for_reading(run.store) as store:
            ((first, outcome),) = store.confirmations().items()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlainProgress, "step", lambda self, text: notes.append(text))
            done = CliRunner().invoke(application, ["resume", str(run.path), "--champions", "2"])
    assert done.exit_code == 0, done.output
    with RunStore.open_for_reading(run.store) as store:
        confirmed = store.confirmations()
    assert len(confirmed) == 2
    assert confirmed[first] == outcome
    (second,) = confirmed.keys() - {first}
    assert f"confirmed trial {second}: " in done.stderr
    assert f"confirmed trial {first}: " not in done.stderr
    assert "--trials asks for more" not in done.stderr
    which = f"confirming 2 of 2 (trial {second}), process 1 of at most 1"
    assert {note.partition(": ")[0] for note in notes} == {which}
    assert any("making inputs" in note or " of " in note.partition(": ")[2] for note in notes)


def processes_of(run: RunFolder) -> list[str]:
    """Command lines of evotune's children that work under the run's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            logs = [os.readlink(fd) for fd in (entry / "fd").iterdir() if fd.name == "2"]
        except OSError:
            continue
        if "evotune.workers" in words and any(str(run.path) in log for log in logs):
            found.append(words)
    return found


def wait_until_gone(run: RunFolder, within_s: float) -> Sequence[str]:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        left = processes_of(run)
        if not left:
            break
        time.sleep(0.05)
    return left


@pytest.mark.soak
def test_a_run_killed_with_its_compilers_at_work_resumes_to_the_same_history(
    space: Path, tmp_path: Path
) -> None:
    options = ("--runs-dir", tmp_path / "runs", "--champions", 1)
    process = start_killable("run", space, *options)
    run = kill_when_stored(process, tmp_path / "runs", 4)
    before = history(run)
    assert wait_until_gone(run, 100.0) == [], "children die with their parent"
    resumed = subprocess.run(
        evotune("resume", run.path), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    after = history(run)
    assert len(after) == 10
    assert after[: len(before)] == before
    assert [trial.configuration for trial in after] == replayed(run)
    assert "sdpa:" in resumed.stdout
    with RunStore.open_for_reading(run.store) as store:
        confirmed = store.confirmations()
        assert store.meta("state") == "finished:trials"
        assert set(store.meta("baselines")["chosen"]) == {"(1,2,64,32) full", "(1,2,64,32) causal"}
    assert sum(outcome.ok for outcome in confirmed.values()) == 1
    environment = json.loads(run.environment.read_text())
    assert {"torch", "deap"} <= set(environment["packages"])
    assert environment["device"]["backend"] == "cpu"
    assert (run.sources / "kernels/attention/1_scalar.cpp").is_file()


@pytest.mark.soak
def test_ctrl_c_keeps_everything_and_can_be_resumed(space: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        evotune("run", space, "--runs-dir", tmp_path / "runs"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (runs := list_runs(tmp_path / "runs")) or stored(runs[0]) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"evotune resume {runs[0].id}" in errors
    assert processes_of(runs[0]) == []
    with RunStore.open_for_reading(runs[0].store) as store:
        assert store.meta("state") == "interrupted"
        assert store.count() >= 3
