"""Values of a parameter that never gave a valid trial: which constraint or which outcome stood
against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from evotune.explain._trial_table import TrialTable
from evotune.explain.explanation import Hopeless
from evotune.report.reasons import alike_reasons
from evotune.report.wording import configuration_text
from evotune.space.bound import BoundSpace
from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Trial, Value

_MOST_BASES: Final = 256  # valid configurations in which a value is put


def hopeless_values(table: TrialTable, space: BoundSpace | None) -> tuple[Hopeless, ...]:
    """Tried values first, those with most trials before the others. Without the space, values that
    were never tried are not named."""
    found = [
        item
        for parameter in table.parameters
        for value in parameter.values
        if (item := _hopeless(table, space, parameter, value)) is not None
    ]
    return tuple(sorted(found, key=lambda item: -item.trials))


def _hopeless(
    table: TrialTable, space: BoundSpace | None, parameter: Parameter, value: Value
) -> Hopeless | None:
    with_it = [t for t in table.trials if _same(t.configuration[parameter.name], value)]
    if any(trial.outcome.ok for trial in with_it):
        return None
    if with_it:
        text = _outcomes_text(with_it)
    elif space is not None:
        text = _constraints_text(table, space, parameter.name, value)
    else:
        return None
    if not text:
        return None
    name = configuration_text({parameter.name: value})
    return Hopeless(
        parameter=parameter.name, value=value, trials=len(with_it), text=f"{name}: {text}"
    )


def _outcomes_text(trials: Sequence[Trial]) -> str:
    """`14 trials, all resource_limit: 262144 bytes of shared memory, but …`."""
    kinds = Counter(trial.outcome.kind.value for trial in trials)
    kind, most = kinds.most_common(1)[0]
    reason = alike_reasons((t.outcome.kind.value, t.outcome.reason) for t in trials)[0]
    count = f"{len(trials)} trial" + ("s" if len(trials) > 1 else "")
    if len(kinds) == 1:
        share = f"all {kind}" if len(trials) > 1 else kind
    else:
        share = ", ".join(f"{n} {k}" for k, n in kinds.most_common())
        share += "; most often" if most == reason.trials else "; for example"
    return f"{count}, {share}" + (f": {reason.example}" if reason.example else "")


def _constraints_text(table: TrialTable, space: BoundSpace, name: str, value: Value) -> str:
    """`0 of 212 valid: constraint `…``; "" where the parameter is inactive, or where some would be
    valid and the search did not come to them. The value is put into the run's own
    configurations."""
    bases = list(dict.fromkeys(trial.configuration for trial in table.trials))
    active = [base for base in bases[:_MOST_BASES] if name in space.active(base)]
    broken: Counter[str] = Counter()
    for base in active:
        violated = space.violations(Configuration({**base, name: value}))
        if not violated:
            return ""
        broken.update(violated)
    worst = ", ".join(f"`{text}`" for text, _ in broken.most_common(2))
    return f"0 of {len(active)} valid: constraint {worst}" if worst else ""


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other
