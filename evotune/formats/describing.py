"""Executes a task once, in a process of its own, to learn its tensors.

`python -m evotune.formats.describing REQUEST ANSWER`. The process that asks has the user's
agreement to execute the task. It gets the names, shapes and types of inputs and outputs, and
which inputs the reference writes to.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evotune.errors import UsageError
from evotune.formats.foreign_reference import ReferenceFailed
from evotune.formats.task_data import (
    COPIED,
    NEW,
    Template,
    WrongData,
    names_of,
    rebuilt,
    template_of,
)
from evotune.formats.task_problem import SEED, TaskCase, TaskProblem, TaskTensor
from evotune.problems.problem import ELEMENT_BYTES, comparable, element_type
from evotune.util.processes import module_command

if TYPE_CHECKING:
    import torch

    from evotune.formats.reference_modes import NormalTensors

_LIMIT_S = 600.0


class Request(msgspec.Struct):
    """`kind`: the problem's class in `task_problem`. `files`: the reference's, itself first."""

    kind: str
    name: str
    files: dict[str, str]
    cases: list[dict[str, Any]]


class Answer(msgspec.Struct):
    mistake: str = ""
    cases: list[TaskCase] = []


def describe(request: Request, folder: Path) -> list[TaskCase]:
    """The cases with their tensors. Raises UsageError with the mistake in the task. A task is
    executed once in a program that judges several candidates."""
    content = msgspec.json.encode(request)
    if content not in _known:
        _known[content] = _asked(request, content, folder)
    return list(_known[content])


_known: dict[bytes, list[TaskCase]] = {}


def _asked(request: Request, content: bytes, folder: Path) -> list[TaskCase]:
    asked, answer = folder / "request.json", folder / "answer.json"
    asked.write_bytes(content)
    command = module_command("evotune.formats.describing", str(asked), str(answer))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{request.name}: the reference took more than 10 minutes") from error
    if not answer.exists():
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UsageError(f"{request.name}: its process ended: {last}")
    found = msgspec.json.decode(answer.read_bytes(), type=Answer)
    asked.unlink()
    answer.unlink()
    if found.mistake:
        raise UsageError(found.mistake)
    return [_with_tuples(case) for case in found.cases]


def _with_tuples(case: TaskCase) -> TaskCase:
    """JSON has no tuples."""
    return case._replace(data=_tuples(case.data), result=_tuples(case.result))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def main() -> None:
    asked, answer = map(Path, sys.argv[1:])
    request = msgspec.json.decode(asked.read_bytes(), type=Request)
    try:
        found = Answer("", described(request))
    except (ReferenceFailed, WrongData) as error:
        found = Answer(str(error))
    answer.write_bytes(msgspec.json.encode(found))


def described(request: Request) -> list[TaskCase]:
    import torch

    from evotune.formats import task_problem
    from evotune.formats.reference_modes import NormalTensors

    members = {"reference_name": request.name, "reference_files": request.files}
    problem = type("Reference", (getattr(task_problem, request.kind),), members)("float32")
    with problem.naming_lines():
        module = problem.module
    found = []
    for arguments in request.cases:
        case = TaskCase(arguments, (), ("value", None), (), ("value", None))
        with problem.naming_lines(), torch.no_grad(), NormalTensors() as normal:
            torch.manual_seed(SEED)
            data = problem.drawn(case, SEED, torch.device("cpu"))
        function = _reference_of(problem, module)
        with torch.no_grad():
            known = case._replace(arguments=dict(arguments))
            found.append(_described(problem, known, data, function, normal))
    return found


def _reference_of(problem: TaskProblem, module: Any) -> Callable[[Any], Any]:
    from evotune.formats.task_problem import KernelBenchProblem, seeded_model

    if not isinstance(problem, KernelBenchProblem):
        reference: Callable[[Any], Any] = module.ref_kernel
        return reference
    with problem.naming_lines():
        model = seeded_model(module.Model, module.get_init_inputs)
    return lambda given: model(*given)


def _described(
    problem: TaskProblem,
    case: TaskCase,
    data: Any,
    function: Callable[[Any], Any],
    normal: NormalTensors,
) -> TaskCase:
    """The case with its tensors. `function`: the reference."""
    place = problem.reference_name
    tensors, template = _taken_apart(data, f"{place}: the inputs")

    def call(given: list[torch.Tensor]) -> Any:
        with problem.naming_lines():
            return function(rebuilt(template, given))

    copies = [each.clone() for each in tensors]
    outputs, result = _taken_apart(call(copies), f"{place}: the reference's result")
    inputs = [
        TaskTensor(
            name,
            tuple(each.shape),
            _dtype(f"{place}: {name}", each),
            normal.made(each),
            _how(number, copies, tensors, outputs, call),
        )
        for number, (name, each) in enumerate(
            zip(names_of(template, "input"), tensors, strict=True)
        )
    ]
    results = [
        TaskTensor(name, tuple(each.shape), _dtype(f"{place}: {name}", each))
        for name, each in zip(names_of(result, "output"), outputs, strict=True)
    ]
    return TaskCase(case.arguments, tuple(inputs), template, tuple(results), result)


def _taken_apart(data: Any, place: str) -> tuple[list[torch.Tensor], Template]:
    tensors: list[torch.Tensor] = []
    try:
        template = template_of(data, tensors)
        if not tensors:
            raise WrongData("expected at least one tensor")
    except WrongData as error:
        raise WrongData(f"{place}: {error}") from error
    return tensors, template


def _how(
    number: int,
    copies: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    function: Callable[[list[torch.Tensor]], Any],
) -> str:
    """How the tensor is passed. One that the reference returns is only written if the result does
    not depend on what it held before."""
    copy, before = copies[number], tensors[number]
    is_returned = any(copy.data_ptr() == each.data_ptr() for each in outputs)
    if not is_returned:
        return "" if _equal(copy, before) else COPIED
    others = [each.clone() for each in tensors]
    others[number].fill_(1)
    again: list[torch.Tensor] = []
    template_of(function(others), again)
    alike = all(_equal(one, other) for one, other in zip(outputs, again, strict=True))
    return NEW if alike else COPIED


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    wide = [comparable(each).double().nan_to_num() for each in (one, other)]
    return torch.equal(*wide)


def _dtype(place: str, tensor: torch.Tensor) -> str:
    found = element_type(tensor.dtype)
    if found not in ELEMENT_BYTES:
        raise WrongData(f"{place}: evotune does not support {found}")
    if 0 in tensor.shape:
        raise WrongData(f"{place} has no elements")
    return found


if __name__ == "__main__":
    main()
