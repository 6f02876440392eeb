"""A domain holds the ranges between the cases that were checked, for each binary by itself."""

from __future__ import annotations

import msgspec

from evotune.backends.base.launch import DeviceProfile
from evotune.problems.executed_sizes import holds
from evotune.trial import Domain, Outcome, OutcomeKind, Region
from evotune.verify.kept_checks import checked_domain

from .kernels import PROBLEM, make_case

CPU = DeviceProfile("Test CPU", "cpu", "x86_64", {"threads": 4})
GPU = DeviceProfile("Test GPU", "cuda", "sm_90a", {"multiprocessors": 132})


def test_it_reaches_from_the_least_to_the_most_that_was_met() -> None:
    cases = [make_case(7, causal=True, heads=2), make_case(65, causal=True, heads=9, seq_len_k=3)]
    found = checked_domain(PROBLEM, [("binary", case) for case in cases], GPU)
    assert (found.device, found.multiprocessors, found.layout) == ("Test GPU", 132, "contiguous")
    (region,) = found.regions
    assert region.fixed == {"dtype": "float32", "head_dim": 32, "causal": True}
    assert region.cases == 2
    scale = float(cases[0].symbols["softmax_scale"])
    assert region.ranges == {
        **{"batch": (1, 1), "heads": (2, 9), "group": (1, 1), "seq_len_q": (7, 65)},
        **{"seq_len_k": (3, 7), "softmax_scale": (scale, scale)},
        "elements": (2 * 7 * 32, 9 * 65 * 32),
    }
    assert checked_domain(PROBLEM, [], CPU).multiprocessors == 0


def test_masks_and_binaries_share_no_region() -> None:
    """Binaries that are compiled for 2 heads and for 8 heads say nothing about 4 heads."""
    checked = [
        ("two heads", make_case(5, causal=False, heads=2)),
        ("eight heads", make_case(5, causal=False, heads=8)),
        ("two heads", make_case(9, causal=True, heads=2)),
        ("two heads", make_case(6, causal=False, heads=2)),
    ]
    regions = checked_domain(PROBLEM, checked, CPU).regions
    found = [(r.fixed["causal"], r.ranges["heads"], r.ranges["seq_len_q"]) for r in regions]
    assert found == [
        (False, (2, 2), (5, 6)),
        (False, (8, 8), (5, 5)),
        (True, (2, 2), (9, 9)),
    ]


def test_an_outcome_keeps_it_and_one_of_an_older_store_has_none() -> None:
    region = Region({"causal": False}, {"batch": (1, 9), "eps": (0.1, 0.5)}, 57)
    outcome = Outcome(OutcomeKind.OK, fitness=0.5, domain=Domain("Test GPU", 132, (region,)))
    text = msgspec.json.encode(outcome.to_json()).decode()
    assert Outcome.from_text(text) == outcome
    assert Outcome.from_json(msgspec.json.decode(text)) == outcome
    older = Outcome.from_text('{"kind": "ok", "fitness": 0.5}')
    assert older.domain is None
    assert "domain" not in older.to_json()


def test_it_names_the_ways_in_which_masks_were_broadcast() -> None:
    cases = [
        PROBLEM.case({"batch": batch, "heads": 4, "seq_len": 6, "head_dim": 32}, mask)
        for batch, mask in (
            (2, {"mask": "bool", "mask_heads": 1}),
            (1, {"mask": "bool", "mask_heads": 1}),
            (2, {"mask": "bool", "mask_batch": 1, "mask_rows": 1}),
        )
    ]
    *checked, other = cases
    (region,) = checked_domain(PROBLEM, [("binary", case) for case in checked], CPU).regions
    assert region.mask_sizes == ("batch 1 rows",)
    assert all(holds(region, PROBLEM.place(case)) for case in checked)
    assert not holds(region, PROBLEM.place(other))
    older = msgspec.structs.replace(region, mask_sizes=())
    assert holds(older, PROBLEM.place(other))
