"""Further cases of a configuration that is confirmed: which its kernel can run, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from evotune.errors import SpaceError
from evotune.problems.problem import Case, HasFeatures, Problem, TensorSpec
from evotune.space.bound import BoundSpace
from evotune.space.document import SpaceDocument
from evotune.space.language import Expression
from evotune.space.language.nodes import truth
from evotune.space.specs import KernelSpec
from evotune.trial import Check, Configuration
from evotune.verify.kept_checks import ALL_KINDS


def obstacle(
    bound: BoundSpace,
    kernel: KernelSpec,
    configuration: Configuration,
    case: Case,
    sibling: Case,
    *,
    names: Collection[str] | None = None,
) -> str:
    """Why the kernel, compiled for this configuration, cannot run `sibling`, a variant of a `case`
    that it is tuned on; "" when it can.

    `names`: the symbols that the kernel must get as arguments if the two cases differ in them;
    None: all of them.
    """
    unsupported = kernel.unsupported(sibling.symbols)
    if unsupported is not None:
        return unsupported
    differing = [n for n, value in sibling.symbols.items() if case.symbols.get(n) != value]
    told = _symbols_told(bound.document, kernel)
    untold = [n for n in differing if n not in told and (names is None or n in names)]
    if untold:
        return f"kernel {kernel.name} does not receive {', '.join(untold)}"
    for spec in bound.document.constraints:
        try:
            holds = truth(bound.evaluate(spec.expression, configuration, sibling.symbols))
        except SpaceError as error:
            return error.message
        if not holds:
            return f"the configuration is not valid for it: {spec}"
    return ""


def refusal(  # noqa: PLR0917
    bound: BoundSpace,
    kernel: KernelSpec,
    configuration: Configuration,
    case: Case,
    tuned: Iterable[Case],
    names: Collection[str],
) -> str:
    """Why the kernel cannot run `case`, given the cases that it is tuned on; "" when there is no
    `obstacle` for one of them."""
    reasons = [obstacle(bound, kernel, configuration, like, case, names=names) for like in tuned]
    return reasons[0] if all(reasons) else ""


def symbols_kept(
    document: SpaceDocument,
    kernel: KernelSpec,
    scalars: Iterable[str],
    tensors: Iterable[TensorSpec] = (),
) -> set[str]:
    """The symbols that keep their values in every additional case of the kernel.

    - Compiled-in symbols, because another value needs another binary. A compiled-in `let` does not
      count: see `symbols_kept_in_search`.
    - The `scalars` that the kernel does not receive.
    - `layout`, unless the kernel receives the strides of all `tensors`.
    """
    kept = set(kernel.define).difference(document.let)
    kept |= set(scalars) - _symbols_told(document, kernel)
    strided = [spec for spec in tensors if spec.stride_symbols]
    if strided and strides_untold(document, kernel, strided):
        kept.add("layout")
    return kept


def symbols_kept_in_search(
    document: SpaceDocument,
    kernel: KernelSpec,
    scalars: Iterable[str],
    tensors: Sequence[TensorSpec] = (),
) -> set[str]:
    """`symbols_kept` for trials of the search. They also keep `layout` if a compiled-in `let`
    depends on strides: then each layout needs a separate binary. Trials compile the layouts that
    the space times, and only the confirmation of a champion compiles the others."""
    kept = symbols_kept(document, kernel, scalars, tensors)
    derived = [document.let[name] for name in kernel.compiled_in if name in document.let]
    strides = {symbol for spec in tensors for symbol in spec.stride_symbols}
    if strides & _names(derived, document.let):
        kept.add("layout")
    return kept


def strides_untold(
    document: SpaceDocument, kernel: KernelSpec, tensors: Iterable[TensorSpec]
) -> tuple[str, ...]:
    """The stride symbols of `tensors` that the kernel would have to take as arguments. A tensor map
    contains the strides."""
    told = _symbols_told(document, kernel)
    pointers = {argument.name for argument in kernel.arguments if argument.tensor_map is None}
    pointers |= {memory.tensor for memory in kernel.constant_memory}
    return tuple(
        symbol
        for spec in tensors
        if spec.name in pointers
        for symbol in spec.stride_symbols
        if symbol not in told
    )


def scalars_skipped(
    document: SpaceDocument, kernel: KernelSpec, scalars: Iterable[str]
) -> list[Check]:
    """A skipped check that names the scalars that keep the space's value in every case."""
    kept = symbols_kept(document, kernel, scalars)
    names = ", ".join(name for name in scalars if name in kept)
    if not names:
        return []
    how = "is compiled for" if set(kernel.define) & set(scalars) else "does not receive"
    detail = f"kernel {kernel.name} {how} {names}"
    return [Check(f"other values of {names}", ALL_KINDS, "skipped", detail=detail)]


def names_told(document: SpaceDocument, kernel: KernelSpec) -> set[str]:
    """The names of symbols and tensors that reach the kernel, or that it names in `supports`."""
    return _symbols_told(document, kernel) | {each.symbol for each in kernel.supports}


def _symbols_told(document: SpaceDocument, kernel: KernelSpec) -> set[str]:
    """The names that reach the kernel: compiled in, as arguments, or in a launch."""
    whens = (launch.when for launch in kernel.launches if launch.when is not None)
    names = _names((*kernel.expressions(), *whens), document.let)
    names |= {argument.name for argument in kernel.arguments if argument.name is not None}
    return names | set(kernel.define)


def _names(expressions: Iterable[Expression], let: Mapping[str, Expression]) -> set[str]:
    """All names in the expressions, and in their definitions by `let`."""
    found: set[str] = set()
    waiting = list(expressions)
    while waiting:
        for name in waiting.pop().names:
            if name.name not in found:
                found.add(name.name)
                waiting += [let[name.name]] if name.name in let else []
    return found


def refusal_of(document: SpaceDocument, problem: Problem, case: Case) -> str:
    """Why no kernel of the space can compute the case; "" if one can."""
    reasons = []
    for kernel in document.kernels:
        why = _kernels_refusal(document, kernel, problem, case)
        if not why:
            return ""
        reasons.append(why)
    return reasons[0]


def _kernels_refusal(
    document: SpaceDocument, kernel: KernelSpec, problem: Problem, case: Case
) -> str:
    if why := kernel.unsupported(case.symbols):
        return why
    strided = [spec for spec in problem.tensors(case) if spec.strides]
    if strides_untold(document, kernel, strided):
        return f"kernel {kernel.name} takes contiguous tensors only"
    if isinstance(problem, HasFeatures):
        told = names_told(document, kernel)
        untold = [n for n, known_by in problem.features_of(case).items() if not known_by & told]
        if untold:
            return f"kernel {kernel.name} does not compute {', '.join(untold)}"
    return ""
