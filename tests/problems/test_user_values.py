"""Inputs of users' problems show kernels that are wrong for some values, and right ones pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evotune.problems.loading import create_problem
from evotune.problems.user import UserProblem
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool

TEXT = """
from evotune.problems import Tensor, UserProblem

class Rows(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows,)}

    def operations(self, rows, columns):
        return rows * columns

class Sum(Rows):
    def compute(self, x):
        return {"out": x.sum(-1)}

class Highest(Rows):
    def compute(self, x):
        return {"out": x.amax(-1)}

class Place(Rows):
    def outputs(self, rows, columns):
        return {"out": Tensor((rows,), "int64")}

    def compute(self, x):
        return {"out": x.argmax(-1)}

class Softmax(Rows):
    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def compute(self, x):
        return {"out": x.softmax(-1)}

class Squares(Softmax):
    def compute(self, x):
        return {"out": x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=1e-6)}

class Long(Place):
    def inputs(self, rows, columns):
        return {"x": Tensor((rows, columns), "int64", range(-(1 << 52), 1 << 52))}

    def compute(self, x):
        return {"out": x.sum(-1)}

class Short(Place):
    def inputs(self, rows, columns):
        return {"x": Tensor((rows, columns), "int32", range(-(1 << 20), 1 << 20))}

    def compute(self, x):
        return {"out": x.sum(-1)}

class Little(Short):
    def inputs(self, rows, columns):
        return {"x": Tensor((rows, columns), "int32", range(-1000, 1001))}

class Narrow(Short):
    def outputs(self, rows, columns):
        return {"out": Tensor((rows,), "int32")}
"""
Way = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def shares(tmp_path: Path) -> Callable[..., float]:
    (tmp_path / "values.py").write_text(TEXT)

    def found(
        name: str, way: Way, *, rows: int, columns: int, dtype: str = "float32", kind: str = ""
    ) -> float:
        """The largest error as a share of the limit, over all kinds of inputs, or the one named,
        and three seeds."""
        problem = create_problem(f"values.py:{name}", dtype, tmp_path)
        assert isinstance(problem, UserProblem)
        case = problem.case({"rows": rows, "columns": columns}, {})
        (out,) = (spec for spec in problem.tensors(case) if spec.is_output)
        worst = 0.0
        for each in [kind] if kind else problem.input_kinds:
            for seed in range(3):
                made = InputPool(problem).get(case, each, seed)
                x = made.inputs["x"]
                value = way(x.float() if x.is_floating_point() else x)
                value = value.to(getattr(torch, out.dtype))
                errors = errors_against(value, made.expected["out"])
                share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
                worst = max(worst, math.inf if math.isnan(share) else share)
        return worst

    return found


def _in_order(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[:, 0])
    for column in x.unbind(1):
        total += column
    return total


def _weights(x: torch.Tensor, exponential: Way = torch.exp) -> torch.Tensor:
    weights = exponential(x - x.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _by_logsumexp(x: torch.Tensor) -> torch.Tensor:
    top = x.amax(-1, keepdim=True)
    return torch.exp(x - (top + torch.exp(x - top).sum(-1, keepdim=True).log()))


def _by_exp2(x: torch.Tensor) -> torch.Tensor:
    return _weights(x * 1.44269504, torch.exp2)


def _online(x: torch.Tensor) -> torch.Tensor:
    top = torch.full_like(x[:, :1], -math.inf)
    total = torch.zeros_like(top)
    for column in torch.split(x, 7, -1):
        higher = torch.maximum(top, column.amax(-1, keepdim=True))
        total = total * torch.exp(top - higher) + torch.exp(column - higher).sum(-1, keepdim=True)
        top = higher
    return torch.exp(x - top) / total


def _wild_exp(below: float) -> Way:
    return lambda x: torch.where(x < -below, torch.exp(x.clamp(min=-1e30) % -80.0), torch.exp(x))


def _first(x: torch.Tensor) -> torch.Tensor:
    """The first place of the highest value, one part of the row after the other."""
    best, place = torch.full_like(x[:, 0], -math.inf), torch.zeros(len(x), dtype=torch.int64)
    for start in range(0, x.shape[1], 64):
        value, at = x[:, start : start + 64].max(-1)
        place = torch.where(value > best, at + start, place)
        best = torch.maximum(best, value)
    return place


def _bits_in_order(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32)
    return torch.where(bits < 0, ~bits | (-1 << 31), bits).argmax(-1)


def _without_last_bit(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~1).view(torch.float32).argmax(-1)


def _last_part_wins(x: torch.Tensor) -> torch.Tensor:
    """Of equal values in parts of 1,024 columns the last part's one."""
    values, places = zip(*(part.max(-1) for part in torch.split(x, 1024, -1)), strict=True)
    best = torch.stack(values, -1)
    part = best.shape[-1] - 1 - best.flip(-1).argmax(-1)
    return torch.stack(places, -1).gather(-1, part[:, None])[:, 0] + 1024 * part


def _in_halves(x: torch.Tensor) -> torch.Tensor:
    """The upper and the lower 32 bits added up apart, without what the lower ones carry."""
    low = (x & 0xFFFFFFFF).sum(-1) & 0xFFFFFFFF
    return ((x >> 32).sum(-1) << 32) + low


RIGHT: list[tuple[str, Way]] = [
    ("Sum", lambda x: x.sum(-1)),
    ("Sum", _in_order),
    ("Sum", lambda x: _in_order(x.flip(1))),
    ("Highest", lambda x: x.amax(-1)),
    ("Place", _first),
    ("Place", lambda x: x.argmax(-1)),
    ("Softmax", lambda x: x.softmax(-1)),
    ("Softmax", _weights),
    ("Softmax", _by_logsumexp),
    ("Softmax", _by_exp2),
    ("Softmax", _online),
    ("Squares", lambda x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=1e-6)),
    ("Squares", lambda x: x * torch.rsqrt(_in_order(x * x)[:, None]).clamp(max=1e6)),
    ("Long", lambda x: x.sum(-1)),
    ("Short", lambda x: x.sum(-1)),
    ("Narrow", lambda x: x.sum(-1)),
]


@pytest.mark.sweep(20)
@pytest.mark.parametrize("dtype", UserProblem.dtypes)
@pytest.mark.parametrize(("name", "way"), RIGHT)
def test_right_ways_are_within_the_limits(
    shares: Callable[..., float], name: str, way: Way, dtype: str
) -> None:
    for rows, columns in ((8, 100), (16, 1000), (3, 2500), (1, 3)):
        assert shares(name, way, rows=rows, columns=columns, dtype=dtype) <= 0.8


WRONG: dict[str, tuple[str, Way]] = {
    "a sum saturates": ("Sum", lambda x: x.sum(-1).clamp(-1e6, 1e6)),
    "a maximum from -1000": ("Highest", lambda x: x.amax(-1).clamp(min=-1e3)),
    "a maximum from -10000": ("Highest", lambda x: x.amax(-1).clamp(min=-1e4)),
    "a maximum of the softmax from -10000": (
        "Softmax",
        lambda x: (
            torch.exp(x - x.amax(-1, keepdim=True).clamp(min=-1e4)).nan_to_num()
            / torch.exp(x - x.amax(-1, keepdim=True).clamp(min=-1e4)).sum(-1, keepdim=True)
        ),
    ),
    "an exponential below -400": ("Softmax", lambda x: _weights(x, _wild_exp(400.0))),
    "an exponential below -1000": ("Softmax", lambda x: _weights(x, _wild_exp(1000.0))),
    "zeros of two signs": ("Place", _bits_in_order),
    "neighbours": ("Place", _without_last_bit),
    "the last of equal ones": ("Place", lambda x: x.shape[1] - 1 - x.flip(1).argmax(-1)),
    "sums in double": ("Long", lambda x: x.double().sum(-1).long()),
    "sums in halves": ("Long", _in_halves),
    "sums in float": ("Short", lambda x: x.float().sum(-1).long()),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_exceed_them(shares: Callable[..., float], name: str) -> None:
    problem, way = WRONG[name]
    for rows, columns in ((8, 100), (16, 1000)):
        assert shares(problem, way, rows=rows, columns=columns) > 1


def test_one_and_the_same_integer_shows_sums_in_float(tmp_path: Path) -> None:
    """A long case has this kind of inputs alone, whatever number the seed draws."""
    (tmp_path / "values.py").write_text(TEXT)
    problem = create_problem("values.py:Little", "float32", tmp_path)
    for rows, columns in ((6, 30_001), (1, 70_001)):
        case = problem.case({"rows": rows, "columns": columns}, {})
        assert problem.random_kinds(case, 0) == ("spike",)
        for seed in range(20):
            x = problem.make_inputs(case, "spike", seed)["x"]
            assert all(len(row.unique()) == 1 for row in x)
            in_float = torch.from_numpy(x.float().numpy().cumsum(-1)[:, -1])
            assert not torch.equal(in_float.double(), x.sum(-1).double())


def test_one_and_the_same_integer_stays_where_its_sums_are_held(tmp_path: Path) -> None:
    (tmp_path / "values.py").write_text(TEXT)
    problem = create_problem("values.py:Narrow", "float32", tmp_path)
    case = problem.case({"rows": 3, "columns": 2500}, {})
    made = (problem.make_inputs(case, "spike", seed)["x"] for seed in range(20))
    assert any(len(x.unique()) == 1 for x in made)


def test_ties_beyond_1024_and_places_beyond_65535_show(shares: Callable[..., float]) -> None:
    assert shares("Place", _last_part_wins, rows=3, columns=2500) > 1
    assert shares("Place", lambda x: x.argmax(-1) % 65536, rows=1, columns=70_000) > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_place_in_half_precision_shows_neighbours(
    shares: Callable[..., float], dtype: str
) -> None:
    def way(x: torch.Tensor) -> torch.Tensor:
        bits = x.to(getattr(torch, dtype)).view(torch.int16) & ~1
        return bits.view(getattr(torch, dtype)).float().argmax(-1)

    assert shares("Place", way, rows=16, columns=300, dtype=dtype) > 1


def test_far_values_are_kept_only_where_float32_is_right(tmp_path: Path) -> None:
    (tmp_path / "values.py").write_text(TEXT)
    shape = {"rows": 64, "columns": 100}
    farthest = {}
    for name in ("Softmax", "Squares", "Sum", "Highest"):
        problem = create_problem(f"values.py:{name}", "float32", tmp_path)
        x = problem.make_inputs(problem.case(shape, {}), "large", 0)["x"]
        farthest[name] = float(x.abs().max())
        assert (x == -1e4).any() == (name in ("Softmax", "Highest"))
    assert farthest["Softmax"] == farthest["Highest"] == pytest.approx(3.4e38, rel=0.01)
    assert 1e6 < farthest["Squares"] == farthest["Sum"] < 2e6


@pytest.mark.parametrize("name", ["Sum", "Softmax"])
def test_the_last_element_of_a_long_row_shows_if_it_is_lost(
    name: str, shares: Callable[..., float]
) -> None:
    """Long cases are tried on spikes alone."""

    def lossy(x: torch.Tensor) -> torch.Tensor:
        if name == "Sum":
            return x[:, :-1].sum(-1)
        total = x.exp()[:, :-1].sum(-1, keepdim=True)
        return x.exp() / total

    assert shares(name, lossy, rows=2, columns=70_001, kind="spike") > 1
