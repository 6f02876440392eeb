"""Whatever a candidate does, its trial has the matching outcome, and the next trial is fine."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import resource
import signal
import time
from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.launch import Argument, Workspace
from evotune.errors import EnvironmentProblem
from evotune.runs.setup import load_setup
from evotune.timing.paired import TimingSettings
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.workers.device_slot import crash_kind, last_words
from evotune.workers.executor import RANDOM, TIMED, Proposal
from evotune.workers.in_flight import Twins
from tests.patience import assert_cut_short, limited_trials
from tests.sweeps import swept

from .faulty import SPACE, Confirmed, FaultyKernels, open_executor, planner, stat_fields

# The outputs hold old results or poison, depending on the watched run.
KEPT = ((OutcomeKind.WRONG_RESULT, OutcomeKind.NAN), "watched inputs")
# The other faults that end a worker are in `test_fault_matrix.py` (`make soak`).
FAULTS = {
    "compile_error": (OutcomeKind.COMPILE_ERROR, "this kernel does not compile"),
    "missing_function": (OutcomeKind.COMPILE_ERROR, "undefined reference to `defined_nowhere'"),
    "missing_entry": (OutcomeKind.COMPILE_ERROR, "has no function attention_forward"),
    "segfault": (OutcomeKind.ILLEGAL_ACCESS, "SIGSEGV"),
    "throw": (OutcomeKind.LAUNCH_ERROR, "thrown by the kernel"),
    "misaligned": (OutcomeKind.ILLEGAL_ACCESS, "SIGBUS"),
    "garbles": (OutcomeKind.WORKER_LOST, "sent a message that cannot be read"),
    "exit": (OutcomeKind.WORKER_LOST, "ended with status 7"),
    "kill": (OutcomeKind.WORKER_LOST, "SIGKILL"),
    "wrong_scale": (OutcomeKind.WRONG_RESULT, "out is off by"),
    "dropped_key": (OutcomeKind.WRONG_RESULT, "out is off by"),
    "nan": (OutcomeKind.NAN, " elements of out are NaN or infinite"),
    "unwritten_rows": (OutcomeKind.NAN, "32 of them never written"),
    "out_of_bounds": (OutcomeKind.OUT_OF_BOUNDS, "wrote outside out"),
    "mutates_input": (OutcomeKind.OUT_OF_BOUNDS, "changed its input k"),
    # It changes the input while it is timed or watched.
    "late_mutates_input": (OutcomeKind.OUT_OF_BOUNDS, "changed its input q"),
    "nondeterministic": (OutcomeKind.NONDETERMINISTIC, "differ between two equal launches"),
    "state_between_calls": KEPT,
    "skips_when_written": KEPT,
    "trusts_a_probe": KEPT,
    "spinner": (OutcomeKind.LAUNCH_ERROR, "busy after it returned"),
}


ALIKE = ("throw", "misaligned", "exit", "kill")
"""These end a worker as others of FAULTS do, so that only `test_fault_matrix.py` tries them."""
TRIED_ELSEWHERE = ("segfault", "out_of_bounds", "late_mutates_input", "spinner")
"""The first is quarantined below; `red_team/test_cpu.py` has a kernel like each of the others."""
SOON = ("compile_error", "nan")
"""`make test` takes these; `make soak` takes the others too, which end as these, as kernels of
`red_team/test_cpu.py` or as workers of `test_unreadable.py` do."""


@pytest.mark.parametrize(
    "fault",
    swept([each for each in FAULTS if each not in ALIKE + TRIED_ELSEWHERE], SOON.__contains__),
)
def test_a_fault_ends_in_its_outcome_and_the_next_trial_is_fine(
    faulty: FaultyKernels, fault: str
) -> None:
    kind, reason = FAULTS[fault]
    outcome = faulty.run(fault)
    assert outcome.kind in (kind if isinstance(kind, tuple) else (kind,)), outcome
    assert reason in outcome.reason, outcome
    assert "\n" not in outcome.reason
    healthy = faulty.run("none")
    assert healthy.ok, healthy
    assert healthy.duplicate_of is None


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fault", ["infinite_loop", pytest.param("stop", marks=pytest.mark.soak)])
def test_a_kernel_that_does_not_end_is_killed_in_time(faulty: FaultyKernels, fault: str) -> None:
    with limited_trials(faulty.executor, 4.0):
        outcome = faulty.run(fault)
    assert_cut_short(outcome, OutcomeKind.TIMEOUT, "no answer within 4 s; killed")
    assert faulty.run("none").ok


def test_what_native_code_prints_goes_to_the_log_and_not_into_the_answer(
    faulty: FaultyKernels,
) -> None:
    outcome = faulty.run("chatter")
    assert outcome.ok
    assert outcome.fitness != 9
    assert '"fitness": 9' in faulty.device_log()


@pytest.mark.soak
def test_a_trial_is_not_blamed_for_a_worker_that_another_broke(faulty: FaultyKernels) -> None:
    assert faulty.run("time_bomb").ok
    worker = faulty.executor._devices[0]._child
    victim = faulty.run("none")  # its worker dies of SIGSEGV, whoever did it
    assert victim.ok, victim
    assert faulty.executor._devices[0]._child is not worker, "the bomb went off"


@pytest.mark.soak
@pytest.mark.parametrize("room_mib", [0, 64])
def test_a_trial_is_not_blamed_for_memory_that_others_hold(
    faulty: FaultyKernels, room_mib: int
) -> None:
    """Without any memory left, the worker fails while it makes the inputs, or anywhere else."""
    assert faulty.run("none").ok
    worker = faulty.executor._devices[0]._child
    assert worker is not None
    pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (room_mib << 20)
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
    outcome = faulty.run_proposal(_with_workspace(faulty, 256 << 20))
    assert outcome.ok, outcome


def test_a_scratch_buffer_larger_than_the_machine_is_a_device_oom(faulty: FaultyKernels) -> None:
    assert faulty.run_proposal(_with_workspace(faulty, 1 << 55)).kind is OutcomeKind.DEVICE_OOM
    outcome = faulty.run_proposal(_with_workspace(faulty, -8))
    assert (outcome.kind, outcome.reason) == (OutcomeKind.LAUNCH_ERROR, "a buffer of -8 bytes")
    assert faulty.run("none").ok


def test_an_argument_that_does_not_fit_its_type_is_refused(faulty: FaultyKernels) -> None:
    outcome = faulty.run_proposal(_with_argument(faulty, Argument("int32", value=1 << 31)))
    assert outcome.kind is OutcomeKind.LAUNCH_ERROR
    assert "2147483648 does not fit int32" in outcome.reason


def test_machine_code_that_was_measured_is_not_measured_again(faulty: FaultyKernels) -> None:
    first = faulty.proposal("none")
    again = dataclasses.replace(first, number=first.number + 1000)
    outcome = faulty.run_proposal(first)
    twin = faulty.run_proposal(again)
    assert twin.duplicate_of == first.number
    assert (twin.fitness, twin.measurements) == (outcome.fitness, outcome.measurements)


def test_machine_code_that_the_run_knows_from_before_is_not_measured_again(tmp_path: Path) -> None:
    known = Outcome(OutcomeKind.OK, 0.5, binary="b" * 64)
    asked = []

    def stored_twin(fingerprint: str) -> tuple[int, Outcome]:
        asked.append(fingerprint)
        return 7, known

    kernels = FaultyKernels(tmp_path, twins=Twins(stored_twin))
    try:
        outcome = kernels.run("none")
    finally:
        kernels.executor.close()
    assert (outcome.duplicate_of, outcome.fitness) == (7, 0.5)
    assert [len(fingerprint) for fingerprint in asked] == [64]


@pytest.mark.soak
def test_what_is_faster_than_the_device_can_be_is_refused(tmp_path: Path) -> None:
    profile = load_setup(SPACE, "cpu").profile
    kernels = FaultyKernels(tmp_path, dataclasses.replace(profile, peak_gflops=0.001))
    try:
        outcome = kernels.run("none")
    finally:
        kernels.executor.close()
    assert outcome.kind is OutcomeKind.TOO_FAST
    assert "GFLOP/s is more than the device's peak of 0" in outcome.reason


def test_a_candidate_that_cannot_win_gets_few_samples_unless_all_get_the_same(
    faulty: FaultyKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = []
    faulty.executor.set_contender(20.0)  # ln(speedup): no candidate comes near it
    try:
        for fixed in (False, True):
            monkeypatch.setattr(faulty.executor, "fixed_sampling", fixed)
            (measurement,) = (m for m in faulty.run("none").measurements if m.counts)
            samples.append(measurement.samples)
    finally:
        faulty.executor.set_contender(-math.inf)
    assert samples == [TimingSettings().min_rounds, TimingSettings().max_rounds]


@pytest.mark.parametrize("fault", ["segfault", pytest.param("kill", marks=pytest.mark.soak)])
def test_who_ends_two_workers_is_quarantined_and_not_tried_again(
    faulty: FaultyKernels, fault: str
) -> None:
    assert faulty.run("none").ok  # so that the first of the two workers has served a trial before
    first = faulty.proposal(fault)
    outcome = faulty.run_proposal(first)
    assert outcome.flags == ("quarantined",)
    kind, reason = FAULTS[fault]
    assert (outcome.kind, reason in outcome.reason) == (kind, True), outcome
    twin = faulty.run_proposal(dataclasses.replace(first, number=5000 + first.number))
    assert (twin.duplicate_of, twin.kind) == (first.number, outcome.kind)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_somebody_else_kills_is_not_the_candidates_fault(
    faulty: FaultyKernels, number: signal.Signals
) -> None:
    assert faulty.run("none").ok  # a crash in a worker's first trial is its candidate's
    proposal = faulty.proposal("none")
    faulty.executor.submit(proposal)
    (device,) = faulty.executor._devices
    while device._opening or not device.busy:
        assert faulty.executor.poll(0.01) == []
    child = device.child
    assert child is not None
    os.kill(child.pid, number)
    outcome = faulty.outcome_of(proposal)
    assert (outcome.ok, outcome.flags) == (True, ()), outcome


@pytest.mark.soak
def test_a_worker_that_somebody_stops_is_killed_when_its_time_is_over(
    faulty: FaultyKernels,
) -> None:
    proposal = faulty.proposal("slow")
    faulty.executor.submit(proposal)
    while "the kernel takes its time" not in faulty.device_log():
        assert faulty.executor.poll(0.01) == []
    (device,) = faulty.executor._devices
    child = device.child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    device._start_clock(1.0)  # it will never answer
    assert faulty.outcome_of(proposal).kind is OutcomeKind.TIMEOUT
    assert not stat_fields(child.pid)
    assert faulty.run("none").ok


@pytest.mark.soak
def test_a_cached_binary_that_was_changed_on_disk_is_compiled_again(tmp_path: Path) -> None:
    kernels = FaultyKernels(tmp_path)
    try:
        assert kernels.run("none").ok
        (binary,) = (tmp_path / "cache" / "objects").glob("*/*.bin")
        content = bytearray(binary.read_bytes())
        content[len(content) // 2] ^= 1
        binary.write_bytes(content)
        assert kernels.run("none").ok
        assert binary.read_bytes() != bytes(content)
    finally:
        kernels.executor.close()


def test_a_rejected_proposal_is_answered_without_a_compiler(faulty: FaultyKernels) -> None:
    proposal = Proposal(9000, Configuration({"FAULT": "none"}), rejection="too wide")
    outcome = faulty.run_proposal(proposal)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.REJECTED, "too wide")


@pytest.fixture(scope="module")
def confirmed(faulty: FaultyKernels) -> Confirmed:
    made = planner().proposal(7000, Configuration({"FAULT": "none"}), confirm=True)
    return Confirmed(made, *faulty.watched(made), faulty.executor.step)


def test_edge_shapes_and_champions_pass_the_whole_gate(
    faulty: FaultyKernels, confirmed: Confirmed
) -> None:
    made, outcome = confirmed.proposal, confirmed.outcome
    assert outcome.ok, outcome
    by_status = {check.status: check for check in outcome.checks}
    assert by_status.keys() == {"passed", "skipped"}
    assert by_status["skipped"].inputs == "compute-sanitizer racecheck"
    (random_tests,) = [check for check in outcome.checks if check.case == "120 random tests"]
    assert random_tests.status == "passed"
    assert random_tests.max_error is not None
    assert random_tests.max_error <= (random_tests.max_limit or 0.0)
    measured = outcome.measurements[0]
    assert measured.samples >= 20
    assert (measured.eager_us, measured.eager_baseline_us) == (None, None)  # no graphs on a CPU
    assert {"random_tests", "verify", "measure"} <= outcome.stage_s.keys()
    assert outcome.domain is not None
    assert sum(region.cases for region in outcome.domain.regions) <= len(made.cases)
    causal, full = outcome.domain.regions  # random tests use only the mask that is tuned
    assert (causal.fixed["causal"], full.fixed["causal"]) == (True, False)
    assert causal.ranges["seq_len_q"] > full.ranges["seq_len_q"]
    assert faulty.run("none").domain is None  # the search checks less


def test_a_champions_steps_are_told_and_those_of_a_trial_are_not(
    faulty: FaultyKernels, confirmed: Confirmed
) -> None:
    _, steps = faulty.watched(faulty.proposal("none"))
    assert set(steps) <= {"", "compiling", "starting a process"}
    steps = confirmed.steps
    numbered = {re.sub(r"\d+", "n", step) for step in steps}
    assert {"random cases n of n", "timing case n of n"} <= numbered
    counts = [int(step.split()[2]) for step in steps if step.startswith("random cases ")]
    assert counts == sorted(counts)
    assert max(counts, default=0) in range(1, 121)
    assert confirmed.last_step == ""


@pytest.mark.soak
def test_an_audit_keeps_every_check_and_is_timed_as_briefly_as_a_trial(
    faulty: FaultyKernels,
) -> None:
    made = planner().proposal(7300, Configuration({"FAULT": "none"}), confirm=True)
    cases = tuple(job for job in made.cases if job.role != RANDOM)
    outcome = faulty.run_proposal(dataclasses.replace(made, audit=True, cases=cases))
    assert outcome.ok, outcome
    compared = {(check.case, check.inputs) for check in outcome.checks}
    for kind in ("normal", "needle", "ramp", "large_logits"):
        assert {("(1,2,64,32) causal", kind), ("(3,9/3,63,32) full", kind)} <= compared
    assert ("(1,2,64,32) causal", "replayed normal") in compared
    assert outcome.measurements[0].samples <= 25


@pytest.mark.soak
def test_a_champion_meets_shapes_that_the_search_never_saw(faulty: FaultyKernels) -> None:
    assert faulty.run("wrong_when_long").ok
    made = planner().proposal(7100, Configuration({"FAULT": "wrong_when_long"}), confirm=True)
    outcome = faulty.run_proposal(made)
    assert outcome.kind is OutcomeKind.WRONG_RESULT
    assert re.search(r"out is off by .* \(random test \d+ of 120\)$", outcome.reason)
    assert [check.status for check in outcome.checks].count("failed") == 1


@pytest.mark.soak
def test_a_champion_is_right_without_a_mask_too_although_only_causal_is_tuned(
    faulty: FaultyKernels,
) -> None:
    assert faulty.run("wrong_without_mask").ok
    made = planner().proposal(7200, Configuration({"FAULT": "wrong_without_mask"}), confirm=True)
    outcome = faulty.run_proposal(made)
    assert outcome.kind is OutcomeKind.WRONG_RESULT
    assert re.match(r"\(\S+\) full, \w+ inputs: out is off by ", outcome.reason)


def test_dropped_proposals_never_come_back_and_new_ones_do(faulty: FaultyKernels) -> None:
    for fault in ("infinite_loop", "none", "nan"):
        faulty.executor.submit(faulty.proposal(fault))
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert faulty.executor.poll(0.1) == []
    faulty.executor.drop()
    assert faulty.run("none").ok  # `run` asserts the number of the trial


@pytest.mark.soak
def test_a_worker_that_cannot_start_is_a_problem_of_the_machine(tmp_path: Path) -> None:
    executor = open_executor(tmp_path, problem="no-such-problem")
    try:
        with pytest.raises(EnvironmentProblem, match=r"does not start: .*no-such-problem"):
            executor.time_baselines([])
    finally:
        executor.close()


_BREAKS_A_BASELINE = """
from evotune.problems import attention_torch

def refuse(of_case):
    raise ValueError("no copies during a capture")

attention_torch._unfused = refuse
"""


@pytest.mark.soak
def test_a_baseline_that_fails_is_left_out_and_a_fresh_worker_times_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_BREAKS_A_BASELINE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    executor = open_executor(tmp_path)
    try:
        cases = load_setup(SPACE, "cpu").cases[TIMED][:1]
        timings = {each.name: each for each in executor.time_baselines(cases).timings}
    finally:
        executor.close()
    assert timings["sdpa:math"].passed
    assert timings["unfused"].reason == "unfused: ValueError: no copies during a capture"
    assert not timings["unfused"].passed


@pytest.mark.soak
def test_a_worker_that_raises_three_times_in_a_row_ends_the_run(tmp_path: Path) -> None:
    kernels = FaultyKernels(tmp_path)
    broken = Argument("int99", value=0)
    try:
        for _ in range(2):
            outcome = kernels.run_proposal(_with_argument(kernels, broken))
            assert outcome.kind is OutcomeKind.WORKER_LOST
            assert "KeyError: 'int99'" in outcome.reason
        with pytest.raises(EnvironmentProblem, match=r"3 times in a row: KeyError: 'int99'"):
            kernels.run_proposal(_with_argument(kernels, broken))
    finally:
        kernels.executor.close()
        kernels.executor.close()  # twice is allowed


@pytest.mark.parametrize(
    ("status", "log", "kind"),
    [
        (-6, "free(): invalid pointer", OutcomeKind.ILLEGAL_ACCESS),
        (-6, "*** stack smashing detected ***: terminated", OutcomeKind.ILLEGAL_ACCESS),
        (-6, "corrupted size vs. prev_size", OutcomeKind.ILLEGAL_ACCESS),
        (-6, "kernel.cpp:9: Assertion `n > 0' failed.", OutcomeKind.LAUNCH_ERROR),
        (-7, "", OutcomeKind.ILLEGAL_ACCESS),
        (-4, "", OutcomeKind.LAUNCH_ERROR),
        (-9, "", None),
        (1, "", None),
        (-40, "", None),
    ],
)
def test_how_a_worker_died_says_what_its_candidate_did(
    status: int, log: str, kind: OutcomeKind | None
) -> None:
    assert crash_kind(status, log) is kind


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("one\ntwo", "two"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n\n'
            "During handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "b.py", line 2\n    run()\n'
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "torch.AcceleratorError: CUDA error: invalid device ordinal",
        ),
    ],
)
def test_of_an_exception_the_line_that_names_it_is_told(log: str, words: str) -> None:
    assert last_words(log) == words


def _with_argument(kernels: FaultyKernels, argument: Argument) -> Proposal:
    proposal = kernels.proposal("none")
    cases = [
        dataclasses.replace(
            case,
            plan=msgspec.structs.replace(case.plan, arguments=(*case.plan.arguments, argument)),
        )
        for case in proposal.cases
    ]
    return dataclasses.replace(proposal, cases=tuple(cases))


def _with_workspace(kernels: FaultyKernels, nbytes: int) -> Proposal:
    proposal = kernels.proposal("none")
    cases = [
        dataclasses.replace(
            case,
            plan=msgspec.structs.replace(case.plan, workspaces=(Workspace("scratch", nbytes),)),
        )
        for case in proposal.cases
    ]
    return dataclasses.replace(proposal, cases=tuple(cases))


@pytest.mark.soak
def test_a_champion_whose_loads_need_more_alignment_than_a_package_has_is_refused(
    faulty: FaultyKernels,
) -> None:
    assert faulty.run("wide_loads").ok  # where all tensors begin at multiples of 256 bytes
    made = planner().proposal(7001, Configuration({"FAULT": "wide_loads"}), confirm=True)
    outcome = faulty.run_proposal(made)
    assert outcome.kind is OutcomeKind.ILLEGAL_ACCESS
    assert "SIGSEGV" in outcome.reason
    assert "inputs at an alignment of 16 bytes, case 1 of" in outcome.reason
