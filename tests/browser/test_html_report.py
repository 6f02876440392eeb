"""The HTML report in a browser, offline, with hostile texts in the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explain.planted import gathered, launch, planted_run
from report.runs import META, failed, make_run, ok, recorded

from evotune.explain.report_parts import explained_html
from evotune.report import html as html_module
from evotune.report.data import RunData
from evotune.report.html import html_page
from evotune.trial import OutcomeKind

from . import chromium

HOSTILE = "</script><img src=x onerror=window.hacked=1><b>%{x}</b>"
ABLATION = {
    "trial": 2,
    "configuration": {},
    "date": "2030-01-02T03:04:05+00:00",
    "rows": [
        {"parameter": "UNROLL", "before": 2, "after": 1, "also": {}, "why": "default",
         "outcome": "ok", "reason": "", "ratio": 0.8, "ratio_low": 0.78, "ratio_high": 0.82},
        {"parameter": HOSTILE, "before": True, "after": False, "also": {HOSTILE: 1},
         "why": "neighbour", "outcome": "compile_error", "reason": HOSTILE, "ratio": None,
         "ratio_low": None, "ratio_high": None},
    ],
}  # fmt: skip

SECTIONS = (
    "Best so far",
    "Leaderboard",
    "Pareto front",
    "Champion by shape and variant",
    "Champion against the default",
    "The worth of each choice",
    "Parallel coordinates",
    "Effect of each parameter",
    "Outcomes",
    "Time by stage",
    "Run and environment",
)

if chromium.find() is None:
    pytest.skip(f"needs one of {', '.join(chromium.NAMES)}", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    program = chromium.find()
    assert program is not None
    with chromium.Browser(program) as opened:
        yield opened


@pytest.fixture
def page(tmp_path: Path, browser: chromium.Browser) -> Iterator[Path]:
    """The page of a run with a champion, slower rows, failures and hostile texts everywhere. After
    the test: the page caused no error, ran no foreign script and requested nothing."""
    browser.errors.clear()
    browser.requests.clear()
    outcomes = [
        ok(1.1),
        failed(OutcomeKind.COMPILE_ERROR, HOSTILE),
        ok(1.5, held_out=(HOSTILE,)),
        ok(0.7, flags=("throttled",), max_error=1e-6),
        failed(OutcomeKind.TIMEOUT, "10 s"),
        failed(OutcomeKind.TIMEOUT, "11 s"),
    ]
    configurations = {
        number: {"BLOCK_M": 16 << number, "UNROLL": number, "MODE": HOSTILE if number % 2 else "a"}
        for number in range(len(outcomes))
    }
    run = make_run(
        tmp_path, outcomes, confirmations={2: ok(1.4, 1.35, 1.45, held_out=(HOSTILE,))},
        configurations=configurations, environment=f'{{"compiler": "{HOSTILE}"}}',
        meta={"space": HOSTILE, "default": configurations[0], "ablation": ABLATION,
              "command": ["evotune", "run", HOSTILE],
              "settings": {**META["settings"], "objectives": ["speedup", "error"]}},
    )  # fmt: skip
    file = tmp_path / "report.html"
    file.write_text(html_page([RunData.load(run)]), encoding="utf-8")
    yield file
    assert browser.errors == []
    assert [
        url for url in browser.requests if not url.startswith(("file:", "data:", "blob:"))
    ] == []
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.querySelectorAll('img, #page b').length") == 0


def draw_all(browser: chromium.Browser) -> int:
    """Draws all charts, also those out of sight; returns how many there are."""
    browser.evaluate(
        "for (const node of charts.keys()) { watcher.unobserve(node); drawChart(node); }"
    )
    return int(browser.evaluate("document.querySelectorAll('.chart[data-drawn]').length"))


def column(browser: chromium.Browser, number: int) -> Any:
    """The leaderboard's cells of one column, from the top."""
    cells = f"[...document.querySelectorAll('.datatable tbody tr td:nth-child({number})')]"
    return browser.evaluate(f"{cells}.map((cell) => cell.textContent)")


def click(browser: chromium.Browser, selector: str, text: str) -> None:
    found = f"[...document.querySelectorAll({selector!r})].find((e) => e.textContent === {text!r})"
    browser.evaluate(f"{found}.click()")


def type_filter(browser: chromium.Browser, text: str) -> None:
    browser.evaluate(
        "(() => { const box = document.querySelector('.datatable input');"
        f" box.value = {text!r}; box.dispatchEvent(new Event('input')); }})()"
    )


def every_section_draws(browser: chromium.Browser, page: Path, width: int, *, dark: bool) -> None:
    browser.look(width=width, dark=dark)
    browser.open(page)
    assert draw_all(browser) >= 10  # seven charts and one for each of three parameters
    empty = "[...document.querySelectorAll('.chart')].filter((e) => !e.querySelector('svg text'))"
    assert browser.evaluate(f"{empty}.length") == 0
    theme = browser.evaluate("document.documentElement.dataset.theme")
    assert theme == ("dark" if dark else "light")
    assert browser.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("dark", [pytest.param(False, marks=pytest.mark.soak), True])
def test_every_section_draws_in_light_and_dark(
    browser: chromium.Browser, page: Path, dark: bool
) -> None:
    every_section_draws(browser, page, 1280, dark=dark)


def test_every_section_draws_on_a_phone_in_its_place(browser: chromium.Browser, page: Path) -> None:
    every_section_draws(browser, page, 390, dark=False)
    headings = browser.evaluate(
        "[...document.querySelectorAll('section > h2')].map((e) => e.textContent)"
    )
    assert [text for text in headings if text in SECTIONS] == list(SECTIONS)
    ink = "getComputedStyle(document.querySelector('.chart svg text')).fill"
    before = browser.evaluate(ink)
    click(browser, "#theme", "Dark")
    assert browser.evaluate(ink) != before  # charts that are drawn change colour with the page
    hero = browser.evaluate("document.querySelector('.hero').textContent")
    assert "1.400x [1.350, 1.450] against sdpa:flash" in hero
    asked = "[...document.querySelectorAll('.hero dl.answers dt')].map((e) => e.textContent)"
    assert browser.evaluate(asked) == [
        "What won?",
        "By how much?",
        "Is it sure?",
        "Why?",
        "How do I use it?",
        "What next?",
    ]
    assert HOSTILE in hero


def test_an_explanation_has_its_pictures_at_every_width_and_in_both_themes(
    browser: chromium.Browser, page: Path, tmp_path: Path
) -> None:
    with RunData.opened(planted_run(tmp_path / "why", gathered(launch()), space=HOSTILE)) as data:
        page.write_text(explained_html([data]), encoding="utf-8")
    shown = (
        "[...document.querySelectorAll('.evotune-picture svg')].filter(e => e.checkVisibility())"
    )
    inks = set()
    for width, dark in ((1280, False), (1280, True), (390, False)):
        browser.look(width=width, dark=dark)
        browser.open(page)
        draw_all(browser)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        size = "narrow" if width == 390 else "wide"
        sizes = browser.evaluate(f"{shown}.map((e) => e.getAttribute('class'))")
        assert sizes == [size] * 5
        outside = f"{shown}.filter((e) => e.getBoundingClientRect().right > {width})"
        assert browser.evaluate(f"{outside}.length") == 0
        ink = "getComputedStyle(document.querySelector('.evotune-picture text.strong')).fill"
        inks.add(browser.evaluate(ink))
        # Text is as large as it was drawn, and no smaller: it can be read on a phone.
        assert browser.evaluate(f"Math.min(...{shown}.map((e) => e.getScreenCTM().a))") > 0.9
        level = "[...e.querySelectorAll('text:not([transform])')].map((t) => t.getBBox().x)"
        reach = f"{shown}.flatMap((e) => {level})"
        assert browser.evaluate(f"Math.min(...{reach})") > -2
    assert len(inks) == 2
    labels = browser.evaluate(f"{shown}.map((e) => e.getAttribute('aria-label'))")
    assert labels[0].startswith("Roofline. trial 19: 53.7 TFLOP/s (10.0 µs) at ")
    assert all(labels)
    why = browser.evaluate("document.querySelector('.hero dl.answers').textContent")
    assert "it is limited by latency: 71% of a warp's waits are for global or local memory" in why


def under_pointer(browser: chromium.Browser, label: str, mark: str) -> Any:
    """The text that a chart shows when the pointer stands on its first such mark."""
    return browser.evaluate(
        "(() => {"
        f" const chart = [...document.querySelectorAll('.chart')]"
        f".find((e) => e.getAttribute('aria-label') === {label!r});"
        f" const box = chart.querySelector({mark!r}).getBoundingClientRect();"
        " const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };"
        " chart.lastElementChild.previousElementSibling.dispatchEvent("
        "new PointerEvent('pointermove', at));"
        " const tip = chart.querySelector('.tip'); return tip.hidden ? null : tip.innerText; })()"
    )


def test_a_mark_shows_its_text_under_the_pointer(browser: chromium.Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    draw_all(browser)
    assert under_pointer(browser, "Best so far", ".front circle") == "trial 0: 1.100"
    assert HOSTILE in under_pointer(browser, "Pareto front", ".front circle:nth-of-type(2)")
    case = under_pointer(browser, "Speedup per shape and variant", ".front path[class*=quiet]")
    assert case == f"{HOSTILE}: 1.400x [1.350, 1.450]"
    choice = under_pointer(browser, "Ablation", ".front circle")
    assert choice == "UNROLL 2 to 1: 0.800x [0.780, 0.820]"
    assert under_pointer(browser, "Outcomes by kind", ".front rect") == "ok: 3"
    assert under_pointer(browser, "Time by stage", ".front rect") == "compile, trials: 9.00 s"
    box = under_pointer(browser, "Effect of UNROLL", ".front rect")
    assert box.split("\n") == ["0", "most: 1.100", "upper quartile: 1.100", "median: 1.100",
                               "lower quartile: 1.100", "least: 1.100"]  # fmt: skip


def test_a_part_is_enlarged_by_dragging_and_a_double_click_shows_all(
    browser: chromium.Browser, page: Path
) -> None:
    browser.look()
    browser.open(page)
    draw_all(browser)
    ticks = (
        "[...document.querySelectorAll('.chart')[0].querySelectorAll('text[text-anchor=middle]')]"
        ".map((e) => e.textContent)"
    )
    whole = browser.evaluate(ticks)
    assert whole == ["0", "1", "2", "3", "trial", "speedup"]
    over = "document.querySelectorAll('.chart')[0].querySelectorAll(':scope > svg')[1]"
    browser.evaluate(
        f"(() => {{ const over = {over}; const box = over.getBoundingClientRect();"
        "const send = (target, type, share) => target.dispatchEvent(new PointerEvent(type,"
        " { pointerType: 'mouse', bubbles: true, clientX: box.left + share * box.width,"
        " clientY: box.top + box.height / 2 }));"
        "send(over, 'pointerdown', 0.6); send(window, 'pointermove', 0.8);"
        "send(window, 'pointerup', 0.99); })()"
    )
    assert browser.evaluate(ticks) == ["2", "3", "trial", "speedup"]
    browser.evaluate(f"{over}.dispatchEvent(new MouseEvent('dblclick'))")
    assert browser.evaluate(ticks) == whole


def test_a_figure_that_is_added_as_the_guide_says_is_drawn(
    browser: chromium.Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```js\n(.*?)```", guide, re.DOTALL)
    asset, columns = html_module._asset, html_module._columns

    def with_example(name: str) -> str:
        text = asset(name)
        if name != "figures.js":
            return text
        return text.replace("hero(run),", "hero(run), verifySection(run, rows),", 1) + example

    monkeypatch.setattr(html_module, "_asset", with_example)
    monkeypatch.setattr(
        html_module, "_columns", lambda *given: {**columns(*given), "verify_s": [0.1, 1.0, 10.0]}
    )
    file = tmp_path / "report.html"
    file.write_text(html_page([RunData.load(make_run(tmp_path, [ok(1.2)] * 3))]), encoding="utf-8")
    browser.errors.clear()
    browser.look()
    browser.open(file)
    draw_all(browser)
    chart = "document.querySelector('[aria-label=\"Time of the checks\"]')"
    assert browser.evaluate(f"{chart}.querySelectorAll('.front circle').length") == 3
    texts = browser.evaluate(f"[...{chart}.querySelectorAll('text')].map((e) => e.textContent)")
    assert {"0.1", "1", "10", "seconds", "trial"} <= set(texts)
    assert browser.errors == []


def test_a_chart_is_as_wide_as_its_place_when_the_window_changes(
    browser: chromium.Browser, page: Path
) -> None:
    browser.look()
    browser.open(page)
    draw_all(browser)
    for width in (390, 1000):
        browser.look(width=width)
        wrong = (
            "[...document.querySelectorAll('.chart')]"
            ".filter((e) => e.querySelector('svg').clientWidth !== e.clientWidth)"
        )
        browser.wait(f"{wrong}.length === 0")
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        cut = (
            "[...document.querySelectorAll('.chart:not(.parallel)')].filter((e) => "
            "[...e.querySelectorAll(':scope > svg text')].some((t) => {"
            " const [a, b] = [t.getBoundingClientRect(), e.getBoundingClientRect()];"
            " return a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 2; }))"
            ".map((e) => e.getAttribute('aria-label'))"
        )
        assert browser.evaluate(cut) == []


def test_a_cloud_of_points_is_painted_and_each_has_its_text(
    browser: chromium.Browser, tmp_path: Path
) -> None:
    browser.errors.clear()
    run = make_run(tmp_path, [ok(1 + (n * 37 % 601) / 1000) for n in range(700)])
    file = tmp_path / "report.html"
    file.write_text(html_page([RunData.load(run)]), encoding="utf-8")
    browser.look()
    browser.open(file)
    draw_all(browser)
    assert browser.evaluate("document.querySelector('.chart canvas').dataset.points") == "700"
    assert (
        browser.evaluate("document.querySelectorAll('.chart')[0].querySelectorAll('circle').length")
        == 0
    )
    dark = (
        "(() => { const canvas = document.querySelector('.chart canvas');"
        " const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        " const found = new Set();"
        " for (let at = 0; at < all.length; at += 4) if (all[at + 3] > 150) found.add(all[at]);"
        " return Math.min(...found); })()"
    )
    light_ink = browser.evaluate(dark)
    click(browser, "#theme", "Dark")
    assert browser.evaluate(dark) < light_ink - 20  # the canvas has the theme's colour too
    point = (
        "(() => { const chart = document.querySelector('.chart');"
        " const box = chart.querySelector('canvas').getBoundingClientRect();"
        " const over = chart.querySelectorAll(':scope > svg')[1];"
        " over.dispatchEvent(new PointerEvent('pointermove',"
        " { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));"
        " return chart.querySelector('.tip').textContent; })()"
    )
    assert browser.evaluate(point).startswith("trial 3")
    assert browser.errors == []


def test_parallel_coordinates_keep_the_lines_through_a_range_and_move_their_axes(
    browser: chromium.Browser, page: Path
) -> None:
    browser.look()
    browser.open(page)
    draw_all(browser)
    kept = "document.querySelector('.parallel canvas').dataset.kept"
    names = "[...document.querySelectorAll('.axes .name')].map((e) => e.textContent)"
    assert browser.evaluate(kept) == "3"
    assert browser.evaluate(names) == ["speedup", "BLOCK_M", "UNROLL", "MODE"]
    drag(browser, ".axes g:nth-child(1) .reach", 0.0, 0.4)  # the faster two of 0.7, 1.1 and 1.4
    assert browser.evaluate(kept) == "1"
    drag(browser, ".axes g:nth-child(1) .reach", 0.5, 0.5)  # a click lets them all in again
    assert browser.evaluate(kept) == "3"
    drag(browser, ".axes g:nth-child(1) .name", 0.5, 0.5, right=2000)
    assert browser.evaluate(names) == ["BLOCK_M", "UNROLL", "MODE", "speedup"]
    assert browser.errors == []
    tried = "(() => { try { return new Function('return 1')(); } catch (e) { return e.name; } })()"
    assert browser.evaluate(tried) == "EvalError"  # no text becomes code; the browser says so
    browser.errors.clear()


def drag(
    browser: chromium.Browser, selector: str, start: float, end: float, right: int = 0
) -> None:
    """Drags the pointer from one share of the element's height to another, and `right` pixels."""
    browser.evaluate(
        f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
        "const send = (target, type, share, right) => target.dispatchEvent(new PointerEvent(type,"
        " { bubbles: true, clientX: box.left + box.width / 2 + right,"
        " clientY: box.top + share * box.height }));"
        f"send(document.querySelector({selector!r}), 'pointerdown', {start}, 0);"
        f"send(window, 'pointermove', {end}, {right}); send(window, 'pointerup', {end}, {right});"
        "})()"
    )


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_the_order(
    browser: chromium.Browser, page: Path
) -> None:
    browser.look()
    browser.open(page)
    assert column(browser, 2)[:3] == ["2", "0", "3"]  # the leaderboard's own order
    click(browser, "th button", "trial")
    assert column(browser, 2) == ["0", "1", "2", "3", "4", "5"]
    click(browser, "th button", "trial")
    assert column(browser, 2) == ["5", "4", "3", "2", "1", "0"]
    click(browser, "th button", "speedup")
    assert column(browser, 2)[:3] == ["2", "0", "3"]
    click(browser, "th button", "speedup")
    assert column(browser, 2)[:3] == ["3", "0", "2"]  # rows without a speedup stay last


def test_the_filter_keeps_the_rows_that_fit(browser: chromium.Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    for text, trials in {
        "timeout": [4, 5],
        "speedup>1": [2, 0],
        "speedup>1 UNROLL=0": [0],
        "block_m>=128": [3, 4, 5],
        "outcome!=ok": [1, 4, 5],
        "throttled": [3],
        "confirmed=yes": [2],
        "no such text": [],
        "(": [],
        "": [2, 0, 3, 1, 4, 5],
    }.items():
        type_filter(browser, text)
        assert [int(number) for number in column(browser, 2)] == trials, text
    browser.evaluate("document.querySelector('tr.opens').click()")
    detail = browser.evaluate("document.querySelector('tr.detail').textContent")
    assert "512x64-causal" in detail
    assert HOSTILE in detail


def test_several_runs_share_a_page(browser: chromium.Browser, page: Path, tmp_path: Path) -> None:
    first = RunData.load(make_run(tmp_path, [ok(1.2)], name="first"))
    second = RunData.load(make_run(tmp_path, [ok(1.3), ok(0.9)], name="second"))
    replayed = RunData.load(
        make_run(tmp_path, [recorded(2.0), recorded(1.0)], name="third", meta={"kind": "recorded"})
    )
    nothing = RunData.load(make_run(tmp_path, [], name="fourth", meta={"baselines": None}))
    page.write_text(html_page([first, second, replayed, nothing]), encoding="utf-8")
    browser.look()
    browser.open(page)
    tables = "document.querySelectorAll('.datatable')"
    assert browser.evaluate(f"{tables}[0].querySelectorAll('tbody tr').length") == 4
    assert browser.evaluate(f"{tables}[1].querySelectorAll('tbody tr').length") == 5
    click(browser, ".datatable th button", "time")
    times = [text for text in column(browser, 3) if text.endswith("s")]
    assert times[:3] == ["769 µs", "833 µs", "1.00 ms"]  # by time, not by text
    for tab in range(4):
        browser.evaluate(f"document.querySelectorAll('.tabs button')[{tab}].click()")
        draw_all(browser)
        environment = browser.evaluate("document.querySelector('#run dl.facts').textContent")
        assert META["device"]["name"] in environment
    assert "No valid candidate" in browser.evaluate("document.querySelector('#run').textContent")


def test_a_printed_page_has_its_headings_and_every_chart_in_light_colours(
    browser: chromium.Browser, page: Path
) -> None:
    browser.look(dark=True)
    browser.open(page)
    browser.print_preview(True)
    try:
        shown = "[...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"
        assert browser.evaluate(shown.format("th button")) > 5
        assert browser.evaluate(shown.format(".datatable input, #theme, tr .bar")) == 0
        drawn = "document.querySelectorAll('.chart[data-drawn]').length"
        assert browser.evaluate(drawn) == browser.evaluate("charts.size")
        background = "getComputedStyle(document.body).backgroundColor"
        assert browser.evaluate(background) == "rgb(255, 255, 255)"
        assert browser.evaluate("document.documentElement.dataset.theme") == "light"
    finally:
        browser.print_preview(False)
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_figure_that_no_fresh_process_confirmed_does_not_look_like_a_result(
    browser: chromium.Browser, page: Path, tmp_path: Path
) -> None:
    page.write_text(html_page([RunData.load(make_run(tmp_path / "x", [ok(1.5)]))]))
    browser.open(page)
    assert browser.evaluate("document.querySelector('.hero .figure').className") == "figure"
    assert "not confirmed" in browser.evaluate("document.querySelector('.hero').textContent")
    assert "flags" not in browser.evaluate("document.querySelector('.datatable thead').textContent")


@pytest.mark.soak
def test_a_sample_says_that_it_is_one(tmp_path: Path, browser: chromium.Browser) -> None:
    browser.errors.clear()
    outcomes = [
        ok(1 + (n * 37 % 61) / 100) if n % 4 else failed(OutcomeKind.TIMEOUT, f"{n} s")
        for n in range(60)
    ]
    file = tmp_path / "report.html"
    with RunData.thinned(make_run(tmp_path, outcomes), 30) as data:
        file.write_text(html_page([data]), encoding="utf-8")
        held = len(data.trials)
    browser.open(file)
    assert draw_all(browser) > 4
    text = browser.evaluate("document.getElementById('page').textContent")
    assert f"1 in 3 of the other trials, which have no place here: {held} of 60 trials;" in text
    assert "Of 45 valid trials, 1 in 3 is drawn as a point." in text
    assert "The speedup of 15 valid trials (1 in 3) by value" in text
    assert "Every trial." not in text
    assert len([place for place in column(browser, 1) if place != "-"]) == 6
    assert browser.errors == []
