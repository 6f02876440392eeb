from __future__ import annotations

import numpy as np
import pytest

from evotune.search.gaussian_process import Encoder
from evotune.space.search_space import Categorical, IntegerRange, OrderedParameter, PowerOfTwo

ENCODER = Encoder(
    [
        PowerOfTwo("A", 1, 64),
        Categorical("B", ("x", "y", "z")),
        OrderedParameter("ONE", (7,)),
        IntegerRange("N", 0, 5_000_000),
    ]
)


def test_indices_are_exact_and_lead_back() -> None:
    values = {"A": 16, "B": "z", "ONE": 7, "N": 4_999_999}
    assert ENCODER.indices(values) == [4, 2, 0, 4_999_999]
    assert ENCODER.configuration([4, 2, 0, 4_999_999]).to_json() == values
    with pytest.raises(ValueError, match="not in"):
        ENCODER.indices({**values, "A": 3})


def test_a_parameter_with_one_value_has_no_axis() -> None:
    assert len(ENCODER.axes) == 3
    assert len(ENCODER.row({"A": 16, "B": "z", "ONE": 7, "N": 0})) == 3


def test_an_axis_of_millions_of_values_stays_small() -> None:
    assert len(ENCODER.axes[2]) == 1024
    rows = ENCODER.rows([[4, 2, 0, 5_000_000], [0, 0, 0, 2_500_000]])
    assert rows.tolist() == [[4, 2, 1023], [0, 0, 511]]


def test_indices_take_no_more_room_than_they_need() -> None:
    assert ENCODER.no_indices().dtype.itemsize == 4
    assert Encoder([PowerOfTwo("A", 1, 64)]).no_indices().dtype.itemsize == 1
    assert not ENCODER.are_valid(np.array([[7, 0, 0, 0]], dtype=np.uint32))


def test_values_of_different_types_that_look_alike_are_told_apart() -> None:
    assert Encoder([Categorical("X", (1, "1"))]).row({"X": "1"}).tolist() == [1]


def test_an_inactive_value_outside_the_domain_comes_last() -> None:
    stages, wait = OrderedParameter("STAGES", (2, 4)), Categorical("WAIT", ("early",))
    stages.outside, wait.outside = (1,), ("late",)
    encoder = Encoder([stages, wait])
    inactive = {"STAGES": 1, "WAIT": "late"}
    assert encoder.indices(inactive) == [2, 1]
    assert encoder.configuration([2, 1]).to_json() == inactive
    assert [len(axis) for axis in encoder.axes] == [3, 2]
    with pytest.raises(ValueError, match="not in"):
        encoder.indices({"STAGES": 8, "WAIT": "late"})
