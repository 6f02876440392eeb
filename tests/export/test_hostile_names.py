"""Names of baselines and devices in a package's texts: no page and no terminal obeys them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from evotune.export.descriptions import json_text, summary_line
from evotune.export.package_readme import readme
from evotune.export.runtime._checking import Result, Row
from evotune.export.runtime._missed import Misses
from evotune.export.runtime._package import Facts
from evotune.portfolios.portfolio_file import Portfolio, PortfolioCase, markdown
from evotune.space.specs import GivenCase

HOSTILE = "a|b<img src=x>\x1b[2J\u202e[c](javascript:d)\x7f\x9b\u2028`e*"


def _check_harmless(page: str) -> None:
    assert not {char for char in page if not char.isprintable()} - {"\n"}
    assert "<img" not in page
    assert not re.search(r"(?<!\\)\]\(javascript", page)
    assert r"a\|b&lt;img src=x>" in page


def test_the_readme_shows_names_as_they_are(attention_cpu: Path) -> None:
    certificate, dispatch = (
        json.loads((attention_cpu / f"{name}.json").read_text())
        for name in ("certificate", "dispatch")
    )
    certificate["summary"] = certificate["device"]["name"] = HOSTILE
    certificate["device"]["arch"] = certificate["environment"]["packages"]["torch"] = HOSTILE
    for champion in certificate["champions"]:
        champion["lengths"] = [HOSTILE]
        for figure in champion["figures"]:
            figure["case"] = figure["baseline"] = HOSTILE
    for region in (*dispatch["served"], *dispatch["domain"]):
        region["fixed"]["score_mod"] = HOSTILE
    found = {"cases": 1, "served": 1, "mean": 1.0, "worst": 1.0, "worst_case": HOSTILE}
    rule = {"cases": HOSTILE, "speedup_low": 1.0, "measured": 1, "kernel": 0}
    certificate["portfolio"] = {
        "rule": [rule],
        "otherwise": HOSTILE,
        "figures": {HOSTILE: found},
    }
    page = readme(certificate, dispatch)
    _check_harmless(page)


def test_the_certificates_text_has_no_character_that_a_terminal_obeys() -> None:
    told = {HOSTILE: [HOSTILE, 'µ\n\t"\\']}
    text = json_text(told)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == told


def test_a_packages_summary_is_a_line_of_its_source_and_of_toml() -> None:
    spec = SimpleNamespace(name="p.py:P", dtype="float32")
    setup = SimpleNamespace(
        problem_spec=spec,
        planner=SimpleNamespace(problem=SimpleNamespace(name="attention")),
        profile=SimpleNamespace(name=HOSTILE + '"""\\'),
    )
    summary = summary_line(SimpleNamespace(run=SimpleNamespace(setup=setup)))  # type: ignore[arg-type]
    assert summary.isprintable()
    assert not {'"', "\\"} & set(summary)


def test_what_a_package_prints_moves_no_cursor() -> None:
    facts = repr(Facts({"device": HOSTILE, "served": [{"name": HOSTILE}]}))
    table = str(Result((Row(HOSTILE, 0.0, 0.0, HOSTILE),)))
    with pytest.warns(UserWarning, match="package") as said:
        Misses("package", "PyTorch").say(HOSTILE, HOSTILE)
    for text in (facts, table, str(said[0].message)):
        assert text.replace("\n", "").isprintable(), text


def test_a_portfolios_page_shows_names_as_they_are() -> None:
    given = GivenCase({"rows": 1}, {})
    cases = tuple(PortfolioCase(HOSTILE, given, held_out, HOSTILE) for held_out in (True, False))
    page = markdown(
        Portfolio(
            **{
                "format": 1,
                "space": HOSTILE,
                "device": HOSTILE,
                "problem": "p",
                "dtype": "float32",
            },
            **{"most_kernels": 1, "seed": 0, "skipped": HOSTILE, "cases": cases},
            **{"kernels": (), "rule": (), "cuts": (), "figures": {}, "of_own": None},
            **{"unmeasured": 0, "cells": ()},
        )
    )
    _check_harmless(page)
