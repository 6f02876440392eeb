"""Python callables: how each way to fail ends a trial, and what the judge measures."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import CallTensor, CompileFailure, CompileJob
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.backends.cpu import cpu_profile
from evotune.backends.python import ROOM, host_process, releases
from evotune.backends.python.bundle import Bundle, BundleCompiler
from evotune.backends.python.function_calls import Wanted, returned_tensors
from evotune.backends.python.host import allow_recompiling
from evotune.backends.python.releases import OutputPlace
from evotune.errors import SpaceError
from evotune.runs.setup import load_setup
from evotune.trial import OutcomeKind
from evotune.util.processes import child_processes
from tests.callables import CallableTrials, callable_trials
from tests.patience import PATIENCE_S, assert_cut_short

DATA = Path(__file__).parent / "data" / "callables"

CRASH, ERROR = OutcomeKind.COMPILE_CRASH, OutcomeKind.COMPILE_ERROR
LAUNCH, ACCESS = OutcomeKind.LAUNCH_ERROR, OutcomeKind.ILLEGAL_ACCESS

EXPECTED = {
    "raises_when_made": (ERROR, r"failing.py:\d+: ValueError: no such tile"),
    "exits_when_made": (CRASH, "ended with status 7 while it was built"),
    "dies_when_made": (ACCESS, "died of SIGSEGV while it was built"),
    "makes_no_function": (ERROR, "make returned a int, expected a function"),
    "returns_nothing": (ERROR, "returned a NoneType, expected out"),
    "returns_another_shape": (ERROR, r"float32 \(1, 512\), expected torch.float32 \(64, 512\)"),
    "returns_another_type": (ERROR, "out is torch.float64"),
    "raises": (LAUNCH, r"failing.py:\d+: IndexError: out of tiles"),
    "exits": (LAUNCH, "ended with status 3 while it was called"),
    "leaves_by_sys_exit": (LAUNCH, "SystemExit: 0"),
    "crashes": (ACCESS, "died of SIGSEGV while it was called"),
    "leaks": (OutcomeKind.DEVICE_OOM, r"it may take 0.2 GiB: failing.py:\d+: "),
    "prints_without_end": (LAUNCH, "it may write 64 MiB, prints included"),
    "leaves_a_process": (LAUNCH, "left a process running"),
    "leaves_a_daemon": (LAUNCH, "left a process running"),
    "leaves_a_thread": (LAUNCH, "cores busy after it returned"),
    "kills_its_parent": (LAUNCH, "killed its parent process while it was called"),
}
SOON = {"raises_when_made", "exits_when_made", "raises", "exits", "leaves_a_process"}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    """One session for all: no failure may harm the next trial."""
    with callable_trials(DATA / "failing.yaml", tmp_path_factory.mktemp("trials")) as made:
        yield made


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(b, marks=() if b in SOON else pytest.mark.soak) for b in EXPECTED],
)
def test_each_failure_is_an_outcome_of_its_own(
    trials: CallableTrials, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_process, "_MOST_MEMORY_BYTES", 256 << 20)
    kind, reason = EXPECTED[behaviour]
    outcome = trials.run(BEHAVIOUR=behaviour)
    assert outcome.kind is kind, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason


def test_a_missing_import_is_named(trials: CallableTrials) -> None:
    outcome = trials.run(KERNEL="import_error")
    assert outcome.kind is ERROR
    assert outcome.reason.endswith("ModuleNotFoundError: No module named 'no_such_package'")


def test_building_without_end_is_a_compiler_that_takes_too_long(trials: CallableTrials) -> None:
    outcome = trials.run(BEHAVIOUR="compiles_for_long", build_s=0.5)
    assert_cut_short(outcome, OutcomeKind.COMPILE_TIMEOUT, "more than 0.5 s passed while it was")
    assert outcome.stage_s["build"] >= 0.5


def test_a_call_without_end_is_killed(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "CALLING", releases.CALLING._replace(limit_s=0.5))
    outcome = trials.run(BEHAVIOUR="hangs")
    assert_cut_short(outcome, OutcomeKind.TIMEOUT, "more than 0.5 s passed while it was called")


@pytest.mark.soak
@pytest.mark.parametrize("behaviour", ["new", "given", "several"])
def test_a_right_one_passes_after_all_that(trials: CallableTrials, behaviour: str) -> None:
    outcome = trials.run(BEHAVIOUR=behaviour)
    assert outcome.ok, outcome.reason
    given = "given" if behaviour == "given" else "new"
    assert [each.state["outputs"] for each in outcome.measurements] == [given]
    assert [each.state["calls"] for each in outcome.measurements] == ["eager"]
    assert outcome.stage_s["build"] > 0.0


def test_no_host_outlives_its_trial(trials: CallableTrials) -> None:
    trials.run(BEHAVIOUR="raises")
    trials.session.take_stock()
    zygote = trials.session._start_zygote()
    deadline = time.monotonic() + PATIENCE_S
    null = trials.session._null
    allowed = {null.pid} if null is not None else set()
    while child_processes(zygote.pid) - allowed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_system_that_lets_nobody_read_results_has_them_copied(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_process, "_reader", lambda: None)
    monkeypatch.setattr(trials.session, "_reads", None)
    outcome = trials.run(BEHAVIOUR="new")
    monkeypatch.setattr(trials.session, "_reads", None)
    assert outcome.ok, outcome.reason
    assert outcome.measurements[0].state["outputs"] == "copied"


SPACE = """
name: told-too-much
root: {root}
problem: {{name: problem.py:Weighted, shapes: [{{rows: 2, columns: 8}}]}}
kernels:
  failing: {{source: failing.{suffix}, entry: make, language: python{more}}}
parameters: {{BEHAVIOUR: {{choices: [new]}}}}
baseline: torch:best
"""


@pytest.mark.parametrize(
    ("suffix", "more", "words"),
    [
        ("py", ", arguments: [x, out]", "leave 'arguments' out: a python kernel gets"),
        ("py", ", define: [rows]", "leave 'define' out"),
        ("cpp", "", "expected a .py file, found 'failing.cpp'"),
    ],
)
def test_a_space_says_of_a_callable_only_where_it_is(
    tmp_path: Path, suffix: str, more: str, words: str
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(SPACE.format(root=os.path.relpath(DATA, tmp_path), suffix=suffix, more=more))
    with pytest.raises(SpaceError, match=re.escape(words)):
        load_setup(space, "cpu")


def test_the_worker_keeps_a_core_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's threads would wait for it, and it for them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cpu_profile, "threads", lambda: 8)
    monkeypatch.setattr(cpu_profile, "free_cores", lambda: 6)
    assert ROOM._with_threads("auto") == "cpu:7"
    assert ROOM.left_free("auto") == "cpu:5"
    assert ROOM.left_free("cpu:3") == "cpu:3"
    monkeypatch.setattr(cpu_profile, "threads", lambda: 1)
    assert ROOM._with_threads("cpu") == "cpu:1"


def test_results_with_gaps_leave_the_gaps_as_they_are() -> None:
    memory = torch.full((3, 8), 7.0)
    spec = CallTensor("out", "float32", (3, 5), (8, 1), is_output=True)
    place = OutputPlace(spec, memory.data_ptr())
    address, nbytes = place.landing
    assert nbytes == 3 * 5 * 4
    results = torch.arange(15.0)
    ctypes.memmove(address, results.data_ptr(), nbytes)
    place.settle()
    assert torch.equal(memory[:, :5].flatten(), results)
    assert bool((memory[:, 5:] == 7.0).all())


def test_a_result_has_its_values_in_memory() -> None:
    """The judge reads memory, where views of `conj()` have the values before it."""
    z = torch.complex(torch.ones(2, 3), torch.arange(6.0).view(2, 3))
    for lazy in (z.conj(), torch._neg_view(z), torch._neg_view(z.real.contiguous())):
        wanted = [Wanted("out", (2, 3), (3, 1), lazy.dtype)]
        (found,) = returned_tensors(lazy, wanted)
        count = found.nbytes // 4
        raw = list((ctypes.c_float * count).from_address(found.data_ptr()))
        plain = lazy.resolve_conj().resolve_neg().contiguous()
        expected = torch.view_as_real(plain) if plain.is_complex() else plain
        assert raw == expected.flatten().tolist()


def test_a_function_may_be_compiled_for_more_shapes_than_dynamo_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = types.SimpleNamespace(recompile_limit=8, accumulated_recompile_limit=256)
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.SimpleNamespace(config=config))
    allow_recompiling()
    assert config.recompile_limit == config.accumulated_recompile_limit == 1 << 16
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    allow_recompiling()


def test_the_compiler_refuses_what_is_no_python(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("import h\n\ndef make(configuration, case)\n    pass\n")
    (tmp_path / "h.py").write_text("")
    values = (("TILE", 3), ("ORDER", "rows"))
    output = tmp_path / "k.bin"

    def job() -> CompileJob:
        sha256 = fingerprint(read_sources(tmp_path, "k.py"))
        given = ("python", str(tmp_path), "k.py", (), (), "", sha256, "make")
        return CompileJob(*given, values=values)

    found = BundleCompiler().compile(job(), output, 1.0)
    assert isinstance(found, CompileFailure)
    assert found.reason == "k.py:3: expected ':'"
    old = job()
    (tmp_path / "k.py").write_text("import h\n\ndef make(configuration, case):\n    pass\n")
    found = BundleCompiler().compile(old, output, 1.0)
    assert isinstance(found, CompileFailure)
    assert found.reason == "k.py changed while the run was going on"
    assert not isinstance(BundleCompiler().compile(job(), output, 1.0), CompileFailure)
    bundle = Bundle.read(output)
    assert (set(bundle.files), bundle.place.name) == ({"k.py", "h.py"}, "k")
    assert bundle.configuration == values
