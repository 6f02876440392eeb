"""Compilers that hang, crash or are missing; the processes and files they leave are removed."""

from __future__ import annotations

import select
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.launch import Binary, CompileFailure, CompileJob
from evotune.errors import EnvironmentProblem
from evotune.trial import OutcomeKind
from evotune.workers.compile_pool import CompilePool
from tests.patience import PATIENCE_S, assert_cut_short, limited_compiler, passing_time
from tests.sweeps import swept

from .faulty import SPACE, compile_job, naming, wait_until_unnamed

GXX = shutil.which("g++")
pytestmark = pytest.mark.skipif(GXX is None, reason="needs g++")


class Pool:
    """A compile pool with a compiler of the test's own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = "") -> None:
        if script:
            compiler = folder / "wrapper"
            # The real compiler gets the healthy variant (FAULT=1), linking and --version.
            compiler.write_text(
                "#!/bin/bash\n"
                'case "$*" in *-DFAULT=1\\ *|-shared\\ *|--version|-E\\ -v*) '
                f'exec {GXX} "$@";; esac\n{script}\n'
            )
            compiler.chmod(0o755)
            monkeypatch.setenv("CXX", str(compiler))
        self._pool = CompilePool(
            folder / "logs", folder / "cache", processes=1, timeout_s=PATIENCE_S
        )

    def compile_endless(self, job: CompileJob) -> Binary | CompileFailure:
        """The result of a job whose compiler never ends."""
        with limited_compiler(self._pool, 4.0):
            return self.compile(job)

    def compile(self, job: CompileJob) -> Binary | CompileFailure:
        self._pool.submit(job)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for done, result in self._pool.wait(0.2):
                assert done == job
                return result
        raise AssertionError("no result")

    def close(self) -> None:
        self._pool.close()


FAILURES = {
    "kill -SEGV $$": (OutcomeKind.COMPILE_CRASH, "the compiler died of SIGSEGV"),
    "echo 'x.cpp:7:1: internal compiler error: in expand_expr, at expr.c:9' >&2; exit 1": (
        OutcomeKind.COMPILE_CRASH,
        "internal compiler error: in expand_expr",
    ),
    "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1": (
        OutcomeKind.COMPILE_CRASH,
        "Killed signal terminated program",
    ),
    "exit 3": (OutcomeKind.COMPILE_ERROR, "the compiler ended with status 3"),
    "exit 0": (OutcomeKind.COMPILE_ERROR, "the compiler ended with status 0"),
    'ulimit -v 60000; exec g++ "$@"': (OutcomeKind.COMPILE_CRASH, "memory"),
}
SOON = ("kill -SEGV $$", "exit 3", "exit 0")
"""`make test` takes these; `make soak` takes all."""


@pytest.mark.parametrize("script", swept(FAILURES, SOON.__contains__))
def test_a_compiler_that_fails_fails_its_job_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    kind, reason = FAILURES[script]
    pool = Pool(tmp_path, monkeypatch, script)
    try:
        failure = pool.compile(compile_job("nan"))
        assert isinstance(failure, CompileFailure)
        assert failure.kind is kind, failure
        assert reason in failure.reason + failure.log
        assert isinstance(pool.compile(compile_job("none")), Binary)
    finally:
        pool.close()


@pytest.mark.soak
def test_a_slow_compiler_is_stopped_with_all_its_children_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """g++ is a driver: the cc1plus that it starts takes the time, and must be killed. The pool does
    not wait for a child that never ends."""
    pool = Pool(tmp_path, monkeypatch, f'{GXX} "$@" & sleep infinity; true')
    try:
        failure = pool.compile_endless(compile_job("slow_compile"))
        assert isinstance(failure, CompileFailure)
        assert_cut_short(failure, OutcomeKind.COMPILE_TIMEOUT, "ran longer than 4 s")
        assert isinstance(pool.compile(compile_job("none")), Binary)
        assert not [words for words in naming(str(tmp_path)) if "slow" in words or "cc1" in words]
    finally:
        pool.close()
    assert not wait_until_unnamed(str(tmp_path))
    assert not (tmp_path / "logs" / "scratch").exists()


def test_a_compiler_that_never_stops_talking_leaves_a_short_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo 'x.cpp:1:1: error: the cause'; head -c 9000000 /dev/zero | tr '\\0' x; exit 1"
    pool = Pool(tmp_path, monkeypatch, script)
    try:
        failure = pool.compile(compile_job("nan"))
        assert isinstance(failure, CompileFailure)
        assert failure.reason == "x.cpp:1:1: error: the cause"
        assert len(failure.log) < 20_000
    finally:
        pool.close()


def test_the_second_compile_of_a_job_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path, monkeypatch)
    try:
        first, second = (pool.compile(compile_job("none")) for _ in range(2))
        assert isinstance(first, Binary)
        assert isinstance(second, Binary)
        assert (first.cached, second.cached) == (False, True)
        assert (first.sha256, first.resources) == (second.sha256, second.resources)
    finally:
        pool.close()


def test_another_compiler_version_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for version in ("1.0", "2.0", "1.0"):
        script = tmp_path / "versioned"
        script.write_text(
            f'#!/bin/bash\n[ "$1" = --version ] && echo g++ {version} && exit\nexec {GXX} "$@"\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        pool = Pool(tmp_path, monkeypatch)
        try:
            results.append(pool.compile(compile_job("none")))
        finally:
            pool.close()
    assert [isinstance(result, Binary) and result.cached for result in results] == [
        False,
        False,
        True,
    ]


def test_a_source_edited_after_it_was_read_does_not_enter_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(SPACE.parent, tmp_path / "space")
    job = compile_job("none", copy / "faulty.yaml")
    source = copy / "kernels" / "faulty_attention.cpp"
    before = source.read_bytes()
    source.write_bytes(before + b"// edited\n")
    pool = Pool(tmp_path, monkeypatch)
    try:
        failure = pool.compile(job)
        assert isinstance(failure, CompileFailure)
        assert "sources changed" in failure.reason
        source.write_bytes(before)
        result = pool.compile(job)
        assert isinstance(result, Binary)
        assert not result.cached
    finally:
        pool.close()


def test_a_compiler_that_vanishes_is_a_problem_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    pool = Pool(tmp_path, monkeypatch)
    try:
        with pytest.raises(EnvironmentProblem, match=r"CXX .* was not found; install one"):
            pool.compile(compile_job("none"))
    finally:
        pool.close()


def test_a_cache_that_cannot_be_written_is_a_problem_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    pool = Pool(tmp_path, monkeypatch)
    try:
        with pytest.raises(EnvironmentProblem, match=r"cannot compile: .*then resume"):
            pool.compile(compile_job("none"))
    finally:
        pool.close()


def test_compile_processes_that_raise_time_after_time_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(tmp_path, monkeypatch)
    job = compile_job("none")
    try:
        for language in ("fortran", "basic"):
            failure = pool.compile(msgspec.structs.replace(job, language=language))
            assert isinstance(failure, CompileFailure)
            assert failure.kind is OutcomeKind.COMPILE_CRASH
        with pytest.raises(EnvironmentProblem, match="no compiler for language lisp"):
            pool.compile(msgspec.structs.replace(job, language="lisp"))
    finally:
        pool.close()


def test_a_compiler_sees_no_gpu(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path / "logs", tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    try:
        pool.submit(compile_job("none"))
        pool.start_queued()
        (child,) = pool._busy
        environment: list[bytes] = []
        while len(environment) < 2:  # there is none while the process is being made
            environment = Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")
    finally:
        pool.close()
    assert b"CUDA_VISIBLE_DEVICES=" in environment


def test_the_same_job_is_compiled_once_however_often_it_is_submitted(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path / "logs", tmp_path / "cache", processes=2, timeout_s=PATIENCE_S)
    job = compile_job("none")
    try:
        for _ in range(5):
            pool.submit(job)
        assert pool.queued == 1
        results = []
        deadline = time.monotonic() + PATIENCE_S
        while (pool.queued or pool.running) and time.monotonic() < deadline:
            results += pool.wait(0.2)
        assert len(results) == 1
    finally:
        pool.close()


def test_a_result_that_waited_is_no_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process may have waited for something else, second after second."""
    pool = CompilePool(tmp_path / "logs", tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    try:
        pool.warm("cpp")
        assert select.select(pool._idle, [], [], PATIENCE_S)[0], "it has started"
        pool.submit(compile_job("compile_error"))
        pool.start_queued()
        assert select.select(pool.children(), [], [], PATIENCE_S)[0], "it has a result"
        results = []
        let_pass = passing_time(monkeypatch)
        while not results:
            let_pass(1.0)
            results = pool.expire()
        ((_, result),) = results
        assert isinstance(result, CompileFailure)
        assert "this kernel does not compile" in result.reason
    finally:
        pool.close()


def test_a_compiler_that_was_stopped_with_this_process_is_not_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the container of all processes is paused."""
    with limited_compiler(Pool(tmp_path, monkeypatch)._pool, 100.0) as pool:
        try:
            pool.submit(compile_job("none"))
            pool.start_queued()
            passing_time(monkeypatch)(10_000.0)
            assert pool.expire() == []
            assert pool.running == 1
        finally:
            pool.close()


def test_a_killed_run_s_folder_that_cannot_be_removed_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers that are about to die may still write into it."""
    left = tmp_path / "logs" / "scratch" / "left"
    left.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        pool = Pool(tmp_path, monkeypatch)
    assert left.exists()
    pool.close()
