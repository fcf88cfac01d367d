"""The PNG of a record: of the right size, small, and never in need of a display."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import pytest
from PIL import Image

from jupyter_amltrain.output import picture

from .gpu_records import with_charts


def series(values, steps=None):
    return {"step": steps or list(range(len(values))), "value": values, "last": values[-1], "n": len(values)}


def record(**changes):
    wave = [math.sin(i / 7) + i % 3 for i in range(300)]
    telemetry = {"t": list(range(1000, 1300)), "cpu": [abs(v) * 90 for v in wave], "memory": [3e8] * 300, "cpus": 2}
    value = {
        "handle": "local/digits-k3f9",
        "name": "digits",
        "state": "completed",
        "phases": [
            {"name": "queued", "start": 999.7, "end": 1000, "seconds": 0.3},
            {"name": "running", "start": 1000, "end": 1083.2, "seconds": 83.2},
        ],
        "params": {"lr": 0.1},
        "outputs": {"accuracy": 0.97},
        "metrics": {f"metric {i}": series(wave) for i in range(12)},
        "telemetry": telemetry,
    }
    return with_charts({**value, **changes})


def size(answer):
    return Image.open(io.BytesIO(answer["png"])).size


LINES = {
    "sentence": "61 % of the time in line 12, `for x, y in loader`.",
    "span": "",
    "table": {
        "key": "lines",
        "columns": [{"title": title} for title in ("line", "time", "waits for", "code")],
        "rows": [["12", "61 %", "DataLoader", "for x, y in loader:"], ["7", "22 %", "", "loss.backward()"]] * 9,
    },
}


@pytest.mark.thorough
def test_picture_has_the_first_lines_by_their_time():
    texts = [text for text, _ in picture._lines({"lines": LINES})]
    assert "line 12" in texts[0] and texts[1] == "line 12 · time 61 % · waits for DataLoader   for x, y in loader:"
    assert 2 < len(texts) < 9
    assert size(picture.draw(record(metrics={}, lines=LINES)))[1] > size(picture.draw(record(metrics={})))[1]


@pytest.mark.thorough
def test_picture_has_double_resolution_and_small_size():
    answer = picture.draw(record())
    assert size(answer) == (2 * answer["width"], 2 * answer["height"])
    assert answer["width"] == picture.WIDTH
    assert len(answer["png"]) < 120_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {}, "telemetry": {}},
        {"metrics": {"loss": series([0.5])}},
        {"metrics": {"loss": series([None, None, 1.0])}},
        {"metrics": {"loss": series([None, None])}},
        {"metrics": {"loss": series([1.0, 2.0, 3.0], steps=[0, 0, 0])}},
        {"metrics": {"empty": {"step": [], "value": [], "last": None, "n": 0}}},
        {
            "name": "n" * 64,
            "handle": "a-long-target/" + "r" * 64,
            "state": "failed",
            "error": "what $\\frac — where\nnext" * 20,
        },
        {"name": "数字", "params": {"text": "x" * 500, "dollar": "$5 and $6"}},
        {"telemetry": {"t": [1, 2], "cpu": [None, 5.0], "memory": [1e12, None], "cpus": None}},
        {"phases": [], "state": "lost", "detail": "the machine was restarted"},
    ],
)
def test_picture_of_any_record_is_drawn(changes):
    assert size(picture.draw(record(**changes)))[0] == 2 * picture.WIDTH


def test_picture_of_empty_record_is_header():
    assert size(picture.draw({})) == (2 * picture.WIDTH, 2 * 54)


@pytest.mark.thorough
def test_picture_chart_rows_scale_separately():
    flat, steep = series([0.0] * 9), series([float(i) for i in range(9)])
    names = [f"m{i}" for i in range(6)]
    one = picture.draw(record(metrics=dict.fromkeys(names, flat)))
    other = picture.draw(record(metrics={name: steep if name == "m0" else flat for name in names}))
    assert one["png"] != other["png"]


@pytest.mark.thorough
def test_picture_does_not_import_pyplot():
    code = (
        "import sys; from jupyter_amltrain.output import picture; picture.draw({}); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.thorough
def test_reason_stands_once_and_whole():
    reason = "Raised ValueError: " + " ".join(f"word{i}" for i in range(90)) + " in line 7 of the cell."
    failed = record(error=reason, state="failed")
    assert " ".join(picture._reason(failed)) == reason and len(picture._reason(failed)) > 3
    assert not any("word1" in text for text, _ in picture._lines(failed))
    assert picture.draw(failed)["height"] > picture.draw(record(error="Raised ValueError.", state="failed"))["height"]


def test_stop_for_an_unused_gpu_stands_once():
    truth = {"verdict": "not used", "detail": "GPU 0 stayed at 0 %.", "cause": "A CPU-only wheel."}
    stopped = record(truth=truth, reason="gpu-unused", error=f"{truth['detail']} {truth['cause']}", state="failed")
    assert picture.banner(stopped) == [] and picture.banner({**stopped, "reason": None})
