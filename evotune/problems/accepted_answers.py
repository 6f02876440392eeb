"""Which outputs a problem accepts that judges them itself, by `same`: any order of ties, any valid
answer. And whether its `same` looks at all outputs.

The gate looks first: numbers must be finite, bools 0 or 1, and integers in the range that the
problem states for them, so that `same` may use them as places. Without a stated range `same` runs
on the CPU, where a wrong place raises an exception; on a GPU it would break the process.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from evotune.errors import ProblemMistake
from evotune.problems.problem import INTEGERS, Case, Tensors, TensorSpec, comparable, torch_dtype
from evotune.problems.written import WrittenProblem

_UNWRITTEN = 0xA5
_PLACES = 4  # single elements of an output that are tried


def refusal(
    problem: WrittenProblem, case: Case, outputs: Tensors, answer: Tensors, inputs: Tensors
) -> str:
    """Why the problem does not accept the outputs, in a few words; "" if it does. `outputs` are
    `comparable`; `answer` is what `compute` gives. ProblemMistake if `same` raises an exception, as
    it may for wrong outputs."""
    specs = {spec.name: spec for spec in problem.tensors(case) if spec.is_output}
    ranges = problem.output_ranges(case)
    for name, value in outputs.items():
        if name in ranges and (wrong := _outside(value, ranges[name])):
            return f"{name}{wrong}"
    unsure = any(s.dtype in INTEGERS and name not in ranges for name, s in specs.items())
    given = [{n: _typed(value, specs[n]) for n, value in outputs.items()}, answer, inputs]
    if unsure:
        given = [{name: each.cpu() for name, each in tensors.items()} for tensors in given]
    accepted = problem.written.same(given[0], given[1], given[2], problem.symbols_of(case))
    return "" if accepted else f"same refuses the outputs{_difference(outputs, answer)}"


def _outside(value: torch.Tensor, values: range) -> str:
    """Where an output holds an integer that is not of its range; "" if nowhere."""
    low, high = sorted((values[0], values[-1]))
    wrong = (value < low) | (value > high)
    if not bool(wrong.any()):
        return ""
    place = tuple(map(int, wrong.nonzero()[0]))
    shown = ",".join(map(str, place))
    return f"[{shown}] is {value[place].item()}, which is not of {low} to {high}"


def _typed(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The output in its own type."""
    dtype = torch_dtype(spec.dtype)
    return torch.view_as_complex(value.contiguous()) if dtype.is_complex else value.view(dtype)


def _difference(outputs: Tensors, answer: Tensors) -> str:
    """The first element that is not what `compute` gives."""
    for name, value in outputs.items():
        wanted = comparable(answer[name]).to(torch.float64)
        differing = value.double() != wanted
        if bool(differing.any()):
            place = tuple(map(int, differing.nonzero()[0]))
            shown = ",".join(map(str, place))
            found, expected = value[place].item(), wanted[place].item()
            return f"; {name}[{shown}] is {found:.8g}, where compute gives {expected:.8g}"
    return ""


def own_answer(problem: WrittenProblem, case: Case, reference: Tensors) -> Tensors:
    """The reference in the outputs' types, `comparable`."""
    specs = {spec.name: spec for spec in problem.tensors(case) if spec.is_output}
    return {
        name: comparable(value.to(torch_dtype(specs[name].dtype)))
        for name, value in reference.items()
    }


def check_same(problem: WrittenProblem, case: Case, device: str) -> None:
    """Raises ProblemMistake if `same` refuses what `compute` gives, or accepts any values of an
    output, or elements that no kernel wrote."""
    inputs, others = (problem.make_inputs(case, "normal", seed, device) for seed in (0, 1))
    answer = problem.checked_reference(case, inputs)
    right = own_answer(problem, case, answer)
    other = own_answer(problem, case, problem.checked_reference(case, others))
    if why := refusal(problem, case, right, answer, inputs):
        message = f"same refuses what compute gives for normal inputs of {case.label}: {why}"
        raise problem.written.mistake("same", message)

    def accepts(name: str, value: torch.Tensor) -> bool:
        try:
            return not refusal(problem, case, {**right, name: value}, answer, inputs)
        except ProblemMistake as mistake:
            if isinstance(mistake.__cause__, IndexError | ValueError | RuntimeError):
                return False  # a wrong place raises one
            raise

    for name, value in right.items():
        tried = [each for each in _others(value, other[name]) if not torch.equal(each, value)]
        if tried and all(accepts(name, each) for each in tried):
            message = (
                f"same accepts any {name}: the result for other inputs, one that is shifted by an "
                "element, and zeros"
            )
            raise problem.written.mistake("same", message)
        if value.is_floating_point():
            continue  # nobody wrote NaN
        for each in _with_unwritten(value):
            if accepts(name, each):
                message = f"same accepts {name} with an element that no kernel wrote"
                hint = "state the range of its values: Tensor(shape, dtype, range(first, end))"
                raise problem.written.mistake("same", f"{message}: {hint}")


def _others(value: torch.Tensor, other: torch.Tensor) -> Iterator[torch.Tensor]:
    yield other
    yield value.flatten().roll(1).view(value.shape)
    yield torch.zeros_like(value)


def _with_unwritten(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The output with one element that still has the bytes that a launch finds."""
    word = bytes([_UNWRITTEN] * value.element_size())
    signed = value.dtype != torch.uint8
    number = int.from_bytes(word, "little", signed=signed)
    step = max(1, value.numel() // _PLACES)
    for place in range(0, value.numel(), step):
        made = value.clone()
        made.view(-1)[place] = number
        yield made
