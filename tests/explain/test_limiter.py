"""The limiter: each planted cause is named first, and nothing is named without evidence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.evidence import Ceilings, Work
from evotune.backends.cpu import CpuBackend
from evotune.explain.findings import Limiter, Roofline
from evotune.explain.limiter_rules import Case, limiter_of
from evotune.explain.roofline import roofline_of
from evotune.explain.sentences import held_text
from evotune.problems import create_problem
from evotune.runs.evidence_gathering import CountsExponentials

from .planted import CASE, CEILINGS, DEVICE, gathered, launch

ROOT = Path(__file__).parents[2]


def held_by(found: object, *, ceilings: Ceilings = CEILINGS, time_us: float = 10.0) -> Limiter:
    evidence = found.evidence  # type: ignore[attr-defined]
    roofline = roofline_of(
        CASE,
        time_us,
        found.work,  # type: ignore[attr-defined]
        dtype="float16",
        evidence=evidence,
        ceilings=ceilings,
        attributes=DEVICE["attributes"],
    )
    return limiter_of(Case(roofline, found, DEVICE["attributes"]))  # type: ignore[arg-type]


def test_rows_without_padding_are_bank_conflicts() -> None:
    busy = launch(pipes={"shared": 0.9, "tensor": 0.2}, conflicts=0.6)
    found = held_by(gathered(busy))
    assert found.name == "bank conflicts"
    assert found.share == pytest.approx(0.54)
    assert "60% of the passes" in found.evidence[0].text
    assert found.evidence[0].kind == "measured"


def test_conflicts_show_in_waits_where_no_unit_is_busy() -> None:
    waiting = launch(
        stalls={"short_scoreboard": 4.0, "mio_throttle": 2.0, "wait": 1.0}, conflicts=0.4
    )
    assert held_by(gathered(waiting)).name == "bank conflicts"


def test_a_wait_that_has_no_words_yet_is_named_as_it_is() -> None:
    found = held_by(gathered(launch(stalls={"drain": 6.0, "wait": 2.0})))
    assert held_text(found) == "It is limited by latency: 75% of a warp's waits are for drain."


def test_one_stage_is_latency_of_loads() -> None:
    found = held_by(gathered(launch(stalls={"long_scoreboard": 6.0, "wait": 1.0})))
    assert found.name == "latency: long_scoreboard"
    assert "for global or local memory" in found.evidence[0].text


def test_spilling_launch_bounds_are_spills_whatever_else_is_busy() -> None:
    found = held_by(gathered(launch(pipes={"l2": 0.8, "tensor": 0.2}, local=24)))
    assert found.name == "spills"
    assert found.share == pytest.approx(0.24)
    assert "24 of 100 instructions in the innermost loops are spills" in found.evidence[0].text
    assert found.rule == "spills are at least 5% of the instructions in the innermost loops"


def test_spills_are_counted_by_their_bytes_where_only_ptx_was_read() -> None:
    """The assembler spills, so PTX shows none."""
    item = launch(counted=False)
    assert item.static is not None
    view = msgspec.structs.replace(
        item.static,
        instructions={"alu": 150, "tensor": 10},
        loop_instructions={"alu": 50, "tensor": 8},
        spill_load_bytes=80,
        spill_store_bytes=80,
        source="ptx",
    )
    found = held_by(gathered(msgspec.structs.replace(item, static=view)))
    assert found.name == "spills"
    assert "40 of 200 instructions in the code are spills; 160 bytes" in found.evidence[0].text
    assert found.rule == "spills are at least 5% of the instructions in the code"


def test_registers_that_a_cpus_function_saves_once_are_no_spills() -> None:
    """The code of a softmax on a CPU: 144 quarters of its bytes would be a fourth of it."""
    item = launch(counted=False)
    assert item.static is not None
    view = msgspec.structs.replace(
        item.static,
        instructions={"load": 58, "store": 34, "vector": 35, "fma": 18, "other": 311},
        loop_instructions={"load": 8, "store": 6, "vector": 17, "fma": 12, "other": 37},
        registers=0,
        spill_load_bytes=192,
        spill_store_bytes=384,
        source="objdump 2.40",
    )
    found = held_by(gathered(msgspec.structs.replace(item, static=view)))
    assert found.name != "spills"


def test_a_ceiling_that_the_kernel_exceeds_does_not_hold_it() -> None:
    """A copy that was timed on a busy machine: the kernel moves its bytes three times as fast."""
    found = roofline_of(
        CASE,
        100.0,
        Work(operations=10**6, bytes_moved=3 * 10**8),
        dtype="float32",
        evidence=None,
        ceilings=Ceilings(kind="measured", dram_bytes_per_s=1e12, fma_flops=1e12),
        attributes={},
    )
    assert [unit.name for unit in found.units] == ["FMA"]
    (text,) = found.exceeded
    assert text == (
        "DRAM: the kernel reaches 3 TB/s, more than the measured ceiling of 1 TB/s, which "
        "therefore says nothing"
    )
    assert limiter_of(Case(found, None, {})).name == ""


def test_tensor_cores_that_were_not_counted_are_known_by_the_machine_code() -> None:
    """ncu has no such figure for a GPU, and the work of products is not told of FMA."""
    found = held_by(gathered(launch(pipes={"dram": 0.8})))
    assert found.name == "DRAM"
    assert any("tensor cores" in fact.numbers for fact in found.evidence)


def test_the_busiest_unit_holds() -> None:
    found = held_by(gathered(launch(pipes={"tensor": 0.82, "mufu": 0.4, "dram": 0.1})))
    assert (found.name, found.share) == ("tensor cores", 0.82)


@pytest.mark.parametrize(
    ("mufu", "tensor", "rule"),
    [
        (0.78, 0.75, "the busiest unit, busy for at least 70% of the time"),
        (0.55, 0.48, "the busiest unit, and the only one within ten points that is busy for half"),
    ],
)
def test_the_rule_of_a_unit_is_true_of_its_figures(mufu: float, tensor: float, rule: str) -> None:
    found = held_by(gathered(launch(pipes={"mufu": mufu, "tensor": tensor})))
    assert found.name == "MUFU"
    assert found.rule.startswith(rule)


def test_two_units_that_are_half_busy_hold_together() -> None:
    found = held_by(gathered(launch(pipes={"tensor": 0.6, "mufu": 0.62, "issue": 0.52})))
    assert found.name == "MUFU + tensor cores + issue slots"
    assert found.share == 0.62


def test_a_short_kernel_is_held_by_its_launch() -> None:
    slow = msgspec.structs.replace(CEILINGS, launch_us=4.0)
    found = held_by(gathered(launch(), ceilings=slow), ceilings=slow)
    assert (found.name, found.share) == ("launch", 0.4)


def test_an_empty_launch_is_told_with_its_own_time() -> None:
    """The kernel was timed faster than a launch that the ceilings timed."""
    slow = msgspec.structs.replace(CEILINGS, launch_us=4.0)
    found = held_by(gathered(launch(), ceilings=slow), ceilings=slow, time_us=2.5)
    assert (found.name, found.share) == ("launch", 1.0)
    assert found.evidence[0].text == "1 launch of 4.00 µs when empty, in 2.50 µs"


def test_too_few_blocks_leave_multiprocessors_idle() -> None:
    found = held_by(gathered(launch(blocks=66, waves=0.25)))
    assert found.name == "grid"
    assert found.share == pytest.approx(0.5)


def test_a_unit_that_is_busy_on_half_of_the_multiprocessors_is_busy_half_the_time() -> None:
    """ncu counts a multiprocessor's units while it has work."""
    found = held_by(gathered(launch(blocks=66, waves=0.25, pipes={"tensor": 0.9})))
    assert (found.name, found.share) == ("grid", pytest.approx(0.5))


def test_a_nearly_empty_last_wave_is_idle_too() -> None:
    """36 blocks are left for 132 multiprocessors."""
    found = held_by(gathered(launch(blocks=300, waves=300 / 264)))
    assert (found.name, round(found.share or 0, 2)) == ("grid", 0.36)


def test_a_last_wave_with_a_block_on_each_multiprocessor_leaves_none_idle() -> None:
    """Of four that it could hold."""
    made = launch(blocks=660, waves=660 / 528)
    assert made.occupancy is not None
    four = msgspec.structs.replace(made.occupancy, blocks_per_multiprocessor=4)
    assert held_by(gathered(msgspec.structs.replace(made, occupancy=four))).name != "grid"


def test_multiprocessors_that_were_counted_busy_are_not_idle_by_their_waves() -> None:
    """Blocks that end at different times fill a nearly empty last wave."""
    made = launch(blocks=300, waves=1.14)
    assert made.counters is not None
    counters = msgspec.structs.replace(made.counters, multiprocessors_busy=0.9)
    assert held_by(gathered(msgspec.structs.replace(made, counters=counters))).name != "grid"


def test_shares_are_of_the_calls_time_not_of_the_time_with_work() -> None:
    """A short kernel: under the profiler its start is 43% of the time, in a graph 28%."""
    made = launch(pipes={"tensor": 0.6}, stalls={"wait": 1.2, "short_scoreboard": 0.5})
    assert made.counters is not None
    counters = msgspec.structs.replace(made.counters, time_us=5.76, multiprocessors_busy=0.566)
    short = msgspec.structs.replace(made, counters=counters)
    found = held_by(gathered(short), time_us=4.5)
    assert found.name == "latency: wait"
    assert any("no work for 43% of the 5.8 µs" in fact.text for fact in found.evidence)
    (busy,) = (fact.numbers["tensor cores"] for fact in found.evidence if "busy part" in fact.text)
    assert busy == pytest.approx(0.6 * 0.566 * 5.76 / 4.5)


def test_a_unit_that_was_counted_idle_is_not_busy_by_the_model() -> None:
    """All exponentials are polynomials on the FMA pipe."""
    made = launch(pipes={"tensor": 0.3, "fma": 0.4, "mufu": 0.0})
    slow = msgspec.structs.replace(CEILINGS, exp2_per_s=3e11)
    assert held_by(gathered(made), ceilings=slow).name == "latency: long_scoreboard"
    uncounted = launch(pipes={"tensor": 0.3, "fma": 0.4})
    assert held_by(gathered(uncounted), ceilings=slow).name == "MUFU"


def test_a_unit_by_the_model_is_not_told_with_the_counters_of_others() -> None:
    slow = msgspec.structs.replace(CEILINGS, exp2_per_s=3e11)
    found = held_by(gathered(launch(pipes={"tensor": 0.3, "fma": 0.4})), ceilings=slow)
    assert held_text(found) == (
        "It is limited by MUFU: the problem's own work alone needs it for 70% of the time."
    )
    assert found.evidence[0].numbers["MUFU"] == pytest.approx(0.7)
    assert [fact.kind for fact in found.evidence] == ["model", "measured"]


def test_without_counters_the_model_names_memory() -> None:
    """134 MB in 34 µs at 4 TB/s: the decode shape."""
    item = gathered(launch(counted=False))
    item = msgspec.structs.replace(
        item, work=msgspec.structs.replace(item.work, bytes_moved=134_000_000, exponentials=0)
    )
    found = held_by(item, time_us=34.0)
    assert found.name == "DRAM"
    assert {fact.kind for fact in found.evidence} == {"model"}


def test_few_warps_are_latency_only_where_the_work_is_little() -> None:
    few = gathered(launch(counted=False, warps=12))
    unknown = msgspec.structs.replace(CEILINGS, launch_us=None)
    assert held_by(few).name == "latency"
    assert held_by(few, ceilings=unknown, time_us=1.5).name == ""  # 0.4 of the tensor cores


def test_nothing_is_named_without_support() -> None:
    found = held_by(gathered(launch(counted=False, warps=40)))
    assert (found.name, found.share) == ("", None)
    nothing = limiter_of(Case(None, None, {}))
    assert (nothing.name, nothing.evidence) == ("", ())


def test_buffers_that_fit_the_l2_cache_do_not_count_for_dram() -> None:
    item = gathered(launch(counted=False))
    roofline = roofline_of(
        CASE,
        10.0,
        item.work,
        dtype="float16",
        evidence=item.evidence,
        ceilings=CEILINGS,
        attributes=DEVICE["attributes"],
    )
    names = {unit.name for unit in roofline.units}
    assert "L2" in names
    assert "DRAM" not in names


def test_exponentials_are_work_of_a_cpus_fma_units() -> None:
    """A softmax: five FLOP and an exponential for each element."""
    softmax = Work(operations=5 * 10**6, bytes_moved=8 * 10**6, exponentials=10**6)

    def rooflined(exponential_flops: float) -> Roofline:
        return roofline_of(
            CASE,
            100.0,
            softmax,
            dtype="float32",
            evidence=None,
            ceilings=Ceilings(kind="measured", dram_bytes_per_s=1e12, fma_flops=2.5e11),
            attributes={},
            exponential_flops=exponential_flops,
        )

    without, counted = rooflined(0.0), rooflined(CpuBackend.exponential_flops)
    assert limiter_of(Case(without, None, {})).name == ""
    limiter = limiter_of(Case(counted, None, {}))
    assert (limiter.name, limiter.share) == ("FMA", pytest.approx(21e6 / 2.5e11 / 100e-6))
    assert counted.exponentials == 10**6


@pytest.mark.parametrize(
    "problem", ["softmax/problem.py:Softmax", "cross_entropy/problem.py:CrossEntropy"]
)
def test_shipped_problems_count_their_exponentials(problem: str) -> None:
    found = create_problem(f"kernels/{problem}", "float32", ROOT)
    assert isinstance(found, CountsExponentials)
    sizes = dict(zip(found.sizes, (3, 5), strict=True))  # type: ignore[attr-defined]
    assert found.count_exponentials(found.case(sizes, {})) == 15  # type: ignore[attr-defined]
