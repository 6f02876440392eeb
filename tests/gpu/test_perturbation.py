"""Races that seldom show on a GPU: disturbed launches show them, and the right kernel passes.

The kernel adds up rows of the input through shared memory; the fault, if any, is compiled in. It is
disturbed in the ways that a champion is, and writes to outputs of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import Argument, CompileFailure, CompileJob, Launch, LaunchPlan
from evotune.backends.base.session import Disturb, LaunchFailure, Session
from evotune.backends.cuda.cuda_session import read_limits
from evotune.backends.cuda.discovery import open_profile
from evotune.backends.cuda.perturbed_build import build
from evotune.workers.compile_worker import compiler_for
from evotune.workers.device_worker import open_session

pytestmark = pytest.mark.gpu

# out[row][t] is the sum of tile[i][255 - t] over the tiles i of a row.
SOURCE = r"""
__device__ __forceinline__ void copy(unsigned to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from) : "memory");
}
extern "C" __global__ void __launch_bounds__(256) sums(const float* in, float* out, int tiles) {
  __shared__ float tile[3][256];
  __shared__ float unset[256];
  const float* row = in + (size_t)blockIdx.x * tiles * 256;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&tile[0][threadIdx.x]);
  copy(at, row + threadIdx.x);
  asm volatile("cp.async.commit_group;\n" ::: "memory");
  float sum = 0.0f;
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) copy(at + 1024 * ((i + 1) % 2), row + 256 * (i + 1) + threadIdx.x);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#if FAULT == 1  // one group too many may be under way
    asm volatile("cp.async.wait_group 2;\n" ::: "memory");
#else
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
#endif
#if FAULT != 2  // copies of other threads are not waited for
    __syncthreads();
#endif
    sum += tile[i % 2][255 - threadIdx.x];
#if FAULT != 3  // the tile may be overwritten while others read it
    __syncthreads();
#endif
  }
#if FAULT == 4  // trusts that shared memory is no NaN
  sum += 0.0f * reinterpret_cast<volatile float*>(unset)[threadIdx.x];
#else
  unset[threadIdx.x] = 0.0f;
  __syncthreads();
  sum += unset[255 - threadIdx.x];
#endif
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""
ROWS, TILES = 264, 64
FAULTS = {"waits_for_one_less": 1, "no_barrier_before": 2, "no_barrier_after": 3, "unset_memory": 4}
PLAN = LaunchPlan(
    "sums",
    (Argument("tensor", "in"), Argument("tensor", "out"), Argument("int32", value=TILES)),
    (),
    (Launch((ROWS,), (256,), 0, "sums"),),
)


@pytest.fixture(scope="module")
def session() -> Session:
    return open_session(open_profile("cuda:0", compile_only=False))


def job(folder: Path, fault: int) -> CompileJob:
    (folder / "sums.cu").write_text(SOURCE)
    arch = open_profile("cuda:0", compile_only=False).arch
    return CompileJob("cuda", str(folder), "sums.cu", (("FAULT", fault),), (), arch, "")


class Tried:
    """The kernel with a given fault. `wrong` has the number of wrong launches among 50, by the
    disturbance."""

    def __init__(self, session: Session, folder: Path, fault: int) -> None:
        self._session = session
        self._in = torch.randn(ROWS, TILES, 256, device="cuda:0")
        self._out = torch.zeros(ROWS, 256, device="cuda:0")
        exact = self._in.double().flip(2).sum(1)
        self._expected = exact
        made = compiler_for("cuda").compile(job(folder, fault), folder / "sums.cubin", 60.0)
        assert not isinstance(made, CompileFailure), made.log
        self.wrong = {"undisturbed": self._count(folder / "sums.cubin", lambda seed: None)}
        for name, enter in session.perturbations().items():
            with enter() as disturb:
                self.wrong[name] = self._count(folder / "sums.cubin", disturb)
        for way, found in build(job(folder, fault), folder, 60.0).items():
            assert isinstance(found, Path), found
            self.wrong[way] = self._count(found, lambda seed: None)
        print(fault, self.wrong)

    def _count(self, path: Path, disturb: Disturb) -> int:
        launch: Callable[[], object] = self._session.bind(
            self._session.load(path, PLAN),
            PLAN,
            {"in": self._in.data_ptr(), "out": self._out.data_ptr()},
        )
        wrong = 0
        for seed in range(50):
            self._out.fill_(float("nan"))
            disturb(seed)
            launch()
            error = (self._out.double() - self._expected).abs().max()
            wrong += int(not bool(error < 1e-3))
        self._session.synchronize()
        return wrong


def tried(session: Session, fault: int) -> Tried:
    with tempfile.TemporaryDirectory() as folder:
        return Tried(session, Path(folder), fault)


def test_a_right_kernel_is_right_whatever_disturbs_it(session: Session) -> None:
    wrong = tried(session, 0).wrong
    assert len(wrong) == 1 + len(session.perturbations()) + 2
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("fault", FAULTS)
def test_a_race_shows_under_some_disturbance(session: Session, fault: str) -> None:
    wrong = tried(session, FAULTS[fault]).wrong
    assert any(count for name, count in wrong.items() if name != "undisturbed"), wrong


def test_late_copies_show_a_wait_that_is_too_short_in_every_launch(session: Session) -> None:
    assert tried(session, FAULTS["waits_for_one_less"]).wrong["late"] == 50


def test_nan_in_shared_memory_shows_what_trusts_it(session: Session) -> None:
    wrong = tried(session, FAULTS["unset_memory"]).wrong
    assert wrong["after NaN in shared memory and registers"] > 0


def test_what_disturbs_ends_by_itself_and_limits_are_as_they_were(session: Session) -> None:
    assert session.take_stock() == ""
    limits = read_limits()
    for enter in session.perturbations().values():
        with enter() as disturb:
            disturb(1)
    torch.cuda.synchronize()
    assert limits
    assert session.take_stock() == ""


def test_ptx_that_the_driver_refuses_is_a_launch_failure(session: Session, tmp_path: Path) -> None:
    (tmp_path / "bad.ptx").write_bytes(b".version 1.0\nnonsense\n\0")
    with pytest.raises(LaunchFailure):
        session.load(tmp_path / "bad.ptx", PLAN)
