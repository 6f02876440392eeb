from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.backends.base import recorded
from evotune.backends.base.recorded import read_recorded_space
from evotune.errors import EvotuneError, SpaceError, UsageError
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Outcome, OutcomeKind, Value

DATA = Path(__file__).parents[1] / "data"
RECORDING = DATA / "synthetic_recording.json.gz"


def entry(tile: Value, mode: Value, time: Any) -> dict[str, Any]:
    return {"TILE": tile, "MODE": mode, "time": time, "times": [time, time]}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "device_name": "Some GPU",
        "kernel_name": "some_kernel",
        "tune_params_keys": ["TILE", "MODE"],
        "tune_params": {"TILE": [16, 32, 64, 128], "MODE": ["row", "column"]},
        "cache": {
            "16,row": entry(16, "row", 2.0),
            "32,row": entry(32, "row", 0.5),
            "64,row": entry(64, "row", "CompilationFailedConfig"),
        },
    } | changes


def write(folder: Path, content: Any, name: str = "cache.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def unfinished(content: dict[str, Any]) -> str:
    """As Kernel Tuner leaves a file when it is killed: one entry a line, nothing closed."""
    header = json.dumps({k: v for k, v in content.items() if k != "cache"}, indent=0)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content["cache"].items()]
    return header[:-2] + ',\n"cache": {\n' + ",\n".join(lines) + ","


def at(tile: Value, mode: Value = "row") -> Configuration:
    return Configuration({"TILE": tile, "MODE": mode})


def test_reads_times_failures_and_names(tmp_path: Path) -> None:
    space = read_recorded_space(write(tmp_path, document()))
    assert (space.name, space.device_name, space.complete) == ("some_kernel", "Some GPU", True)
    assert list(space.space.enumerate()) == [at(16), at(32), at(64)]
    assert space.best_time_ms == 0.5
    assert space.outcome(at(32)) == Outcome(
        OutcomeKind.OK, fitness=math.log(2), resources={"time_ms": 0.5}
    )


@pytest.mark.parametrize(
    ("time", "kind", "reason"),
    [
        ("CompilationFailedConfig", OutcomeKind.COMPILE_ERROR, "CompilationFailedConfig"),
        ("RuntimeFailedConfig", OutcomeKind.LAUNCH_ERROR, "RuntimeFailedConfig"),
        ("InvalidConfig", OutcomeKind.REJECTED, "InvalidConfig"),
        ("SomethingNew", OutcomeKind.LAUNCH_ERROR, "SomethingNew"),
        (math.nan, OutcomeKind.LAUNCH_ERROR, "nan"),
        (math.inf, OutcomeKind.LAUNCH_ERROR, "inf"),
        (1e20, OutcomeKind.LAUNCH_ERROR, "1e\\+20"),
        (0.0, OutcomeKind.LAUNCH_ERROR, "0.0"),
        (-1, OutcomeKind.LAUNCH_ERROR, "-1"),
        (None, OutcomeKind.LAUNCH_ERROR, "no time"),
        (True, OutcomeKind.LAUNCH_ERROR, "no time"),
    ],
)
def test_a_recorded_failure_is_a_member_with_that_outcome(
    tmp_path: Path, time: Any, kind: OutcomeKind, reason: str
) -> None:
    space = read_recorded_space(write(tmp_path, document(cache={"a": entry(16, "row", time)})))
    outcome = space.outcome(space.space.default())
    assert outcome.kind is kind
    assert outcome.reason.startswith("recorded as")
    assert reason.replace("\\", "") in outcome.reason
    assert space.best_time_ms == math.inf


def test_what_was_not_recorded_is_a_usage_error(tmp_path: Path) -> None:
    space = read_recorded_space(write(tmp_path, document()))
    with pytest.raises(UsageError, match="no record of"):
        space.outcome(at(128))


def test_gzip_is_known_by_its_content_not_by_the_name(tmp_path: Path) -> None:
    plain = read_recorded_space(write(tmp_path, document(), "plain.json.gz"))
    zipped = tmp_path / "zipped.json"
    zipped.write_bytes(gzip.compress(json.dumps(document()).encode()))
    assert read_recorded_space(zipped).times_ms == plain.times_ms


def test_values_take_the_form_the_domain_gives_them(tmp_path: Path) -> None:
    content = document(cache={"a": entry(16.0, "row", 1.0)})
    assert list(read_recorded_space(write(tmp_path, content)).times_ms) == [at(16)]


def test_numbers_are_ordered_and_text_is_categorical(tmp_path: Path) -> None:
    content = document(
        tune_params={"TILE": [64, 16, 32], "MODE": ["row", "column"], "FLAG": [True, False]},
        tune_params_keys=["TILE", "MODE", "FLAG"],
        cache={"a": {**entry(64, "row", 1.0), "FLAG": True}},
    )
    parameters = read_recorded_space(write(tmp_path, content)).space.parameters
    assert [p.kind for p in parameters] == ["list", "choices", "bool"]
    assert list(parameters[0].values) == [16, 32, 64]


def test_an_unfinished_recording_keeps_its_entries(tmp_path: Path) -> None:
    space = read_recorded_space(write(tmp_path, unfinished(document())))
    assert not space.complete
    assert len(space.space) == 3


@settings(derandomize=True, max_examples=150)
@given(st.floats(0, 1))
def test_cut_anywhere_it_keeps_every_complete_entry(share: float) -> None:
    text = unfinished(document())
    start = text.index('"16,row"')
    cut = start + round(share * (len(text) - start))
    complete = text[:cut].count("}", start)
    if complete == 0:
        with pytest.raises(SpaceError, match="no configuration yet"):
            recorded._parse(text[:cut])
    else:
        _, cache, finished = recorded._parse(text[:cut])
        assert list(cache) == ["16,row", "32,row", "64,row"][:complete]
        assert not finished


def test_damage_before_the_end_is_not_taken_for_a_cut(tmp_path: Path) -> None:
    text = unfinished(document()).replace('"32,row": {"TILE"', '"32,row": {TILE"')
    with pytest.raises(SpaceError, match=r"cache.json:2[0-9]:12: "):
        read_recorded_space(write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[1, 2]", "JSON object"),
        ("[" * 100_000, "not JSON|nested too deep"),
        ("[" * 100_000 + "]" * 100_000, "too many digits"),
        ('{"cache": {"a": ' + "9" * 5000 + "}}", "too many digits"),
        ('{"device_name": "x", "cac', "not JSON"),
        ('{"x" "cache": {', ":1:6: "),
        ('{"cache": {', "no configuration yet"),
        (document(cache=[]), '"cache"'),
        (document(cache={}), "no configuration yet"),
        (document(tune_params_keys=None), "tune_params_keys"),
        (document(tune_params_keys=["TILE", "TILE"]), "distinct"),
        (document(tune_params=None), "tune_params"),
        (document(tune_params={"TILE": [16]}), "parameter MODE"),
        (document(tune_params={"TILE": [[16]], "MODE": ["row"]}), "parameter TILE"),
        (document(tune_params={"TILE": [math.nan], "MODE": ["row"]}), "parameter TILE"),
        (document(cache={"a": 5}), r'entry 1 \("a"\) is not an object'),
        (document(cache={"a": entry(17, "row", 1.0)}), r'entry 1 \("a"\) has TILE = 17'),
        (document(cache={"a": entry([], "row", 1.0)}), r'entry 1 \("a"\) has TILE'),
        (document(cache={"a": {"TILE": 16, "time": 1.0}}), "no MODE"),
        (document(cache={"a": {"TILE": 16, "MODE": "row"}}), 'no "time"'),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_line(
    tmp_path: Path, content: Any, complaint: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(SpaceError, match=complaint) as raised:
        read_recorded_space(path)
    assert str(raised.value).startswith(f"{path}:{raised.value.line}:{raised.value.column}: ")
    assert raised.value.line > 0
    assert "\n" not in str(raised.value)


LINES = """\
{"kernel_name": "k",
 "tune_params_keys": ["TILE", "MODE"],
 "tune_params": {"TILE": [16, 32], "MODE": ["row"]},
 "cache": {
  "16,row": {"TILE": 16, "MODE": "row", "time": 2.0, "note": ["}", {"TILE": 5}]},
  "32,row": {"MODE": "row", "TILE": 32, "time": 1.0}
 }
}
"""
T4 = """\
{"results": [
  {"configuration": {"TILE": 16}, "measurements": [{"name": "time", "value": 1.0}]},
  {"configuration": {"TILE": 32}, "measurements": [{"name": "time", "value": 2.0}]}]}
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "place"),
    [
        (LINES, '"TILE": 32, "time"', '"TILE": 33, "time"', ':6:29: entry 2 ("32,row") has TILE'),
        (LINES, '"TILE": 32, "time"', '"time"', ':6:3: entry 2 ("32,row") has no TILE'),
        (LINES, '"time": 1.0', '"x": 1.0', ':6:3: entry 2 ("32,row") has no "time"'),
        (LINES, '{"MODE": "row", "TILE": 32, "time": 1.0}', "5", ":6:3: entry 2 "),
        (LINES, '32, "time": 1.0', '[32], "time": 1.0', ":6:29: entry 2 "),
        (LINES, '"MODE": ["row"]', '"MODE": []', ":3:36: parameter MODE needs"),
        (LINES, '"MODE": ["row"]', '"M": ["row"]', ":3:2: parameter MODE needs"),
        (LINES, '"TILE", "MODE"]', '"TILE", "TILE"]', ":2:2: "),
        (LINES, '"time": 2.0', '"time": 2.0 5', ":5:53: "),
        (LINES, '"time": 1.0}', '"time": ' + "9" * 5000 + "}", ":6:49: not a Kernel Tuner cache"),
        (LINES, '"cache"', '"cash"', ":1:1: "),
        (T4, '{"TILE": 32}', '{"TILE": 32, "X": 1}', ":3:4: result 1: every configuration must"),
        (T4, '{"TILE": 32}', '{"TILE": [32]}', ":3:22: result 1: parameter TILE has the value"),
        (T4, '{"TILE": 32}', "{}", ":3:3: result 1 has no configuration"),
        (T4, '"value": 2.0', '"value": 2.0, "unit": "W"', ":3:35: result 1: time is in 'W'"),
    ],
)
def test_a_mistake_is_told_where_it_stands(
    tmp_path: Path, text: str, old: str, new: str, place: str
) -> None:
    assert old in text
    content = text.replace(old, new).encode()
    path = tmp_path / "rec.json"
    for stored in (gzip.compress(content), content):
        path.write_bytes(stored)
        with pytest.raises(SpaceError) as raised:
            read_recorded_space(path)
        assert str(raised.value).startswith(f"{path}{place}")
    (tmp_path / "space.yaml").write_text("name: r\nrecorded: {file: rec.json}\n")
    with pytest.raises(SpaceError) as through_a_space:
        load_setup(tmp_path / "space.yaml", "auto")
    assert str(through_a_space.value) == str(raised.value)


def test_a_recording_that_cannot_be_read_is_told_where_the_space_names_it(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("name: r\nrecorded: {file: rec.json}\n")
    with pytest.raises(SpaceError, match=r"space.yaml:2:18: cannot read .*rec.json: No such file"):
        load_setup(tmp_path / "space.yaml", "auto")
    (tmp_path / "rec.json").write_bytes(b"\x1f\x8b")
    with pytest.raises(SpaceError, match=r"space.yaml:2:18: .*rec.json: the gzip archive is dam"):
        load_setup(tmp_path / "space.yaml", "auto")
    (tmp_path / "rec.json").write_bytes(b'{"a":\n "\xff"}')
    with pytest.raises(SpaceError, match=r"rec.json:2:3: not a text file"):
        load_setup(tmp_path / "space.yaml", "auto")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(document()).encode())
    for name, data in {
        "cut.gz": whole[:-20],
        "flipped.gz": whole[:15] + bytes([whole[15] ^ 255]) + whole[16:],
        "magic.gz": b"\x1f\x8b",
        "binary": b"\xff\xfe\x00",
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SpaceError, match=name):
            read_recorded_space(tmp_path / name)
    with pytest.raises(UsageError, match="No such file"):
        read_recorded_space(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="directory"):
        read_recorded_space(tmp_path)


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_BYTES", 2**20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b" " * 2**21))
    with pytest.raises(SpaceError, match="larger than 1 MiB"):
        read_recorded_space(tmp_path / "bomb.gz")


def test_the_synthetic_recording_is_what_its_script_makes() -> None:
    script = DATA / "make_synthetic_recording.py"
    spec = importlib.util.spec_from_file_location("make_synthetic_recording", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert gzip.decompress(RECORDING.read_bytes()).decode() == module.text()


def test_the_synthetic_recording_has_every_kind_of_record() -> None:
    space = read_recorded_space(RECORDING)
    kinds = {space.outcome(c).kind for c in space.space.enumerate()}
    assert kinds == {
        OutcomeKind.OK,
        OutcomeKind.REJECTED,
        OutcomeKind.COMPILE_ERROR,
        OutcomeKind.LAUNCH_ERROR,
    }
    assert len(space.space) == 2016
    assert len(space.times_ms) + len(space.failures) == 2016


@settings(derandomize=True, max_examples=150)
@given(st.integers(0, 3000), st.integers(0, 127), st.booleans())
def test_any_changed_byte_is_read_or_refused(position: int, byte: int, finished: bool) -> None:
    text = json.dumps(document()) if finished else unfinished(document())
    position %= len(text)
    damaged = text[:position] + chr(byte) + text[position + 1 :]
    with contextlib.suppress(EvotuneError):  # any other exception fails the test
        recorded.recorded_space(damaged, "damaged")


def test_a_finished_cache_is_read_as_one_that_was_being_written() -> None:
    """Two readers do this, and must agree: on numbers in the form of the domain, on failures of
    both kinds, and whatever else an entry holds."""
    cache = {
        "a": entry(16.0, "row", 1),
        "b": {**entry(32, "row", "RuntimeFailedConfig"), "times": [1.0, {"time": 5.0}]},
        "c": {**entry(64, "column", 3.5), "__error__": None},
        "d": {**entry(16, "column", 4.5), "__error__": "CompilationFailedConfig"},
        "e": {"__error__": "InvalidConfig", "TILE": 64, "MODE": "row"},
        "f": entry(32, "column", math.nan),
    }
    strict = {key: value for key, value in cache.items() if key != "f"}  # NaN is not JSON
    assert recorded._finished_cache(json.dumps(document(cache=strict))) is not None
    assert recorded._finished_cache(json.dumps(document(cache=cache))) is None
    for each in (document(cache=cache), document(cache=strict)):
        finished = recorded.recorded_space(json.dumps(each), "x")
        cut = recorded.recorded_space(unfinished(each), "x")
        assert finished.complete
        assert not cut.complete
        assert finished.times_ms == cut.times_ms
        assert finished.failures == cut.failures
        assert finished.name == cut.name
        assert finished.device_name == cut.device_name
        assert finished.times_ms == {at(16): 1.0, at(64, "column"): 3.5}


@pytest.mark.parametrize("name", ["time", "__error__"])
def test_a_parameter_may_be_named_as_a_result_is(name: str) -> None:
    found = recorded.recorded_space(
        json.dumps(
            {
                "tune_params_keys": [name],
                "tune_params": {name: [1.5, 2.5]},
                "cache": {"1.5": {name: 1.5, "time": 1.5}},
            }
        ),
        "x",
    )
    assert [dict(c) for c in found.space.enumerate()] == [{name: 1.5}]


def test_needs_no_torch() -> None:
    code = "import sys, evotune.backends.base.recorded; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def t4(**changes: Any) -> dict[str, Any]:
    return {
        "configuration": {"TILE": 16, "MODE": "row"},
        "invalidity": "correct",
        "correctness": 1,
        "times": {"compilation": 5.0, "runtimes": [2.0]},
        "objectives": ["time"],
        "measurements": [{"name": "time", "value": 2.0, "unit": "ms"}],
    } | changes


def test_reads_t4_results(tmp_path: Path) -> None:
    results = [
        t4(),
        t4(
            configuration={"TILE": 32, "MODE": "row"},
            objectives=["t"],
            measurements=[{"name": "t", "value": 500.0, "unit": "us"}],
        ),
        t4(configuration={"TILE": 64, "MODE": "row"}, invalidity="compile", measurements=[]),
        t4(configuration={"TILE": 64, "MODE": "column"}, invalidity="timeout", measurements=[]),
        t4(configuration={"TILE": 16, "MODE": "column"}, measurements=[]),
    ]
    space = read_recorded_space(write(tmp_path, {"schema_version": "1.0.0", "results": results}))
    assert dict(space.times_ms) == {at(16): 2.0, at(32): 0.5}
    assert space.outcome(at(64)).kind is OutcomeKind.COMPILE_ERROR
    assert space.outcome(at(64, "column")).kind is OutcomeKind.TIMEOUT
    assert space.outcome(at(16, "column")).kind is OutcomeKind.LAUNCH_ERROR
    assert [list(p.values) for p in space.space.parameters] == [[16, 32, 64], ["row", "column"]]


@pytest.mark.parametrize(
    ("unit", "ms"),
    [
        ("Microseconds", 2e-3),
        ("Nanoseconds", 2e-6),
        ("Milliseconds", 2.0),
        ("Seconds", 2e3),
        ("miliseconds", 2.0),
        ("seconds", 2e3),
        ("\N{MICRO SIGN}s", 2e-3),
        ("\N{GREEK SMALL LETTER MU}s", 2e-3),
        ("", 2.0),
        (None, 2.0),
    ],
)
def test_reads_the_units_of_published_t4_results(tmp_path: Path, unit: str, ms: float) -> None:
    results = [t4(measurements=[{"name": "time", "value": 2, "unit": unit}])]
    space = read_recorded_space(write(tmp_path, {"results": results}))
    assert list(space.times_ms.values()) == pytest.approx([ms])


def test_times_without_a_unit_have_the_documents(tmp_path: Path) -> None:
    measured = {"name": "time", "value": 2.0}
    results = [
        t4(measurements=[{**measured, "unit": ""}]),
        t4(configuration={"TILE": 32, "MODE": "row"}, measurements=[measured]),
        t4(
            configuration={"TILE": 64, "MODE": "row"},
            measurements=[{**measured, "unit": "ms"}],
        ),
    ]
    content = {"results": results, "metadata": {"timeunit": "seconds"}}
    space = read_recorded_space(write(tmp_path, content))
    assert space.times_ms == {at(16): 2000.0, at(32): 2000.0, at(64): 2.0}


def test_the_last_record_of_a_configuration_counts_however_its_numbers_are_written(
    tmp_path: Path,
) -> None:
    failed = {"invalidity": "compile", "measurements": []}
    results = [
        t4(),
        t4(configuration={"TILE": 16.0, "MODE": "row"}, **failed),
        t4(configuration={"TILE": 32, "MODE": "row"}, **failed),
        t4(configuration={"TILE": 32.0, "MODE": "row"}),
    ]
    space = read_recorded_space(write(tmp_path, {"results": results}))
    assert (dict(space.times_ms), list(space.failures)) == ({at(32): 2.0}, [at(16)])
    assert space.outcome(at(16)).kind is OutcomeKind.COMPILE_ERROR


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([], "no configuration"),
        ([{"configuration": {}}], "result 0 has no configuration"),
        ([3], "result 0 has no configuration"),
        ([t4(), t4(configuration={"TILE": 1})], "the same parameters"),
        ([t4(configuration={"TILE": [1], "MODE": "row"})], "parameter TILE has the value"),
        (
            [t4(measurements=[{"name": "time", "value": 1, "unit": "W"}])],
            "is not a unit of time",
        ),
        (
            [t4(measurements=[{"name": "time", "value": 1, "unit": ["ms"]}])],
            r"result 0: time is in \['ms'\], which is not a unit of time",
        ),
        (
            [
                t4(
                    objectives=["GFLOP/s"],
                    measurements=[{"name": "GFLOP/s", "value": 1, "unit": ""}],
                )
            ],
            "result 0: the objective GFLOP/s has no unit of time",
        ),
        ([t4(measurements={"time": 1})], "measurements: expected a list, found"),
        ([t4(measurements=[1])], "measurements: expected a list of objects, found 1"),
        (
            [t4(measurements=[{"name": "time", "value": "1.5", "unit": "ms"}])],
            "expected a number as the value of time, found '1.5'",
        ),
        ([t4(objectives="time")], "objectives: expected a list of names, found 'time'"),
        ([t4(objectives=[["time"]])], "objectives: expected a list of names"),
        ([t4(invalidity=["compile"])], r"invalidity: expected a word, found \['compile'\]"),
    ],
)
def test_refuses_damaged_t4_results(tmp_path: Path, results: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        read_recorded_space(write(tmp_path, {"results": results}))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"timeunit": "parsecs"}, "metadata.timeunit is in 'parsecs', which is not a unit of time"),
        ({"timeunit": ["s"]}, "metadata.timeunit is in"),
        ([], '"metadata" is not an object'),
    ],
)
def test_refuses_an_unknown_unit_of_a_t4_document(
    tmp_path: Path, metadata: Any, message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        read_recorded_space(write(tmp_path, {"results": [t4()], "metadata": metadata}))


def test_reads_failures_that_stand_beside_the_time(tmp_path: Path) -> None:
    content = document()
    content["cache"]["64,row"] = {"TILE": 64, "MODE": "row", "__error__": "RuntimeFailedConfig"}
    space = read_recorded_space(write(tmp_path, content))
    assert space.outcome(at(64)).kind is OutcomeKind.LAUNCH_ERROR
