"""Runs the checks that follow the timing of a candidate: none may refuse a right kernel."""

from __future__ import annotations

from evotune.backends.base.session import Session
from evotune.verify.gate import Gate, Subject, Verdict, reuse, watch_long_rows
from evotune.verify.pool import InputPool
from evotune.verify.watch import Watch


def judge_timed(
    session: Session,
    gate: Gate,
    pool: InputPool,
    subject: Subject,
    *,
    seed: int,
    verdict: Verdict,
    calls: int,
    watched_runs: int,
) -> None:
    """Takes samples of `calls` calls at one place, or of a call at so many places if it updates
    tensors. Nothing that the kernel started may be at work afterwards."""
    inputs = pool.get(subject.case, "normal", seed)
    buffers = gate.buffers(subject, [inputs])
    if buffers.has_updates:
        buffers = gate.buffers(subject, [inputs] * calls)
    launches = [
        session.bind(subject.kernel, subject.plan, buffers.pointers(number))
        for number in range(len(buffers))
    ]
    for launch in launches:
        launch()
    sampler = buffers.sampler(session, launches if len(launches) > 1 else launches * calls)
    watch = Watch(
        session,
        pool,
        subject.case,
        seed,
        buffers=buffers,
        launches=launches,
        samplers=[sampler],
    )
    for _ in range(watched_runs):
        watch.run()
    gate.judge_watched(subject.case, watch.take(), verdict)
    watch_long_rows(gate, subject.case, watch, verdict)
    gate.alter(subject, buffers, seed, verdict)
    reuse(subject.case, watch, verdict)
    gate.replay(subject, sampler, buffers, seed + 1, verdict)
    assert not session.left_running(sampler.run), (subject.case.label, seed)
