from __future__ import annotations

import pytest

from jupyter_amltrain.runs.text import bytes_text, record_text, seconds_text, state_line
from jupyter_amltrain.spec.record import LogTail, MetricSeries, RunRecord, TelemetrySeries
from jupyter_amltrain.spec.run import Phase


def record(**more: object) -> RunRecord:
    fields: dict[str, object] = {
        "handle": "local/digits-k3f9",
        "run_id": "digits-k3f9",
        "name": "digits",
        "target": "local",
        "experiment": "default",
        "state": "running",
        **more,
    }
    return RunRecord(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"), (0, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"),
        (59.6, "1 min 0 s"), (123, "2 min 3 s"), (3599.6, "1 h 0 min"), (3840, "1 h 4 min"), (90000, "25 h 0 min"),
    ],
)  # fmt: skip
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "n/a"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3.2 * 2**20, "3.2 MiB"),
        (2**40, "1.0 TiB"), (2**52, "4096.0 TiB"),
    ],
)  # fmt: skip
def test_bytes(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


def test_the_state_line() -> None:
    phases = (
        Phase(name="queued", start=1.0, end=1.1, seconds=0.1),
        Phase(name="running", start=1.1, end=13.1, seconds=12.0),
        Phase(name="finalizing", start=13.1),
    )
    assert state_line(record()) == "local/digits-k3f9  running"
    assert state_line(record(phases=phases)) == "local/digits-k3f9  running  (queued 0.1 s, running 12 s)"
    assert "cancel requested" in state_line(record(cancel_requested=True))
    assert "cancel requested" not in state_line(record(cancel_requested=True, state="canceled", done=True))
    assert "target not responding" in state_line(record(reachable=False))


def test_the_whole_text() -> None:
    text = record_text(
        record(
            state="failed",
            done=True,
            error="local/digits-k3f9 failed: exited with code 3.",
            detail="exited with code 3",
            metrics={
                "loss": MetricSeries(step=(1,), value=(0.123456,), last=0.123456, n=1),
                "bad": MetricSeries(step=(1,), value=(None,), last=None, n=1),
            },
            outputs={"accuracy": 0.97, "text": "é"},
            telemetry=TelemetrySeries(t=(1.0, 2.0), cpu=(None, 50.0), memory=(None, 2.0**21)),
            log=LogTail(tail="".join(f"line {i}\n" for i in range(30)), bytes=3000, path="/tmp/log.txt"),
        )
    )
    lines = text.splitlines()
    assert lines[0] == "local/digits-k3f9  failed"
    assert lines[1] == "local/digits-k3f9 failed: exited with code 3."
    assert lines[2] == "loss 0.1235  bad n/a"
    assert lines[3:5] == ["accuracy = 0.97", "text = 'é'"]
    assert lines[5] == "host: cpu mean 50 %, memory peak 2.0 MiB"
    assert lines[6] == "log (2.9 KiB, /tmp/log.txt), its end:"
    assert lines[7:] == [f"  line {i}" for i in range(22, 30)]


def test_a_detail_is_said_while_it_matters() -> None:
    assert "3 before it" in record_text(record(state="queued", detail="3 before it"))
    assert "3 before it" not in record_text(record(state="completed", done=True, detail="3 before it"))


def test_nothing_known_is_one_line() -> None:
    assert record_text(record()) == "local/digits-k3f9  running"
