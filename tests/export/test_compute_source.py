"""Which methods `compute` a package can have, and that they stay what they are."""

from __future__ import annotations

import pytest

from evotune.export.compute_source import compute_source
from evotune.runs.spaces import shipped_spaces

HEAD = """
import math
import numpy
import torch
import torch.nn.functional as F
from torch import Tensor as T
from evotune.problems import UserProblem

LIMIT = 3.0


def helper(x):
    return x


class Base(UserProblem):
    def compute(self, x):
        return {"out": x}


class Own(Base):
"""


def source(body: str, name: str = "Own") -> str | None:
    found = compute_source(f"problem.py:{name}", {"problem.py": (HEAD + body).encode()})
    return None if found is None else found.decode()


@pytest.mark.parametrize(
    ("body", "imports"),
    [
        ("    def compute(self, x):\n        return {'out': F.relu(x)}\n",
         ["import torch.nn.functional as F"]),
        ("    def compute(self, x: T, *, e):\n        # kept\n        return {'o': x * math.e}\n",
         ["import math"]),
        ("    def compute(self, x, y=None):\n        return {'out': x if y is None else x + y}\n",
         []),
        ("    def compute(self, **given):\n        y = [torch.relu(v) for v in given.values()]\n"
         "        return dict(zip('a', y))\n", ["import torch"]),
        ("    def compute(self, x):\n        def inner(y):\n            return y + len(x)\n"
         "        return {'out': inner(x)}\n", []),
        ("    def compute(self, x):\n        import math\n        return {'out': math.pi + x}\n",
         []),
    ],
)  # fmt: skip
def test_a_method_of_its_arguments_is_taken_as_it_stands(body: str, imports: list[str]) -> None:
    found = source(body)
    assert found is not None
    lines = found.splitlines()
    assert [line for line in lines if line.startswith(("import", "from torch"))] == imports
    own = [line.removeprefix("    ") for line in body.splitlines()]
    assert lines[-len(own) :] == own
    compile(found, "_problem_compute.py", "exec")


def test_a_method_with_a_docstring_of_several_lines_is_taken() -> None:
    found = source(
        '    def compute(self, x):\n        """Says much.\n\n        More of it.\n        """\n'
        "        return {'out': x}\n"
    )
    assert found is not None
    assert found.endswith('    More of it.\n    """\n    return {\'out\': x}\n')
    compile(found, "_problem_compute.py", "exec")


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    text = "class Own:\n    def compute(self, x):\n        return {'out': x}\n"
    assert compute_source("p.py:Own", {"p.py": text.encode("utf-8-sig")}) is not None


def test_a_method_of_a_base_class_is_taken() -> None:
    found = source("    sizes = ()\n")
    assert found is not None
    assert found.endswith('def compute(self, x):\n    return {"out": x}\n')


@pytest.mark.parametrize(
    "body",
    [
        "    def compute(self, x):\n        return {'out': helper(x)}\n",
        "    def compute(self, x):\n        return {'out': x * LIMIT}\n",
        "    def compute(self, x):\n        return {'out': numpy.abs(x)}\n",
        "    def compute(self, x):\n        return {'out': x * self.factor}\n",
        "    def compute(self, x):\n        return {'out': [self for _ in x]}\n",
        "    def compute(self, x):\n        return super().compute(x)\n",
        "    def compute(self, x, factor=LIMIT):\n        return {'out': x}\n",
        "    @helper\n    def compute(self, x):\n        return {'out': x}\n",
        "    def compute(self, x):\n        from helpers import f\n        return {'out': f(x)}\n",
        "    def compute(self, x):\n        import numpy\n        return {'out': x}\n",
        '    def compute(self, x):\n        text = """\nat margin"""\n        return {text: x}\n',
    ],
)
def test_a_method_that_needs_more_is_left_out(body: str) -> None:
    assert source(body) is None


@pytest.mark.parametrize(
    "line",
    [
        "def sum(x): return x",
        "sum = torch.sum",
        "from numpy import sum",
        "if True:\n    sum = torch.sum",
        "from torch import *",
    ],
)
def test_a_name_of_the_file_is_no_built_in_function(line: str) -> None:
    body = "class Own:\n    def compute(self, x):\n        return {'out': sum(x)}\n"
    for head, is_taken in (("", True), (line, False), ("from torch import sum", True)):
        text = f"import torch\n{head}\n\n\n{body}"
        found = compute_source("problem.py:Own", {"problem.py": text.encode()})
        assert (found is not None) == is_taken
    assert found is not None
    assert b"from torch import sum" in found


@pytest.mark.parametrize(
    ("line", "is_taken"),
    [
        ("import os, torch", True),
        ("from torch import exp\nfrom math import exp", True),
        ("def exp(x): return x", False),
        ("if True:\n    exp = None", False),
        ("try:\n    from helpers import exp\nexcept ImportError:\n    pass", False),
    ],
)
def test_a_name_that_the_file_binds_again_is_no_import(line: str, is_taken: bool) -> None:
    body = "class Own:\n    def compute(self, x):\n        return {'out': exp(x)}\n"
    text = f"from torch import exp\n{line}\n\n\n{body}"
    found = compute_source("problem.py:Own", {"problem.py": text.encode()})
    assert (found is not None) == is_taken


@pytest.mark.parametrize("line", ["import torch.cuda", "import torch", "import torch.nn as nn"])
def test_an_import_of_the_same_module_in_a_block_takes_nothing_away(line: str) -> None:
    text = (
        f"import torch\nif torch.cuda.is_available():\n    {line}\n"
        "class Own:\n    def compute(self, x):\n        return {'out': torch.exp(x)}\n"
    )
    found = compute_source("problem.py:Own", {"problem.py": text.encode()})
    assert found is not None
    assert b"import torch\n" in found


def test_no_file_is_no_fallback() -> None:
    assert compute_source("softmax", {}) is None
    assert compute_source("problem.py:Own", {"problem.py": b"def broken("}) is None
    assert source("    pass\n", "Missing") is None


@pytest.mark.parametrize("name", ["cross_entropy", "add_rms_norm", "rms_norm", "softmax", "linear"])
def test_shipped_problems_have_one(name: str) -> None:
    file = shipped_spaces()["softmax"].parents[1] / "kernels" / name / "problem.py"
    kinds = {"cross_entropy": "CrossEntropy", "add_rms_norm": "AddRmsNormFp8",
             "rms_norm": "RmsNorm", "softmax": "Softmax", "linear": "Linear"}  # fmt: skip
    assert compute_source(f"p.py:{kinds[name]}", {"p.py": file.read_bytes()}) is not None
