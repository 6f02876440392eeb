"""Cases from a user or a recording: which of them a space's kernel can compute, and which shipped
spaces can compute a case.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import UsageError
from evotune.problems import create_problem
from evotune.problems.problem import Case, Problem, WrongSymbol
from evotune.runs.champion_cases import refusal_of
from evotune.runs.spaces import shipped_spaces
from evotune.space.document import SpaceDocument, load_space
from evotune.space.reading.case_file import CaseEntry
from evotune.space.reading.yaml_source import Data
from evotune.space.specs import GivenCase
from evotune.trial import Json, Value
from evotune.util.words import counted

GIVEN_CASES = "given_cases"
"""The name of a fact in a run's store: the cases that replaced the space's."""
ATTENTION = ("attention", "attention_varlen", "attention_paged")
"""The names of the problems that calls of attention become."""
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Skipped:
    """A given case that the space cannot compute. `count`: its weight. `why`: the reason, in
    words."""

    case: str
    why: str
    count: float


def kept_cases(
    document: SpaceDocument,
    problem: Problem,
    entries: Sequence[CaseEntry],
    profile: DeviceProfile,
    *,
    stored: bool = False,
) -> tuple[tuple[GivenCase, ...], tuple[Skipped, ...]]:
    """The cases that a kernel of the space can compute, each once with the sum of its counts, and
    the skipped ones, with the names of shipped spaces that can compute them on the device.

    Raises SpaceError, with the entry's position, for invalid symbols. In a miss log they are
    skipped, because a program may call anything. Raises UsageError if no case is left. `stored`:
    the entries come from a run's store, perhaps written by an older evotune.
    """
    kept: dict[str, GivenCase] = {}
    skipped: list[Skipped] = []
    others = AbleSpaces(problem, profile)
    for entry in entries:
        shape, variant = _apart(problem, entry)
        words = ", ".join(f"{name} {value}" for name, value in {**shape, **variant}.items())
        if entry.dtype not in (None, problem.dtype):
            why = f"dtype {entry.dtype}, where the space has {problem.dtype}"
            skipped.append(Skipped(words, why, entry.count))
            continue
        if why := _refused(problem, entry):
            skipped.append(Skipped(words, why, entry.count))
            continue
        try:
            case = problem.case(shape, variant)
        except ValueError as error:
            if not entry.logged:
                at = entry.at(error.name) if isinstance(error, WrongSymbol) else entry.position
                raise at.error(str(error)) from error
            skipped.append(Skipped(words, str(error), entry.count))
            continue
        if not stored and (why := refusal_of(document, problem, case)):
            skipped.append(Skipped(case.label, why + others.hint(case), entry.count))
            continue
        count = entry.count + (kept[case.label].count if case.label in kept else 0)
        kept[case.label] = GivenCase(shape, variant, count)
    if not kept:
        of = counted(len(entries), "case")
        raise UsageError(f"the space can serve none of {of}: {_most_frequent(skipped)}")
    return tuple(kept.values()), tuple(skipped)


def stored_cases(stored: Json) -> list[CaseEntry]:
    """The cases that a user gave, from the store's fact `GIVEN_CASES`. Raises ValueError if the
    fact has another form."""
    return [
        CaseEntry({}, case.shape, case.variant, None, case.count)
        for case in msgspec.convert(stored, list[GivenCase])
    ]


def skipped_in_words(skipped: Sequence[Skipped], kept: int) -> str:
    """A line such as `3 of 12 cases are skipped: 2 for WHY, 1 for WHY`; "" if none is skipped."""
    if not skipped:
        return ""
    are = "is" if len(skipped) == 1 else "are"
    reasons = Counter(each.why for each in skipped).most_common()
    told = "; ".join(f"{number} for {why}" for why, number in reasons[:3])
    more = f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
    return f"{len(skipped)} of {kept + len(skipped)} cases {are} skipped: {told}{more}"


def _most_frequent(skipped: Sequence[Skipped]) -> str:
    ((why, _),) = Counter(each.why for each in skipped).most_common(1)
    return why


def _refused(problem: Problem, entry: CaseEntry) -> str:
    """Why a recorded call is no case of the problem, whatever its sizes; "" where it may be one."""
    if entry.problem not in (None, problem.name):
        return f"a call of {entry.problem}, where the space has {problem.name}"
    return unserved(entry.call) or refused_variant(problem, entry.variant)


def _apart(problem: Problem, entry: CaseEntry) -> tuple[dict[str, Value], dict[str, Value]]:
    """Shape and variant of the entry."""
    shape: Mapping[str, Value] = entry.shape
    variant: Mapping[str, Value] = entry.variant
    if not entry.logged:
        of_variants = problem.variant_symbols
        shape = {n: value for n, value in entry.symbols.items() if n not in of_variants}
        variant = {n: value for n, value in entry.symbols.items() if n in of_variants}
    return dict(shape), dict(variant)


@dataclass(frozen=True, slots=True)
class SpaceAnswer:
    """Whether a shipped space can compute a case.

    - `why`: why it cannot, in words; "" when it can.
    - `dtype`: the case's dtype if the space's file has another one and must be changed to it; else
      "".
    - `questions`: how many of these tests the case passed, in this order: the problem, the device,
      the mask, the dtype, the sizes, the kernels.
    """

    space: str
    why: str = ""
    dtype: str = ""
    questions: int = 0


def spaces_for(entry: CaseEntry, device: str = "auto") -> tuple[SpaceAnswer, ...]:
    """The answer of each shipped space of attention. Spaces that can compute the case come first;
    among these, the ones whose file need not change.

    `entry`: a case of a file of cases, a miss log or a recording. `device`: a value of `--device`;
    a GPU's name needs no GPU. Raises UsageError for an unknown device.
    """
    return spaces_on(profile_of(device), entry)


def spaces_on(profile: DeviceProfile, entry: CaseEntry) -> tuple[SpaceAnswer, ...]:
    """`spaces_for` on the device with this profile."""
    why = unserved(entry.call)
    found = []
    for name, document in shipped_documents(ATTENTION):
        found.append(SpaceAnswer(name, why) if why else _answer(name, document, entry, profile))
    return tuple(sorted(found, key=lambda each: (bool(each.why), bool(each.dtype))))


def why_none(answers: Sequence[SpaceAnswer]) -> str:
    """Why no space can compute the case: the most frequent reason of the spaces that came closest.
    "" if a space can."""
    if not all(each.why for each in answers):
        return ""
    furthest = max(each.questions for each in answers)
    reasons = Counter(each.why for each in answers if each.questions == furthest)
    return reasons.most_common(1)[0][0]


def profile_of(device: str) -> DeviceProfile:
    """The profile of the requested device, which need not be present. Raises UsageError for an
    unknown one."""
    backend = registry.asked_for(device) or registry.choose(device)
    return backend.profile(device, compile_only=True)


def unserved(call: Mapping[str, Data]) -> str:
    """Why no kernel serves a recorded call, whatever its case; "" if one may."""
    if call.get("grad"):
        return "an input requires grad, kernels compute no gradients (use torch.no_grad())"
    if call.get("dropout"):
        return f"dropout {call['dropout']:g}: kernels have none (use model.eval())"
    return str(call.get("obstacle", ""))


def refused_variant(problem: Problem, variant: Mapping[str, object]) -> str:
    """Why the problem has no case with the mask of `variant`, in words; "" if it may have one."""
    if "mask" in variant and "mask" not in problem.variant_symbols:
        return f"the call has a mask ({variant['mask']}): problem {problem.name} has none"
    return ""


def _answer(
    name: str, document: SpaceDocument, entry: CaseEntry, profile: DeviceProfile
) -> SpaceAnswer:
    spec = document.problem
    assert spec is not None
    wanted = entry.problem or ATTENTION[0]
    if spec.name != wanted:
        return SpaceAnswer(name, f"computes {spec.name}, the call is {wanted}")
    if not _is_for(document, profile):
        return SpaceAnswer(name, f"no kernels for {profile.name}", questions=1)
    dtype = entry.dtype or spec.dtype
    own = create_problem(spec.name, spec.dtype)
    if why := refused_variant(own, entry.variant):
        return SpaceAnswer(name, why, questions=2)
    refused = [kernel.unsupported({"dtype": dtype}) for kernel in document.kernels]
    if dtype not in own.dtypes and not all(refused):
        refused = [f"problem {spec.name} has no dtype {dtype}"]
    if all(refused):
        return SpaceAnswer(name, str(refused[0]), questions=3)
    try:
        problem = create_problem(spec.name, dtype)
        case = problem.case(dict(entry.shape), dict(entry.variant))
    except ValueError as error:
        return SpaceAnswer(name, str(error), questions=4)
    why = refusal_of(document, problem, case)
    return SpaceAnswer(name, why, dtype if dtype != spec.dtype else "", questions=5)


@functools.cache
def shipped_documents(problems: tuple[str, ...]) -> list[tuple[str, SpaceDocument]]:
    """The shipped spaces of these problems, by name, each with its document."""
    documents = ((name, load_space(path)) for name, path in shipped_spaces().items())
    return [
        (name, document)
        for name, document in documents
        if document.problem is not None and document.problem.name in problems
    ]


def _is_for(document: SpaceDocument, profile: DeviceProfile) -> bool:
    """Whether the space's kernels run on such a device."""
    kernel = document.kernels[0]
    arch = {n: v for n, v in profile.attributes.items() if n == "arch"}
    same = registry.speaking(kernel.language).name == profile.backend
    return same and kernel.unsupported(arch) is None


class AbleSpaces:
    """Finds the shipped spaces that have the problem, dtype and device of a given space."""

    def __init__(self, problem: Problem, profile: DeviceProfile) -> None:
        self._problem = problem
        self._profile = profile

    def hint(self, case: Case) -> str:
        """The spaces that can compute the case, as ` (use attention-features-cpu)`; "" for none."""
        names = [
            name
            for name, document in self._documents
            if not refusal_of(document, self._problem, case)
        ]
        return f" (use {' or '.join(names[:_MOST_NAMED])})" if names else ""

    @functools.cached_property
    def _documents(self) -> list[tuple[str, SpaceDocument]]:
        return list(self._alike())

    def _alike(self) -> Iterator[tuple[str, SpaceDocument]]:
        for name, document in shipped_documents((self._problem.name,)):
            spec = document.problem
            same = spec is not None and spec.dtype == self._problem.dtype
            if same and _is_for(document, self._profile):
                yield name, document
