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
from evotune.trial import Configuration, Trial, Value

_MOST_BASES: Final = 256  # valid configurations in which a value is put


def hopeless_values(table: TrialTable, space: BoundSpace | None) -> tuple[Hopeless, ...]:
    """Tried values first, those with most trials before the others. Without the space, values that
    were never tried are not named."""
    found: list[Hopeless] = []
    for parameter in table.parameters:
        by_value: dict[tuple[type, Value], list[Trial]] = {}
        for trial in table.trials:
            value = trial.configuration[parameter.name]
            by_value.setdefault((type(value), value), []).append(trial)
        for value in parameter.values:
            with_it = by_value.get((type(value), value), [])
            item = _hopeless(table, space, parameter.name, value, with_it)
            found += [item] if item is not None else []
    return tuple(sorted(found, key=lambda item: -item.trials))


def _hopeless(
    table: TrialTable, space: BoundSpace | None, name: str, value: Value, with_it: Sequence[Trial]
) -> Hopeless | None:
    if any(trial.outcome.ok or trial.outcome.undecided for trial in with_it):
        return None
    if with_it:
        text = _outcomes_text(with_it)
    elif space is not None:
        text = _constraints_text(table, space, name, value)
    else:
        return None
    if not text:
        return None
    said = configuration_text({name: value})
    return Hopeless(parameter=name, value=value, trials=len(with_it), text=f"{said}: {text}")


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
    """The constraints that the value breaks in each configuration of the run; "" where the
    parameter is inactive, or where some would be valid and the search did not come to them."""
    bases = list(dict.fromkeys(trial.configuration for trial in table.trials))
    active = [base for base in bases[:_MOST_BASES] if name in space.active(base)]
    broken: Counter[str] = Counter()
    for base in active:
        violated = space.violations(Configuration({**base, name: value}))
        if not violated:
            return ""
        broken.update(violated)
    worst = ", ".join(f"`{text}`" for text, _ in broken.most_common(2))
    where = "the one tried configuration"
    if len(active) > 1:
        where = f"each of {len(active)} tried configurations"
    return f"put into {where} it breaks a constraint, {worst}" if worst else ""
