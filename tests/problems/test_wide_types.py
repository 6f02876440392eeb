"""Tolerances of outputs in float64 and in complex numbers: right ways stay within them, although
the reference has rounding errors of float64 itself, and wrong ways exceed them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evotune.problems import UserProblem
from evotune.problems.loading import create_problem
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool

TEXT = """
from evotune.problems import Tensor, UserProblem

class Rows(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float32", "float64")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows,)}

    def operations(self, rows, columns):
        return rows * columns

class Sum(Rows):
    def compute(self, x):
        return {"out": x.sum(-1)}

class SumOfFloats(Sum):
    def outputs(self, rows, columns):
        return {"out": Tensor((rows,), "float64")}

    def compute(self, x):
        return {"out": x.double().sum(-1)}

class Softmax(Rows):
    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def compute(self, x):
        return {"out": x.softmax(-1)}

class Norm(Softmax):
    def compute(self, x):
        return {"out": x / (x * x).mean(-1, keepdim=True).add(1e-6).sqrt()}

class Highest(Rows):
    def compute(self, x):
        return {"out": x.amax(-1)}

class Complex(Rows):
    def inputs(self, rows, columns):
        return {"x": Tensor((rows, columns), "complex64")}

    def outputs(self, rows, columns):
        return {"out": Tensor((rows, columns), "complex64")}

class Product(Complex):
    def compute(self, x):
        return {"out": x * x.flip(-1).conj()}

class Gram(Complex):
    def outputs(self, rows, columns):
        return {"out": Tensor((rows, rows), "complex64")}

    def compute(self, x):
        return {"out": x @ x.conj().T}

class Fourier(Complex):
    def compute(self, x):
        import torch
        return {"out": torch.fft.fft(x)}

class HalfFourier(Rows):
    def outputs(self, rows, columns):
        return {"out": Tensor((rows, columns // 2 + 1), "complex64")}

    def compute(self, x):
        import torch
        return {"out": torch.fft.rfft(x)}

class Inverse(Complex):
    def outputs(self, rows, columns):
        return {"out": (rows, 2 * columns)}

    def compute(self, x):
        import torch
        return {"out": torch.fft.irfft(x, 2 * x.shape[-1])}

class Power(Complex):
    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def compute(self, x):
        return {"out": x.abs() ** 2}
"""
SINGLE = ("Product", "Gram", "Fourier", "HalfFourier", "Inverse", "Power", "SumOfFloats")
Way = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def shares(tmp_path: Path) -> Callable[..., float]:
    (tmp_path / "wide.py").write_text(TEXT)

    def found(name: str, way: Way, *, rows: int, columns: int) -> float:
        """The largest error as a share of the limit, over all kinds of inputs and two seeds."""
        dtype = "float32" if name in SINGLE else "float64"
        problem = create_problem(f"wide.py:{name}", dtype, tmp_path)
        assert isinstance(problem, UserProblem)
        case = problem.case({"rows": rows, "columns": columns}, {})
        worst = 0.0
        for kind in problem.input_kinds:
            for seed in range(2):
                made = InputPool(problem).get(case, kind, seed)
                value = way(made.inputs["x"])
                value = torch.view_as_real(value) if value.is_complex() else value
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


def _weights(x: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    return weights / _in_order(weights)[:, None]


def _by_logsumexp(x: torch.Tensor) -> torch.Tensor:
    top = x.amax(-1, keepdim=True)
    return torch.exp(x - (top + torch.exp(x - top).sum(-1, keepdim=True).log()))


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(_in_order(x * x)[:, None] / x.shape[-1] + 1e-6)


def _gram(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(x), len(x), dtype=x.dtype)
    for column in x.unbind(1):
        out += column[:, None] * column.conj()[None]
    return out


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.real, x.imag


def _gram_of_parts(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _parts(x)
    return torch.complex(
        real @ real.T + imaginary @ imaginary.T, imaginary @ real.T - real @ imaginary.T
    )


def _fourier(x: torch.Tensor) -> torch.Tensor:
    """By the remainders of places mod the smallest factor, one stage after the other."""
    count = x.shape[-1]
    if count == 1:
        return x
    radix = next(n for n in range(2, count + 1) if count % n == 0)
    parts = [_fourier(x[..., first::radix]) for first in range(radix)]
    place = torch.arange(count, dtype=torch.float64)
    out = torch.zeros_like(x)
    for number, part in enumerate(parts):
        angle = -2 * torch.pi * (number * place % count) / count
        factors = torch.polar(torch.ones_like(angle), angle).to(x.dtype)
        out = out + factors * part.repeat(1, radix)
    return out


def _inverse(x: torch.Tensor) -> torch.Tensor:
    """By the transform of the whole spectrum, of which the middle is 0."""
    first, rest = x[:, :1].real + 0j, x[:, 1:]
    whole = torch.cat([first, rest, torch.zeros_like(first), rest.flip(-1).conj()], -1)
    return _fourier(whole.conj().resolve_conj()).real / whole.shape[-1]


def _single(way: Way) -> Way:
    return lambda x: way(x.float()).double()


RIGHT: list[tuple[str, Way]] = [
    ("Sum", lambda x: x.sum(-1)),
    ("Sum", _in_order),
    ("Sum", lambda x: _in_order(x.flip(1))),
    ("Sum", lambda x: torch.tensor([math.fsum(row) for row in x.tolist()], dtype=torch.float64)),
    ("SumOfFloats", lambda x: _in_order(x.double().flip(1))),
    ("Softmax", _weights),
    ("Softmax", _by_logsumexp),
    ("Norm", _norm),
    ("Highest", lambda x: x.amax(-1)),
    ("Product", lambda x: x * x.flip(-1).conj()),
    ("Gram", _gram),
    ("Gram", _gram_of_parts),
    ("Fourier", _fourier),
    ("HalfFourier", lambda x: _fourier(x + 0j)[:, : x.shape[1] // 2 + 1].contiguous()),
    ("Inverse", _inverse),
    ("Power", lambda x: x.real * x.real + x.imag * x.imag),
]


@pytest.mark.sweep(9)
@pytest.mark.parametrize(("name", "way"), RIGHT)
def test_right_ways_are_within_the_limits(
    shares: Callable[..., float], name: str, way: Way
) -> None:
    for rows, columns in ((8, 96), (6, 1000), (1, 3)):
        assert shares(name, way, rows=rows, columns=columns) <= 0.8


WRONG: dict[str, tuple[str, Way]] = {
    "sums in float": ("Sum", _single(_in_order)),
    "inputs in float": ("Sum", lambda x: x.float().double().sum(-1)),
    "the sum in float": ("Sum", lambda x: x.sum(-1).float().double()),
    "without the last": ("Sum", lambda x: x[:, :-1].sum(-1)),
    "floats summed in float": ("SumOfFloats", lambda x: x.sum(-1).double()),
    "a softmax in float": ("Softmax", _single(_weights)),
    "a root in float": (
        "Norm",
        lambda x: x / (x * x).mean(-1, keepdim=True).add(1e-6).float().sqrt().double(),
    ),
    "a maximum of floats": ("Highest", _single(lambda x: x.amax(-1))),
    "another sign": ("Product", lambda x: x * x.flip(-1)),
    "without the imaginary part": ("Product", lambda x: (x * x.flip(-1).conj()).real + 0j),
    "parts swapped": ("Product", lambda x: (x * x.flip(-1).conj()) * 1j),
    "products in bfloat16": (
        "Gram",
        lambda x: _gram_of_parts(torch.complex(x.real.bfloat16().float(), x.imag)),
    ),
    "the other direction": ("Fourier", lambda x: torch.fft.ifft(x) * x.shape[-1]),
    "not divided": ("Inverse", lambda x: _inverse(x) * 2),
    "half in half": ("HalfFourier", lambda x: torch.fft.rfft(x.half().float())),
    "factors in half": (
        "Fourier",
        lambda x: torch.fft.fft(torch.view_as_complex(torch.view_as_real(x).half().float())),
    ),
}


@pytest.mark.sweep(9)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_exceed_them(shares: Callable[..., float], name: str) -> None:
    problem, way = WRONG[name]
    for rows, columns in ((8, 96), (6, 300)):
        assert shares(problem, way, rows=rows, columns=columns) > 1


def test_a_double_input_has_all_its_digits(tmp_path: Path) -> None:
    """A kernel that drops the last 29 bits of each would not show."""
    (tmp_path / "wide.py").write_text(TEXT)
    problem = create_problem("wide.py:Sum", "float64", tmp_path)
    for kind in problem.input_kinds:
        x = problem.make_inputs(problem.case({"rows": 8, "columns": 100}, {}), kind, 0)["x"]
        assert x.dtype == torch.float64
        assert (x.float() != x).double().mean() > 0.5
    assert torch.get_default_dtype() == torch.float32
