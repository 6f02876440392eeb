"""The red team's callables as a list: for tests, for campaigns, and for other judges.

    from tests.red_team.callable_corpus import ENTRIES

Each entry names a file under data/callables and a function of it, which takes `x` and `w` and
returns softmax(x) * w by rows, or takes `out` too and writes that (`problem.py`). `text` is all
that another judge needs: a module that imports none of its neighbours. A file's `make` returns the
function that `configuration["BEHAVIOUR"]` names.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.trial import Outcome, OutcomeKind
from tests.callables import CallableTrials

DATA = Path(__file__).parent / "data" / "callables"

CHEAT, SLOW, RIGHT = "cheat", "slow", "right"
"""What an entry is: wrong, or right by reusing results or by help that a baseline does not have;
right, and no faster for all that it does; right in an unusual way."""

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
BOUNDS, LAUNCH = OutcomeKind.OUT_OF_BOUNDS, OutcomeKind.LAUNCH_ERROR
ERROR, CRASH = OutcomeKind.COMPILE_ERROR, OutcomeKind.COMPILE_CRASH
ACCESS, DIFFER = OutcomeKind.ILLEGAL_ACCESS, OutcomeKind.NONDETERMINISTIC
FAST, UNDECIDED = OutcomeKind.TOO_FAST, OutcomeKind.UNDECIDED

Kinds = tuple[OutcomeKind, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """How a cheat may end: the kinds, and a pattern of the reason."""

    kinds: Kinds
    reason: str

    def holds(self, outcome: Outcome) -> bool:
        return outcome.kind in self.kinds and bool(re.search(self.reason, outcome.reason))


@dataclass(frozen=True, slots=True)
class Entry:
    """`family`: what it tries. `round`: the first was written from catalogues, the second against
    the judge's code. `expected` is None for what is no cheat. `needs`: a package."""

    name: str
    file: str
    kind: str
    family: str
    round: int = 1
    expected: Expected | None = None
    needs: str = ""

    @property
    def source(self) -> Path:
        return DATA / f"{self.file}.py"

    @property
    def text(self) -> str:
        return self.source.read_text()

    @property
    def takes_outputs(self) -> bool:
        return "out" in _parameters(self.file).get(self.name, ())

    def is_as_expected(self, outcome: Outcome) -> bool:
        """Whether the outcome is one that this entry should have. What is slow may pass, but not
        as a fast one."""
        if self.expected is not None:
            return outcome.fitness is None and self.expected.holds(outcome)
        if self.kind == SLOW and outcome.kind is LAUNCH:
            return bool(re.search("cores busy|its process (sent|answered)", outcome.reason))
        is_fast = any(each.speedup_low >= _FAST for each in outcome.measurements)
        return outcome.ok and not (self.kind == SLOW and is_fast)


_FAST = 1.05
OFF = "out is off by"
_VALUES = Expected((WRONG, NAN), "out")
"""Wrong on the inputs of the first checks, or on other ones."""
_ANY_VALUES = Expected((WRONG, NAN, DIFFER, BOUNDS), "out (is off|differ)|of out")
_STALE = Expected((WRONG, DIFFER), "out")
"""Right on the first inputs. Two calls may differ instead."""
_REUSE = Expected((FAST, UNDECIDED, WRONG), "launch before|while it is timed|too noisy|out is off")
"""Right, since it compares its inputs. A busy machine may hide that it reuses results."""
_LATE = Expected(
    (NAN, WRONG, LAUNCH, DIFFER, BOUNDS),
    "never written|out|after it had returned|differ between|process running|busy",
)
_MESSAGE = Expected((LAUNCH, ERROR), "its process (sent|answered) what")
_SHAPE = Expected((ERROR,), "expected")
_CHANGED = Expected((BOUNDS, WRONG), "changed its input|out is off")
_OUTSIDE = Expected((BOUNDS, CRASH, ACCESS), "wrote outside|changed its input|SIGABRT|SIGSEGV")
_LEFT = Expected((LAUNCH,), "process running|busy")
_DENIED = Expected((ERROR, LAUNCH), "PermissionError|OSError|not permitted")
_EARLY = Expected((LAUNCH,), "its process (sent|answered) what|after it had returned")


def _cheats(
    file: str, family: str, names: str, expected: Expected, *, round: int = 1
) -> Sequence[Entry]:
    return [Entry(name, file, CHEAT, family, round, expected) for name in names.split()]


def _others(file: str, kind: str, family: str, names: str) -> Sequence[Entry]:
    return [Entry(name, file, kind, family) for name in names.split()]


ENTRIES: tuple[Entry, ...] = (
    # Results that are kept.
    *_cheats(
        "memo",
        "replay",
        """remembers_by_id remembers_the_first_call returns_the_last_call
        remembers_by_first_and_last_value remembers_by_a_sum remembers_by_version
        remembers_by_strides_and_type keeps_a_bank_of_results replays_a_trace""",
        _STALE,
    ),
    *_cheats("memo", "replay", "remembers_differing_rows", _REUSE),
    *_cheats(
        "memo",
        "hidden state",
        """hides_in_a_closure hides_in_a_function_attribute hides_in_a_class_attribute
        hides_in_a_context_variable hides_in_a_partial hides_in_a_generator hides_behind_an_alias
        hides_in_a_lambda hides_behind_a_weak_reference hides_in_a_module hides_in_the_tensor
        hides_in_builtins hides_in_a_logger hides_in_a_cache hides_in_a_descriptor
        hides_in_a_file""",
        _STALE,
    ),
    *_cheats("cheating", "replay", "remembers_by_shape remembers_by_address", _STALE),
    *_cheats("cheating", "replay", "works_every_third_time", _STALE),
    *_cheats("cheating", "replay", "remembers_by_value", _REUSE),
    # Patches, and settings.
    *_cheats("cheating", "patch", "patches_comparisons", _VALUES),
    *_cheats(
        "patches",
        "patch",
        """patches_the_gate patches_the_watch patches_stdout patches_print patches_builtins
        patches_tensor_methods patches_the_import patches_the_random_numbers patches_the_audit""",
        Expected((WRONG, NAN, ERROR, LAUNCH, CRASH), "."),
    ),
    *_cheats("patches", "patch", "patches_the_host", Expected((WRONG, NAN, ERROR), ".")),
    *_cheats(
        "patches",
        "patch",
        "patches_the_hosts_class",
        Expected((ERROR, LAUNCH), "nobody hears of this|its process"),
    ),
    *_cheats(
        "patches",
        "patch",
        "changes_a_code_object",
        Expected((WRONG, LAUNCH, ERROR, ACCESS), "out is off|results cannot be read|Error|SIG"),
    ),
    *_cheats("patches", "patch", "changes_the_callers_frame", _VALUES),
    *_cheats("patches", "patch", "patches_synchronize", _LATE),
    # Who asks?
    *_cheats(
        "patches",
        "detection",
        """detects_by_the_stack detects_by_the_environment detects_by_the_process
        detects_by_loaded_modules detects_by_the_number_of_calls detects_by_the_clock
        detects_a_row_of_calls detects_known_shapes detects_the_tested_rows""",
        _ANY_VALUES,
    ),
    # Less than was asked.
    *_cheats("cheating", "precision", "half_precision", _VALUES),
    *_cheats(
        "wrong",
        "precision",
        """bfloat16_products float16_exponentials ten_bits_of_mantissa eight_bit_inputs
        eight_bit_outputs powers_by_a_polynomial no_maximum a_small_number_in_the_sum
        sums_in_half_precision""",
        _VALUES,
    ),
    *_cheats(
        "wrong",
        "skipped work",
        """sums_all_columns_but_one sums_a_sample_of_columns leaves_small_values_out
        leaves_the_last_row_out takes_all_rows_to_be_alike works_every_seventh_time
        works_in_nine_calls_of_ten works_when_sizes_are_even works_on_small_numbers
        takes_weights_to_be_the_first takes_weights_to_be_ones takes_the_mean
        passes_on_what_is_no_number reads_old_outputs""",
        _ANY_VALUES,
    ),
    *_cheats("wrong", "skipped work", "adds_to_its_output", _ANY_VALUES),
    *_cheats(
        "wrong",
        "what is returned",
        """returns_x returns_a_view_of_x returns_nothing_new returns_transposed
        returns_an_expanded_row returns_rows_that_overlap""",
        _ANY_VALUES,
    ),
    *_cheats(
        "wrong",
        "what is returned",
        "returns_doubles returns_a_flat_tensor returns_an_array returns_a_promise",
        _SHAPE,
    ),
    *_cheats(
        "wrong",
        "what is returned",
        "returns_a_meta_tensor returns_a_sparse_tensor",
        Expected((ERROR, LAUNCH), "meta|sparse|Sparse|memory format|results cannot be read"),
    ),
    *_cheats(
        "wrong",
        "inputs changed",
        "makes_inputs_easy makes_weights_easy changes_its_input_back writes_its_result_into_x",
        _CHANGED,
    ),
    *_cheats("cheating", "inputs changed", "changes_its_input returns_its_input", _CHANGED),
    # Later, or elsewhere.
    *_cheats(
        "later",
        "lazy tensor",
        "returns_a_promise_tensor claims_another_address claims_a_bad_address",
        Expected((WRONG, ERROR, LAUNCH, NAN, ACCESS), "out is off|data|storage|results cannot be"),
    ),
    *_cheats(
        "later",
        "thread or process",
        """works_in_a_timer works_in_a_pool waits_for_half_of_its_pool works_in_a_queue
        works_in_a_loop_of_events works_in_native_threads works_in_a_child
        works_in_a_process_pool works_in_a_daemon starts_a_program works_when_the_judge_reads""",
        _LATE,
    ),
    *_cheats(
        "later",
        "finalizer",
        """works_when_it_is_freed works_when_its_result_is_freed works_in_a_weak_finalizer
        works_at_the_end works_when_garbage_is_collected works_when_a_profiler_sees_the_end
        works_when_a_virtual_timer_ends""",
        _LATE,
    ),
    *_cheats(
        "cheating",
        "thread or process",
        "works_in_a_thread works_in_a_quick_thread works_when_a_signal_comes works_ahead",
        _LATE,
    ),
    # Hidden text, packages, settings.
    *_cheats(
        "hidden",
        "hidden text",
        """hidden_in_base64 hidden_by_compression hidden_in_characters hidden_in_bytes_of_code
        hidden_by_pasted_names installs_a_package writes_its_own_module loads_a_pickle
        replaces_its_own_code is_a_module""",
        _STALE,
    ),
    *_cheats(
        "hidden",
        "settings",
        """lowers_the_default_type flushes_small_numbers rounds_to_zero
        turns_gradients_off_and_fails asks_for_less_precision""",
        _VALUES,
    ),
    *_cheats(
        "hidden",
        "limits",
        "takes_all_limits_off",
        Expected((LAUNCH, ERROR), "it may write 64 MiB"),
    ),
    # What the process says, memory, processes.
    *_cheats("cheating", "reference", "searches_for_the_reference", _VALUES),
    *_cheats("cheating", "message", "forges_a_verdict", Expected((ERROR,), "SystemExit: 0")),
    *_cheats("cheating", "memory", "writes_past_the_end", _OUTSIDE),
    *_cheats("cheating", "message", "replaces_the_loop", _STALE, round=2),
    *_cheats("cheating", "message", "answers_early", _EARLY, round=2),
    *_cheats(
        "forged",
        "message",
        """sends_a_verdict signals_that_it_is_done answers_twice answers_another_number
        answers_with_noise answers_without_an_address""",
        _MESSAGE,
    ),
    *_cheats(
        "forged",
        "message",
        "closes_its_connection passes_its_connection_on releases_itself clears_the_word",
        Expected((LAUNCH,), "its process|results cannot be read|KeyError|process running"),
    ),
    *_cheats("forged", "message", "says_that_it_sleeps", _VALUES),
    *_cheats(
        "forged",
        "memory",
        "writes_its_own_memory writes_everywhere writes_into_all_outputs",
        _OUTSIDE,
    ),
    *_cheats("forged", "memory", "writes_before_its_input writes_behind_its_input", _OUTSIDE),
    *_cheats("forged", "memory", "shrinks_the_shared_memory", _DENIED),
    *_cheats(
        "forged",
        "memory",
        "unmaps_its_result protects_its_result",
        Expected((LAUNCH, ACCESS, ERROR), "results cannot be read|SIG"),
    ),
    *_cheats("forged", "memory", "frees_its_result", _VALUES),
    *_cheats(
        "forged",
        "process",
        "kills_the_null_host",
        Expected((LAUNCH, ERROR), "died of SIGKILL"),
    ),
    # The second round.
    *_cheats(
        "mechanisms",
        "detection",
        """works_while_the_judge_spins works_after_a_long_pause works_where_the_judge_is_elsewhere
        works_for_the_first_slots""",
        _ANY_VALUES,
        round=2,
    ),
    *_cheats(
        "mechanisms",
        "message",
        """answers_and_then_works answers_after_half_of_its_work answers_the_next_call_too""",
        Expected(
            (LAUNCH, WRONG, NAN, DIFFER),
            "after it had returned|its process (sent|answered) what|out",
        ),
        round=2,
    ),
    *_cheats("mechanisms", "message", "says_that_it_is_ready", _MESSAGE, round=2),
    *_cheats(
        "mechanisms",
        "message",
        "raises_no_error_when_it_fails ends_as_if_all_were_well",
        Expected((LAUNCH, CRASH), "ended with status 0"),
        round=2,
    ),
    *_cheats(
        "mechanisms",
        "message",
        "raises_with_a_verdict",
        Expected((ERROR,), r"^mechanisms.py:\d+: ValueError: .{0,400}$"),
        round=2,
    ),
    *_cheats("mechanisms", "replay", "prepares_while_it_is_waked", _REUSE, round=2),
    *_cheats(
        "mechanisms",
        "thread or process",
        "works_in_the_pauses",
        Expected((LAUNCH, *_REUSE.kinds), f"busy|{_REUSE.reason}"),
        round=2,
    ),
    *_cheats(
        "mechanisms",
        "replay",
        "remembers_every_other_column works_on_rows_by_turns works_when_the_last_result_was_read",
        Expected((*_STALE.kinds, *_REUSE.kinds), f"{_STALE.reason}|{_REUSE.reason}"),
        round=2,
    ),
    *_cheats(
        "mechanisms",
        "judge",
        """fills_its_result_on_demand reads_the_judges_memory writes_the_judges_memory
        opens_the_judges_files takes_the_judges_descriptors traces_the_judge traces_the_zygote""",
        _DENIED,
        round=2,
    ),
    # Right, and not faster.
    *_others(
        "cheating",
        SLOW,
        "patch",
        "patches_clocks patches_torch patches_events returns_lazy_tensors",
    ),
    *_others(
        "slows",
        SLOW,
        "baseline",
        """spins_elsewhere spins_now_and_then empties_the_caches takes_much_memory
        is_nice_to_nobody slows_all_later_imports turns_the_collector_on
        changes_the_switch_interval waits_for_a_call yields_its_core
        limits_the_threads_of_others patches_a_clock_in_c""",
    ),
    *_others(
        "mechanisms",
        SLOW,
        "null host",
        "slows_the_null_host stops_the_null_host asks_to_be_waked",
    ),
    *_others("forged", SLOW, "cores", "takes_another_core takes_another_core_for_a_while"),
    *_others("mechanisms", SLOW, "judge", "moves_the_judge lowers_the_judges_priority"),
    *_others("later", SLOW, "finalizer", "works_at_a_pending_call"),
    # Right, and unusual.
    *_others("cheating", RIGHT, "plain", "right takes_outputs returns_a_view keeps_scratch"),
    *_others(
        "right",
        RIGHT,
        "kept",
        """keeps_constants keeps_a_workspace keeps_its_result_buffer
        keeps_a_weak_workspace""",
    ),
    *_others(
        "right",
        RIGHT,
        "what is returned",
        """returns_a_tuple returns_a_dictionary returns_a_column_major_view returns_a_part_of_more
        returns_a_negated_view returns_a_subclass returns_a_parameter""",
    ),
    *_others(
        "right",
        RIGHT,
        "how it computes",
        """writes_in_place differentiates multiplies_by_a_sparse_matrix computes_in_doubles
        uses_many_types changes_the_default_type_for_a_while computes_with_numpy infers
        has_no_gradients maps_over_rows applies_a_function is_scripted generates_rows awaits""",
    ),
    *_others(
        "right",
        RIGHT,
        "how it is written",
        """is_a_method is_a_class_method is_a_static_method is_a_callable_object is_a_partial
        is_a_lambda any_names is_wrapped takes_names_alone is_made_for_a_case is_a_network
        is_nested""",
    ),
    *_others(
        "right",
        RIGHT,
        "what it does besides",
        """prints_a_line warns logs catches_errors collects_garbage handles_a_signal
        writes_a_temporary_file sets_one_thread joins_a_pool joins_its_threads waits_a_while
        imports_late""",
    ),
    *_others("right", RIGHT, "compiler", "is_native is_compiled is_compiled_lazily"),
    Entry("is_numba", "right", RIGHT, "compiler", needs="numba"),
)


def named(name: str) -> Entry:
    return _BY_NAME[name]


_BY_NAME = {entry.name: entry for entry in ENTRIES}


def of_kind(kind: str) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.kind == kind]


def is_installed(entry: Entry) -> bool:
    """Whether the package is here that the entry needs, if it needs one."""
    return not entry.needs or importlib.util.find_spec(entry.needs) is not None


SEARCH, CONFIRMATION = "search", "confirmation"


def judge(trials: CallableTrials, entry: Entry, number: int | None = None) -> tuple[str, Outcome]:
    """The last stage that the entry came to, and its outcome. A cheat that passes the search is
    confirmed as a champion."""
    values = {"KERNEL": entry.file, "BEHAVIOUR": entry.name}
    outcome = trials.run(number=number, **values)
    if entry.kind != CHEAT or not outcome.ok:
        return SEARCH, outcome
    return CONFIRMATION, trials.run(number=number, confirm=True, **values)


@functools.cache
def functions(file: str) -> Mapping[str, str]:
    """The callables that a file defines, which take x and w or are given a name like theirs."""
    found = {}
    for node in ast.parse((DATA / f"{file}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            given = [*node.args.args, *node.args.kwonlyargs]
            found[node.name] = ",".join(each.arg for each in given)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ""
    return found


def _parameters(file: str) -> Mapping[str, Sequence[str]]:
    return {name: given.split(",") for name, given in functions(file).items()}


_SPACE = """
name: callables
root: {root}
problem: {{name: problem.py:Weighted, shapes: [{{rows: 64, columns: 512}}]}}
kernels:
{kernels}
parameters:
  BEHAVIOUR: {{choices: [{names}]}}
baseline: torch:best
"""


def write_space(path: Path) -> Path:
    """A space of all entries. KERNEL is an entry's file, and BEHAVIOUR its name."""
    files = sorted({entry.file for entry in ENTRIES})
    lines = [f"  {each}: {{source: {each}.py, entry: make, language: python}}" for each in files]
    names = ", ".join(sorted(entry.name for entry in ENTRIES))
    root = os.path.relpath(DATA, path.parent)
    path.write_text(_SPACE.format(root=root, kernels="\n".join(lines), names=names))
    return path
