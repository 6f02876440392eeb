"""Problems of tasks with a fixed list of cases, whose inputs a function of the task makes:
KernelBench and GPU MODE.

The case's number is the only size. Inputs are drawn by the task's own function with other seeds, so
they are what the task says; only tensors that come straight from `torch.randn` get evotune's own
values, because any numbers are valid there.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from evotune.errors import EvotuneError
from evotune.formats.foreign_reference import ForeignReference
from evotune.formats.task_data import Template, caller, rebuilt, template_of
from evotune.problems.problem import INTEGERS, Case
from evotune.problems.written import INDICES, STRUCTURED, Tensor

if TYPE_CHECKING:
    import torch

CASE = "case"
SEED = 42
_SEEDS = 1 << 31


class TaskTensor(NamedTuple):
    """A tensor of a case. `is_normal`: it comes from `torch.randn`. `how` it is passed: see
    `task_data`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_normal: bool = False
    how: str = ""


class TaskCase(NamedTuple):
    """A case: the arguments of the function that makes its inputs, the tensors of these, and the
    data that they are in. `result`: the template of what the reference returns."""

    arguments: Mapping[str, Any]
    inputs: tuple[TaskTensor, ...]
    data: Template
    outputs: tuple[TaskTensor, ...]
    result: Template

    @property
    def passing(self) -> tuple[Template, tuple[str, ...], tuple[str, ...]]:
        """What `caller` needs: the template, how each tensor is passed, and its name."""
        names = tuple(each.name for each in self.inputs)
        return self.data, tuple(each.how for each in self.inputs), names


class TaskProblem(ForeignReference):
    """Its subclass in a generated file says what a task says. `timed`: the number of cases that are
    timed, the first ones."""

    sizes = (CASE,)
    fixed = (CASE,)
    cases: ClassVar[Sequence[TaskCase]] = ()
    timed: ClassVar[int] = 0

    # What a task's kind says

    def drawn(self, case: TaskCase, seed: int, device: torch.device) -> Any:
        """The data of a case, made by the task's own function."""
        raise NotImplementedError

    # A problem's methods

    def check(self, **sizes: int) -> None:
        if sizes[CASE] > len(self.cases):
            raise ValueError(f"there are {len(self.cases)} cases")

    def described_inputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        found = {}
        for each in self._case(sizes).inputs:
            values = INDICES if each.dtype in INTEGERS else STRUCTURED
            found[each.name] = Tensor(each.shape, each.dtype, None if each.is_normal else values)
        return found

    def described_outputs(self, sizes: Mapping[str, int]) -> Mapping[str, Tensor]:
        return {each.name: Tensor(each.shape, each.dtype) for each in self._case(sizes).outputs}

    def further_cases(self) -> Sequence[Case]:
        numbers = range(self.timed + 1, len(self.cases) + 1)
        return [self.case({CASE: number}, {}) for number in numbers]

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        case = self._case(self.current_sizes)
        if any(each.name == name and each.is_normal for each in case.inputs):
            return super().make_input(name, shape, kind, generator)
        return self._drawn(case, kind, generator)[name]

    def make_indices(
        self, kind: str, generator: torch.Generator, **sizes: int
    ) -> Mapping[str, torch.Tensor]:
        case = self._case(sizes)
        made = self._drawn(case, kind, generator)
        return {each.name: made[each.name] for each in case.inputs if each.dtype in INTEGERS}

    def _case(self, sizes: Mapping[str, int]) -> TaskCase:
        return self.cases[sizes[CASE] - 1]

    def _drawn(
        self, case: TaskCase, kind: str, generator: torch.Generator
    ) -> Mapping[str, torch.Tensor]:
        seed = (generator.initial_seed() + zlib.crc32(kind.encode())) % _SEEDS
        key = (self.cases.index(case), seed, str(generator.device))
        if getattr(self._current, "key", None) != key:
            import torch

            found: list[torch.Tensor] = []
            with self.naming_lines():
                torch.manual_seed(seed)
                template = template_of(self.drawn(case, seed, generator.device), found)
            shapes = [tuple(each.shape) for each in found]
            if template != case.data or shapes != [each.shape for each in case.inputs]:
                raise WrongTask(f"{self.reference_name}: the inputs have another form each time")
            self._current.key = key
            self._current.made = [each.to(generator.device) for each in found]
        made = self._current.made
        return {each.name: value for each, value in zip(case.inputs, made, strict=True)}

    def in_task_order(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[each.name] for each in self._case(given).inputs]


class WrongTask(EvotuneError):
    """A task that cannot be judged."""

    exit_code = 2


class KernelBenchProblem(TaskProblem):
    """`Model` of a file of KernelBench, with weights that the seed gives."""

    def drawn(self, case: TaskCase, seed: int, device: torch.device) -> Any:
        return list(self.module.get_inputs())

    def reference_call(
        self, given: Mapping[str, Any], wide: torch.dtype | None
    ) -> Callable[[], Any]:
        tensors = self.in_task_order(given)
        model = self._models(wide, tensors[0].device)
        return functools.partial(model, *rebuilt(self._case(given).data, tensors))

    @functools.cached_property
    def _models(self) -> Callable[[torch.dtype | None, torch.device], Any]:
        @functools.cache
        def made(wide: torch.dtype | None, device: torch.device) -> Any:
            model = seeded_model(self.module.Model, self.module.get_init_inputs)
            model.requires_grad_(False)
            return model.to(device) if wide is None else model.to(device, wide)

        return made


def seeded_model(kind: Callable[..., Any], get_init_inputs: Callable[[], Any]) -> Any:
    """A model of KernelBench, with the seeds that KernelBench uses."""
    import torch

    torch.manual_seed(SEED)
    given = get_init_inputs()
    torch.manual_seed(SEED)
    return kind(**given) if isinstance(given, Mapping) else kind(*given)


def with_equal_weights(model: Any, reference: Any) -> Any:
    """The model with the reference's weights, if the names and shapes of all are the same. Others
    are as the seed makes them."""
    own, wanted = model.state_dict(), reference.state_dict()
    alike = own.keys() == wanted.keys()
    if alike and all(own[name].shape == value.shape for name, value in wanted.items()):
        model.load_state_dict(wanted)
    return model


class GpuModeProblem(TaskProblem):
    """`ref_kernel` and `generate_input` of a task of GPU MODE."""

    def drawn(self, case: TaskCase, seed: int, device: torch.device) -> Any:
        from evotune.formats.reference_modes import OnDevice

        given = dict(case.arguments)
        if "seed" in given or "seed" in inspect.signature(self.module.generate_input).parameters:
            given["seed"] = seed
        with OnDevice(device):
            return self.module.generate_input(**given)

    def reference_call(
        self, given: Mapping[str, Any], wide: torch.dtype | None
    ) -> Callable[[], Any]:
        case = self._case(given)
        call = caller(self.module.ref_kernel, *case.passing)
        return functools.partial(call, **{name: given[name] for name in case.passing[2]})


class CheckedTaskProblem(GpuModeProblem):
    """A task of GPU MODE with a check of its own, which decides what is right."""

    def same(
        self,
        outputs: Mapping[str, torch.Tensor],
        reference: Mapping[str, torch.Tensor],
        inputs: Mapping[str, Any],
    ) -> bool:
        case = self._case(inputs)
        tensors = [each.clone() for each in self.in_task_order(inputs)]
        values = [outputs[each.name] for each in case.outputs]
        with self.naming_lines():
            found = self.module.check_implementation(
                rebuilt(case.data, tensors), rebuilt(case.result, values)
            )
        return accepts(found)


def accepts(found: Any) -> bool:
    """What `check_implementation` says: (right, why not), why not, or right."""
    if isinstance(found, tuple):
        return bool(found[0])
    return not found if isinstance(found, str) else bool(found)
