"""Pictures of explanations: their content in words, their places, and their texts as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from evotune.explain.assembling import explain_data
from evotune.explain.explanation import Explanation, html_of
from evotune.explain.explanation_pictures import (
    ceilings_of_picture,
    effects_picture,
    explanation_pictures,
    no_waits_text,
    roofline_picture,
)
from evotune.explain.findings import Effect, Fact, Limiter, Roofline, Unit
from evotune.explain.sentences import held_text, winner_sentences
from evotune.explain.subjects import read_run
from evotune.report.html.pictures import (
    Drawing,
    Picture,
    Shape,
    figure_html,
    picture_json,
    text_width,
)
from evotune.report.wording import rate_text

from .planted import CASE, gathered, launch, planted_run

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "explain_champions_h200.json"
HOSTILE = '</svg><script>alert(1)</script>\x1b[2J"'


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    run = planted_run(tmp_path_factory.mktemp("counted"), gathered(launch()))
    return explain_data(read_run(run))


@pytest.fixture(scope="module")
def uncounted(tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    run = planted_run(tmp_path_factory.mktemp("uncounted"), gathered(launch(counted=False)))
    return explain_data(read_run(run))


def titles(found: Explanation) -> list[str]:
    return [picture.title for picture in explanation_pictures(found)]


def texts(drawing: Drawing) -> list[str]:
    return [shape.text for shape in drawing.shapes if shape.tag == "text"]


def drawings(picture: Picture) -> Iterator[Drawing]:
    yield picture.wide
    yield picture.narrow


def test_an_explanation_with_counters_has_five_pictures(counted: Explanation) -> None:
    assert titles(counted) == [
        f"Roofline on {CASE}, against measured ceilings",
        f"Busy part of the time on {CASE}",
        "Cycles that a warp waits between two instructions",
        "Worth of its choices",
        "Parameters that decide, over 18 valid trials",
    ]
    waits = explanation_pictures(counted)[2]
    assert "2.5 for global or local memory" in waits.alternative
    (longest,) = (s for s in waits.wide.shapes if s.look == "strong" and s.text[:3] == "for")
    assert longest.text == "for global or local memory"  # the limiter's own wait
    assert no_waits_text(counted) == ""


def test_without_counters_the_machine_code_stands_there_with_the_reason(
    uncounted: Explanation,
) -> None:
    assert "Instructions in the innermost loops" in titles(uncounted)
    assert not any("waits" in title for title in titles(uncounted))
    code = next(p for p in explanation_pictures(uncounted) if "Instructions" in p.title)
    assert "16 tensor cores (MMA)" in code.alternative
    assert "128 registers a thread, 0 bytes spilled." in code.note
    reason = str(uncounted.counters["unavailable"])
    assert reason in no_waits_text(uncounted)
    assert no_waits_text(uncounted).endswith("stand in their place.")


def test_the_roofline_names_its_ceilings_and_the_kernel(counted: Explanation) -> None:
    roofline = counted.roofline
    assert roofline is not None
    picture = roofline_picture(roofline, "trial 19", "tensor cores")
    assert picture is not None
    assert "trial 19: 53.7 TFLOP/s (10.0 µs)" in picture.alternative
    assert "tensor cores 900 TFLOP/s" in texts(picture.wide)
    assert "tensor cores" in texts(picture.narrow)  # a phone has no room for its figure
    assert "trial 19: 53.7 TFLOP/s" in texts(picture.narrow)
    assert [s.text for s in picture.wide.shapes if s.tag == "text" and s.look == "holds"] == [
        "tensor cores 900 TFLOP/s"
    ]


def roofline_of(*units: Unit, **changes: Any) -> Roofline:
    given = {"case": "(4,8)", "time_us": 10.0, "operations": 10**9, "bytes_moved": 10**6}
    given |= {"exponentials": 0, "intensity": 1000.0, "ceilings": "model", "units": units}
    return Roofline(**{**given, **changes})


def unit(name: str, of: str, rate: float | None, work: float | None) -> Unit:
    return Unit(name=name, unit=of, rate=rate, work=work, share=0.5, kind="model")


def test_a_unit_is_a_ceiling_where_the_kernels_own_work_would_fill_it() -> None:
    roofline = roofline_of(
        unit("FMA", "FLOP/s", 60e12, 1e9),
        unit("tensor cores", "FLOP/s", 900e12, None),  # of no use to this kernel
        unit("MUFU", "exp2/s", 4e12, 1e8),  # an exponential for ten operations
        unit("issue slots", "instructions/s", 1e12, 1e5),  # 10,000 operations each: far above
        unit("L2", "bytes/s", 6e12, 1e6),
    )
    found = [(c.name, c.rate, c.text) for c in ceilings_of_picture(roofline, "")]
    assert found == [
        ("FMA", 60e12, "60 TFLOP/s"),
        ("MUFU", pytest.approx(40e12), "4 T exp2/s"),
        ("L2", 6e12, "6 TB/s"),
    ]


@pytest.mark.parametrize(
    "roofline",
    [
        roofline_of(),
        roofline_of(unit("FMA", "FLOP/s", 60e12, 1e9), operations=0),
        roofline_of(unit("FMA", "FLOP/s", 60e12, 1e9), intensity=0.0),
        roofline_of(unit("ALU", "instructions/s", None, None)),
    ],
)
def test_no_roofline_without_ceilings_work_or_bytes(roofline: Roofline) -> None:
    assert roofline_picture(roofline, "trial 0", "") is None


def measured_rooflines() -> list[Any]:
    items = json.loads(MEASURED.read_text())["items"]
    plain = [
        roofline_of(unit("FMA", "FLOP/s", 1.0, 1e9)),
        roofline_of(unit("DRAM", "bytes/s", 1e9, 1e6)),
        roofline_of(unit("DRAM", "bytes/s", 1e18, 1.0), unit("FMA", "FLOP/s", 1e18, 1.0)),
    ]
    found = [(msgspec.convert(i["roofline"], Roofline), i["limiter"]["name"]) for i in items]
    return [*found, *((each, "DRAM") for each in plain)]


@pytest.mark.parametrize(("roofline", "limiter"), measured_rooflines())
def test_all_of_a_roofline_lies_on_its_drawing(roofline: Roofline, limiter: str) -> None:
    picture = roofline_picture(roofline, "trial 123456", limiter)
    assert picture is not None
    for drawing in drawings(picture):
        for shape in drawing.shapes:
            inside(shape, drawing)


def inside(shape: Shape, drawing: Drawing) -> None:
    """A text is held to its own start, middle or end; turned ones to that alone."""
    at = {name: value for name, value in shape.at.items() if not isinstance(value, str)}
    for name, value in at.items():
        most = drawing.width if "x" in name or name == "width" else drawing.height
        assert -0.01 <= value <= most + 0.01, (name, shape)
    if shape.tag == "text" and "transform" not in shape.at:
        length = text_width(shape.text)
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[str(shape.at["text-anchor"])]
        start = at["x"] - before * length
        assert start >= -2, shape
        assert start + length <= drawing.width + 2, shape


def effect(worth: float, low: float | None, high: float | None, name: str = "PAD") -> Effect:
    basis = "model" if low is None else "paired"
    return Effect(
        parameter=name, source=False, to=True, worth=worth, low=low, high=high, basis=basis
    )


def test_effects_stand_on_a_log_axis_with_their_intervals() -> None:
    effects = [effect(4.0, 2.0, 8.0), effect(0.25, 0.2, 0.3), effect(1.0, None, None)]
    picture = effects_picture(effects)
    assert picture is not None
    assert "PAD=true over false 4.00x [2.00, 8.00], paired" in picture.alternative
    dots = [s for s in picture.wide.shapes if s.tag == "circle"][:3]
    gain, loss, none = (float(dot.at["cx"]) for dot in dots)
    assert none - loss == pytest.approx(gain - none)
    (line, _) = (s for s in picture.wide.shapes if s.tag == "line" and s.look == "paired")
    low, high = float(line.at["x1"]), float(line.at["x2"])
    assert (low + high) / 2 == pytest.approx(gain)
    assert effects_picture([]) is None


def test_bars_and_effects_with_long_names_and_wild_figures_lie_on_their_drawings(
    counted: Explanation,
) -> None:
    long = "A_PARAMETER_WITH_A_NAME_THAT_NO_PHONE_HAS_ROOM_FOR_ON_ONE_LINE"
    wild = [effect(2.0, 0.0, 1e9, long), effect(1e6, 1e5, 1e7), effect(1e-6, 1e-7, 1e-5)]
    changed = msgspec.structs.replace(
        counted,
        effects=(*counted.effects, *wild),
        counters={"stalls": {f"{long}_{n}": 10.0 - n for n in range(12)}},
    )
    pictures = explanation_pictures(changed)
    assert pictures[2].note == "4 more reasons are 2.0 cycles together."
    for picture in pictures:
        for drawing in drawings(picture):
            for shape in drawing.shapes:
                inside(shape, drawing)


def test_texts_of_others_stay_texts() -> None:
    drawing = Drawing(10, 10)
    drawing.text("", (0, 0), HOSTILE)
    picture = Picture(HOSTILE, HOSTILE, drawing, drawing, HOSTILE)
    markup = figure_html(picture)
    assert "<script" not in markup
    assert "\x1b" not in markup
    assert "\x1b" not in json.dumps(picture_json(picture))
    svg = ET.fromstring(markup).find("svg")
    assert svg is not None
    assert svg.get("aria-label", "").startswith("</svg><script>")
    assert [node.tag for node in svg] == ["text"]


def test_both_ways_to_write_a_picture_have_the_same_texts(counted: Explanation) -> None:
    for picture in explanation_pictures(counted):
        figure = ET.fromstring(figure_html(picture))
        written = [node.text for node in figure.iter("text")]
        shapes = [s for d in picture_json(picture)["drawings"] for s in d["shapes"]]
        assert written == [text for tag, _, _, text in shapes if tag == "text"]
        assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in figure.iter("svg"))


def test_the_page_says_why_there_are_no_waits(uncounted: Explanation) -> None:
    assert "their reasons are not known" in html_of(uncounted)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (972.4e12, "FLOP/s", "972 TFLOP/s"),
        (3.884e12, "bytes/s", "3.88 TB/s"),
        (1.99e6, "launches/s", "1.99 M launches/s"),
        (12.0, "FLOP/s", "12 FLOP/s"),
        (5e15, "", "5 P"),
    ],
)
def test_rates_have_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert rate_text(value, unit) == text


@pytest.mark.parametrize(
    ("name", "share", "sentence"),
    [
        ("tensor cores", 0.75, "It is limited by tensor cores, busy for 75% of the time."),
        (
            "MUFU + L2",
            0.6,
            "It is limited by MUFU and L2 together: each is busy for more than half",
        ),
        (
            "latency: barrier",
            0.4,
            "It is limited by latency: 40% of a warp's waits are at a barrier.",
        ),
        ("latency", None, "It is limited by latency: no unit has much work"),
        ("grid", 0.5, "It is limited by its grid: 50% of the multiprocessors' time is idle."),
        ("launch", 0.5, "It is limited by launching: empty launches take 50% of the time."),
        ("spills", 0.1, "It is limited by spills: they are 10% of the instructions."),
        (
            "bank conflicts",
            0.2,
            "It is limited by bank conflicts: they take about 20% of the time.",
        ),
        ("", None, "It is not known yet what limits its speed."),
    ],
)
def test_a_share_is_said_with_its_meaning(name: str, share: float | None, sentence: str) -> None:
    limiter = Limiter(name=name, share=share, rule="", evidence=())
    assert held_text(limiter).startswith(sentence)


def test_a_share_by_the_model_is_the_problems_own_work() -> None:
    fact = Fact(text="", kind="model")
    limiter = Limiter(name="DRAM", share=0.8, rule="", evidence=(fact,))
    assert held_text(limiter).endswith("the problem's own work alone needs it for 80% of the time.")


def test_the_opening_has_the_limiter_its_evidence_and_sure_gains(counted: Explanation) -> None:
    held, evidence, gains = winner_sentences(counted)
    assert (
        held == f"On {CASE} it is limited by latency: 71% of a warp's waits are for global or "
        "local memory."
    )
    assert evidence.startswith("A warp waits 3.5 cycles between two instructions: 2.5 ")
    assert gains.startswith("Its most valuable choices: PAD=true, 2.00x over false; BLOCK=64, ")
