from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evotune.cli.readers import status_parts
from evotune.errors import StoreError
from evotune.report.data import RunData
from evotune.report.front import devices_table
from evotune.report.html import run_payload
from evotune.report.summary import summarize
from evotune.trial import Calibration, Json

from .runs import make_run, ok, text_of


def device(name: str, baseline_us: float, speedup: float | None, model: str = "H200") -> Json:
    return {
        "id": name,
        "model": model,
        "baseline_us": {"a": baseline_us, "b": 2 * baseline_us},
        "reason": "ok" if speedup else "launch_error",
        "speedup": speedup,
        "speedup_low": None if speedup is None else speedup - 0.01,
        "speedup_high": None if speedup is None else speedup + 0.01,
    }


def calibrations(devices: list[Json]) -> list[Calibration]:
    return msgspec.convert(devices, list[Calibration])


DEVICES = [device("GPU-1", 100.0, 1.5), device("GPU-2", 80.0, 1.47), device("L4", 400.0, 2, "L4")]


def test_each_device_has_its_factor_and_its_distance() -> None:
    table = devices_table(calibrations(DEVICES))
    assert table is not None
    assert table.rows == (
        ("GPU-1", "H200", "1.000x", "1.500x [1.490, 1.510]", "100.0%"),
        ("GPU-2", "H200", "1.250x", "1.470x [1.460, 1.480]", "98.0%"),
        ("L4", "L4", "0.250x", "2.000x [1.990, 2.010]", "100.0%"),
    )
    without = devices_table(calibrations([device("one", 100.0, None), device("other", 100.0, 1.5)]))
    assert without is not None
    assert without.rows[0][2:] == ("1.000x", "launch_error", "-")
    assert devices_table(calibrations(DEVICES[:1])) is None


def test_status_and_reports_show_the_devices_of_a_run_that_had_several(tmp_path: Path) -> None:
    data = RunData.load(make_run(tmp_path, [ok(1.2)], meta={"devices": DEVICES}))
    said = "2 x H200: 2.0% apart on the reference configuration (expected: 2% at most)"
    page = text_of("md", data)
    assert "## Devices" in page
    assert said in page
    assert "| GPU-2 | H200 | 1.250x |" in page
    assert said in run_payload(data)["devices"]["note"]
    assert [row[0] for row in run_payload(data)["devices"]["rows"]] == ["GPU-1", "GPU-2", "L4"]
    assert summarize(data).to_json()["devices"] == DEVICES
    assert any(
        said in str(part).replace("\n  ", " ") for part in status_parts(summarize(data), 200)
    )


def test_a_run_of_one_device_has_no_such_table(tmp_path: Path) -> None:
    for name, devices in (("one", DEVICES[:1]), ("none", [])):
        data = RunData.load(make_run(tmp_path, [ok(1.2)], name=name, meta={"devices": devices}))
        assert "## Devices" not in text_of("md", data)
        assert run_payload(data)["devices"] is None


@pytest.mark.parametrize(
    "devices",
    [
        {"id": "x"},
        [5],
        [{"id": "GPU-1"}],
        [{**DEVICES[0], "speedup": "fast"}],
        [{**DEVICES[0], "baseline_us": {"a": 0}}],
        [{**DEVICES[0], "model": None}],
    ],
)
def test_a_damaged_calibration_is_a_damaged_store(tmp_path: Path, devices: Json) -> None:
    run = make_run(tmp_path, [ok(1.2)], meta={"devices": devices})
    with pytest.raises(StoreError, match="is damaged"):
        RunData.load(run)
