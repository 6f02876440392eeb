from __future__ import annotations

import ctypes
import itertools
import json
from pathlib import Path

import msgspec
import pytest
import torch

from evotune.backends.base.launch import (
    Argument,
    CompileFailure,
    CompileJob,
    DeviceProfile,
    Launch,
    LaunchPlan,
    Workspace,
)
from evotune.backends.base.session import Intervention, LaunchFailure
from evotune.backends.cpu import cpp_compiler, cpu_profile
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import STEP_BYTES, CpuSampler, CpuSession
from evotune.errors import EnvironmentProblem
from evotune.trial import OutcomeKind
from evotune.util.processes import describe_status
from tests.patience import PATIENCE_S

PLAN = LaunchPlan("scale", (Argument("tensor", "x"), Argument("float32", value=2.5)), (), ())


def _job(root: Path, **defines: int) -> CompileJob:
    return CompileJob("cpp", str(root), "k.cpp", tuple(defines.items()), (), "native", "")


def test_a_kernel_is_compiled_loaded_bound_and_timed(tmp_path: Path) -> None:
    import torch

    (tmp_path / "k.cpp").write_text(
        'extern "C" void scale(float* x, float f) { for (int i = 0; i < N; ++i) x[i] *= f; }'
    )
    library = tmp_path / "k.so"
    resources = CpuCompiler().compile(_job(tmp_path, N=4), library, PATIENCE_S)
    assert not isinstance(resources, CompileFailure), resources
    assert resources["code_bytes"] == library.stat().st_size
    session = CpuSession()
    x = torch.ones(5)
    launch = session.bind(session.load(library, PLAN), PLAN, {"x": x.data_ptr()})
    launch()
    assert x.tolist() == [2.5, 2.5, 2.5, 2.5, 1.0]
    sampler = session.sampler([launch, launch])
    assert sampler.time_us() > 0
    sampler.run()
    assert x.tolist() == [2.5**5] * 4 + [1.0]  # 1 + 2 + 2 launches
    json.dumps(dict(session.state()))


def test_a_source_is_taken_for_cpp_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "kernel.inc").write_text('extern "C" void f() {}\n')
    job = msgspec.structs.replace(_job(tmp_path), source="kernel.inc")
    assert not isinstance(CpuCompiler().compile(job, tmp_path / "k.so", PATIENCE_S), CompileFailure)


def test_an_error_names_its_line_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text("int f() {\n  return missing;\n}\n")
    failure = CpuCompiler().compile(_job(tmp_path), tmp_path / "k.so", PATIENCE_S)
    assert isinstance(failure, CompileFailure)
    assert failure.kind is OutcomeKind.COMPILE_ERROR
    assert failure.reason.startswith("k.cpp:2:10: error: 'missing' was not declared")
    assert str(tmp_path) not in failure.reason + failure.log


def test_headers_are_found_from_the_including_file_only(tmp_path: Path) -> None:
    """If the root were searched as well, `<common/h.h>` would include a file that no scan saw."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "h.h").touch()
    (tmp_path / "k.cpp").write_text("#include <common/h.h>\n")
    assert isinstance(
        CpuCompiler().compile(_job(tmp_path), tmp_path / "k.so", PATIENCE_S), CompileFailure
    )


def test_what_is_no_library_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "k.so").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(LaunchFailure, match="cannot load entry scale"):
        CpuSession().load(tmp_path / "k.so", PLAN)


def test_a_function_that_is_not_there_is_named_with_what_may_be_wrong() -> None:
    with pytest.raises(LaunchFailure, match=r"no such function; is it extern \"C\"\?"):
        CpuSession().load(Path("libc.so.6"), PLAN)


def test_a_function_of_another_library_is_none_of_the_kernels(tmp_path: Path) -> None:
    """Otherwise a space could call `kill` as its entry, with arguments and without any source from
    elsewhere."""
    (tmp_path / "k.cpp").write_text(
        "#include <cstdlib>\n#include <omp.h>\n"
        'extern "C" void scale(float*, float) { if (omp_in_parallel()) std::abort(); }\n'
    )
    library = tmp_path / "k.so"
    assert not isinstance(
        CpuCompiler().compile(_job(tmp_path), library, PATIENCE_S), CompileFailure
    )
    CpuSession().load(library, PLAN)
    for entry in ("kill", "system", "omp_get_num_threads"):
        with pytest.raises(LaunchFailure, match=f"cannot load entry {entry}: .* no such function"):
            CpuSession().load(library, msgspec.structs.replace(PLAN, entry=entry))


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [("int32", 2**31 - 1, True), ("int32", 2**31, False), ("int64", 2**63, False)],
)
def test_an_integer_argument_is_never_cut_off(kind: str, value: int, fits: bool) -> None:
    plan = LaunchPlan("f", (Argument(kind, value=value),), (), ())
    if fits:
        assert CpuSession().bind(lambda x: x.value, plan, {})() == value
    else:
        with pytest.raises(LaunchFailure, match=f"{value} does not fit {kind}"):
            CpuSession().bind(print, plan, {})


def test_the_float_environment_is_reset_before_a_kernel_is_loaded(tmp_path: Path) -> None:
    import ctypes

    upward, nearest = 0x800, 0  # x86
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "fesetround") or cpu_profile.profile().arch.startswith("aarch64"):
        pytest.skip("needs x86 glibc")
    libc.fesetround(upward)
    try:
        with pytest.raises(LaunchFailure):
            CpuSession().load(tmp_path / "none.so", PLAN)
        assert libc.fegetround() == nearest
    finally:
        libc.fesetround(nearest)


def test_a_missing_or_broken_compiler_is_an_error_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"a C\+\+ compiler was not found; install one"):
        CpuCompiler()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(EnvironmentProblem, match=r"does not run .*; set CXX to one that does"):
        CpuCompiler().version()


def test_the_threads_are_those_the_user_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cpu_profile.threads() == 1
    for value in ("1000000", "0", "all", "2,1"):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert cpu_profile.threads() >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cpu_profile.threads() >= 1


def test_the_profile_survives_json() -> None:
    profile = cpu_profile.profile()
    assert DeviceProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
    assert profile.peak_gflops > 0
    assert profile.attributes["l1_bytes"] >= 8 << 10


def test_plans_and_jobs_cross_processes() -> None:
    plan = LaunchPlan(
        "f",
        (Argument("tensor", "q"), Argument("int64", value=3)),
        (Workspace("scratch", 64, "zero_once"),),
        (Launch((1, 2, 3), (32,), 1024, "f"), Launch((4,), (64,), 0, "merge")),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=LaunchPlan) == plan
    job = CompileJob("cpp", "/r", "k.cpp", (("N", 4),), ("-O2",), "sm_89", "ff")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=CompileJob) == job
    failure = CompileFailure(OutcomeKind.COMPILE_CRASH, "why", "log", 1.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(failure), type=CompileFailure) == failure


def test_a_status_is_told_in_words() -> None:
    assert describe_status(-11) == "died of SIGSEGV"
    assert describe_status(-40) == "died of signal 40"
    assert describe_status(3) == "ended with status 3"


def test_the_machine_code_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    codes = []
    for name in ("one", "another"):
        root = tmp_path / name
        root.mkdir()
        (root / "part.h").write_text("static int g(int x) { assert(x > N); return x; }")
        (root / "k.cpp").write_text(
            '#include <cassert>\n#include "part.h"\n'
            'extern "C" const char* f(int x) { assert(g(x) != 3); return __FILE__; }'
        )
        CpuCompiler().compile(_job(root, N=3), root / "k.so", PATIENCE_S)
        codes.append((root / "k.so").read_bytes())
    assert codes[0] == codes[1]
    assert str(tmp_path).encode() not in codes[0]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("g++ (SUSE Linux) 7.5.0", False),
        ("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-18)", True),
        ("clang version 9.0.1-12", False),
        ("Ubuntu clang version 14.0.0-1ubuntu1", True),
        ("a compiler", False),
    ],
)
def test_a_compiler_that_cannot_take_the_folder_out_is_not_asked_to(
    monkeypatch: pytest.MonkeyPatch, line: str, known: bool
) -> None:
    monkeypatch.setattr(cpp_compiler, "_first_line", lambda path: line)
    assert cpp_compiler._maps_prefixes("g++") is known


@pytest.mark.parametrize(("calls", "most"), [(20, 1), (9, 1), (5, 2), (2, 8)])
def test_inputs_change_between_calls_one_write_a_pause(calls: int, most: int) -> None:
    """Otherwise a kernel that works only after long pauses would be right whenever it is
    watched."""
    target = torch.zeros(8)
    seen: list[int] = []
    sampler = CpuSampler([lambda: seen.append(int(target.sum()))] * calls, lambda: None)
    writes = [(target[None, n : n + 1], torch.ones(1, 1)) for n in range(8)]
    sampler.watch([Intervention(0, calls, (calls - 1) / calls, writes)], 1.0)
    assert target.tolist() == [1.0] * 8
    assert seen[0] == 0, "the first call of a place finds its inputs as they were"
    assert seen[-1] == 8
    assert max(after - before for before, after in itertools.pairwise(seen)) == most


def test_all_writes_before_calls_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time since the launch before, a kernel could tell a write to its inputs from none, or
    one element from many."""
    memory = torch.arange(4096.0)
    whole = memory.clone()
    made: list[int] = []
    move = ctypes.memmove
    sampler = CpuSampler([lambda: made.append(0)] * 20, lambda: None)

    def noted(target: int, source: int, nbytes: int) -> None:
        made.append(nbytes)
        move(target, source, nbytes)

    writes = [
        (memory[None, place : place + count], -memory[None, place : place + count].clone())
        for place, count in ((70, 1), (71, 1), (3000, 130), (300, 17))
    ]
    for place, count in ((70, 1), (71, 1), (3000, 130), (300, 17)):
        whole[place : place + count] *= -1
    monkeypatch.setattr(sampler, "_before", lambda: setattr(ctypes, "memmove", noted))
    try:
        sampler.watch([Intervention(0, 20, 0.9, writes)], 1.0)
        written, made[:] = made[:], []
        sampler.run()
    finally:
        ctypes.memmove = move
    assert memory.equal(whole)
    calls = [STEP_BYTES, 0] * 20
    assert made == calls
    assert written[-len(calls) :] == calls
    assert len(written) == len(calls) + len(writes), "each is undone before the row begins"
