"""Fingerprints, compile keys and stored outcomes have the formats of older runs."""

from __future__ import annotations

from evotune.backends.base.launch import (
    Argument,
    Binary,
    CompileJob,
    ConstantMemory,
    DeviceProfile,
    Launch,
    LaunchPlan,
    TensorMap,
    Workspace,
)
from evotune.problems.problem import Case
from evotune.store.opening import encode_json
from evotune.trial import (
    Check,
    Configuration,
    Domain,
    Measurement,
    Outcome,
    OutcomeKind,
    Region,
)
from evotune.workers.executor import EDGE, TIMED, CaseJob, Proposal
from evotune.workers.in_flight import InFlight

JOB = CompileJob(
    language="cuda",
    root="/anywhere",
    source="kernels/k.cu",
    defines=(("BLOCK", 64), ("CAUSAL", 1)),
    options=("--use_fast_math",),
    arch="sm_90a",
    sources_sha256="ab" * 32,
    signature=("pointer", "float32"),
    entries=("forward", "combine"),
)
TRITON_JOB = CompileJob(
    "triton", "/anywhere", "k.py", (), (), "sm_89", "cd" * 32, "kernel", ("*fp16", "i32")
)
PLAN = LaunchPlan(
    entry="forward",
    arguments=(
        Argument("tensor", "q"),
        Argument("tensor_map", "k", tensor_map=TensorMap("float16", (2, 8, 64), (1, 8, 64), 128)),
        Argument("workspace", "partial"),
        Argument("float32", value=1e-05),
        Argument("float64", value=0.08838834764831845),
        Argument("float32", value=1e16),
        Argument("int64", value=-(2**62)),
    ),
    workspaces=(Workspace("partial", 4096), Workspace("counter", 4, "zero_once")),
    launches=(Launch((4, 2, 1), (128, 1, 1), 49152, "forward"), Launch(entry="combine")),
    constant_memory=(ConstantMemory("bias", "mask", 256),),
)
PLAIN = LaunchPlan("forward", (Argument("tensor", "out"),), (), (Launch(),))


def test_a_candidate_has_the_fingerprint_that_it_had_in_older_runs() -> None:
    cases = (
        CaseJob(Case("(1,2,64) causal", {"seq_len": 64}), TIMED, JOB, PLAN, 1000),
        CaseJob(Case("(1,1,7) causal é", {"seq_len": 7}), EDGE, TRITON_JOB, PLAIN, 10),
    )
    item = InFlight(Proposal(1, Configuration({"BLOCK": 64}), cases))
    item.binaries[JOB.key] = Binary("11" * 32, "/cache/1.bin", {"registers": 8}, 1.0)
    # The shared memory that a compiler chooses follows from the code: it is not in a fingerprint.
    item.binaries[TRITON_JOB.key] = Binary("22" * 32, "/2.bin", {"dynamic_shared_bytes": 512}, 1.0)
    assert item.review() == ""
    assert item.fingerprint == "ec5e16ba649d10ad769053979507d028dd8056db4a4dd9f434c0dbddca54f8e8"


def test_a_compile_job_has_the_key_that_it_had_in_older_caches() -> None:
    assert JOB.key == "c97690e4cf5fa3f56025f54a64ad069d48882a724c15e296149bfac676385645"
    assert TRITON_JOB.key == "ace0948115e79167bfe621e89bde7ad161ac4fc21f8a7da40e5908b387dcd9bc"


OUTCOME = Outcome(
    OutcomeKind.OK,
    fitness=0.25,
    fitness_low=0.125,
    fitness_high=0.5,
    reason="why",
    log="words",
    flags=("suspicious",),
    duplicate_of=3,
    measurements=(
        Measurement("a", 1.5, 1.0, "sdpa:math", 2.0, 1.25, 1.0, 1.5, 5, state={"sm_mhz": 1980}),
        Measurement("b", 1.0, 1.0, "x", 2.0, 2.0, 1.0, 3.0, 5, "cold", True, processes=(1.0, 2.0)),
    ),
    checks=(Check("a", "normal", "passed", 1e-05), Check("a", "watched", "skipped", detail="no")),
    stage_s={"compile": 0.5, "load": 1.0},
    resources={"registers": 8, "device": {"throttled_by": []}},
    binary="33" * 32,
    domain=Domain("H200", 132, (Region({"causal": True}, {"seq_len": (64, 4096)}, 7),)),
)


def test_an_outcome_is_stored_in_the_same_bytes() -> None:
    assert encode_json(OUTCOME.to_json()) == TEXT
    assert Outcome.from_text(TEXT) == OUTCOME
    failed = Outcome(OutcomeKind.LAUNCH_ERROR, reason="no")
    assert encode_json(failed.to_json()) == '{"kind":"launch_error","reason":"no"}'


TEXT = (
    '{"kind":"ok","fitness":0.25,"fitness_low":0.125,"fitness_high":0.5,"duplicate_of":3,"rea'
    'son":"why","log":"words","binary":"33333333333333333333333333333333333333333333333333333'
    '33333333333","flags":["suspicious"],"measurements":[{"case":"a","time_us":1.5,"time_min_'
    'us":1.0,"baseline":"sdpa:math","baseline_us":2.0,"speedup":1.25,"speedup_low":1.0,"speed'
    'up_high":1.5,"samples":5,"cache":"warm","held_out":false,"state":{"sm_mhz":1980},"retake'
    's":0,"throttled":false,"eager_us":null,"eager_baseline_us":null,"processes":[]},{"case":'
    '"b","time_us":1.0,"time_min_us":1.0,"baseline":"x","baseline_us":2.0,"speedup":2.0,"spee'
    'dup_low":1.0,"speedup_high":3.0,"samples":5,"cache":"cold","held_out":true,"state":{},"r'
    'etakes":0,"throttled":false,"eager_us":null,"eager_baseline_us":null,"processes":[1.0,2.'
    '0]}],"checks":[{"case":"a","inputs":"normal","status":"passed","max_error":1e-05,"max_li'
    'mit":null,"rms_error":null,"rms_limit":null,"detail":"","rounding":false},{"case":"a","i'
    'nputs":"watched","status":"skipped","max_error":null,"max_limit":null,"rms_error":null,"'
    'rms_limit":null,"detail":"no","rounding":false}],"stage_s":{"compile":0.5,"load":1.0},"r'
    'esources":{"registers":8,"device":{"throttled_by":[]}},"domain":{"device":"H200","multip'
    'rocessors":132,"regions":[{"fixed":{"causal":true},"ranges":{"seq_len":[64,4096]},"cases'
    '":7}],"layout":"contiguous"}}'
)


def test_a_device_is_stored_in_the_same_bytes() -> None:
    profile = DeviceProfile("H200", "cuda", "sm_90a", {"sm_count": 132, "tma": True}, 1e6, "GPU-1")
    text = encode_json(profile.to_json())
    assert text == (
        '{"name":"H200","backend":"cuda","arch":"sm_90a","attributes":{"sm_count":132,'
        '"tma":true},"peak_gflops":1000000.0,"id":"GPU-1","driver":""}'
    )
    assert DeviceProfile.from_json(profile.to_json()) == profile
