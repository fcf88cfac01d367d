from __future__ import annotations

import pytest

from jupyter_amltrain.kernel.gpu_summary import figure_groups
from jupyter_amltrain.output.text_view import record_text, state_line
from jupyter_amltrain.schema.record import (
    GpuBand,
    GpuSeries,
    GpuTelemetry,
    GpuTruth,
    LogTail,
    MetricSeries,
    RunRecord,
    TelemetrySeries,
)
from jupyter_amltrain.schema.run import Phase
from jupyter_amltrain.text import bytes_text, seconds_text


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
def test_seconds_text_is_rounded(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "n/a"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3.2 * 2**20, "3.2 MiB"),
        (2**40, "1.0 TiB"), (2**52, "4096.0 TiB"),
    ],
)  # fmt: skip
def test_bytes_text_is_rounded(size: float | None, text: str) -> None:
    assert bytes_text(size) == text


def test_state_line_shows_phases() -> None:
    phases = (
        Phase(name="queued", start=1.0, end=1.1, seconds=0.1),
        Phase(name="running", start=1.1, end=13.1, seconds=12.0),
        Phase(name="finalizing", start=13.1),
    )
    assert state_line(record()) == "local/digits-k3f9  running"
    assert state_line(record(phases=phases)) == "local/digits-k3f9  running  (queued 0.1 s, running 12 s)"
    assert "cancel requested" in state_line(record(cancel_requested=True))
    assert "cancel requested" not in state_line(record(cancel_requested=True, state="canceled", done=True))
    assert "not responding, last seen at " in state_line(record(reachable=False, seen_at=1e9))


def test_record_text_shows_all_parts() -> None:
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
    assert lines[3:5] == ["accuracy = 0.97", "text = é"]
    assert lines[5] == "host: cpu mean 50 %, memory peak 2.0 MiB"
    assert lines[6].startswith("log (2.9 KiB, /tmp/log.txt)")
    assert lines[7:] == [f"  line {i}" for i in range(22, 30)]


def test_record_text_shows_detail_only_before_end() -> None:
    assert "3 before it" in record_text(record(state="queued", detail="3 before it"))
    assert "3 before it" not in record_text(record(state="completed", done=True, detail="3 before it"))
    assert "while running" in record_text(record(state="canceled", done=True, detail="Canceled while running."))


def test_record_text_without_details_is_one_line() -> None:
    assert record_text(record()) == "local/digits-k3f9  running"


GIB = 2.0**30


def gpu(index: int, **more: object) -> GpuSeries:
    fields: dict[str, object] = {"node": 0, "index": index, "name": "H100", "memory_total": 80 * GIB, **more}
    return GpuSeries(**fields)  # type: ignore[arg-type]


def summed(index: int, **more: object) -> dict[str, object]:
    figures = {"memory_total": 81_920, "memory_peak": 40_960, "util_mean": 71.4, "util_p95": 96, "idle_share": 0.034}
    return {"node": 0, "index": index, "name": "H100", **figures, "energy_wh": 481.2, "first_use": 3.25, **more}


def groups(text: str) -> dict[str, str]:
    """Title and figures of each line below that of the GPUs."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines}


def test_record_text_of_live_gpus_has_groups() -> None:
    one = gpu(0, util=(10.0, None, 90.0), memory=(GIB, 40 * GIB, None), power=(100.0, 300.0), sm_activity=(20.0, 40.0))
    text = record_text(record(gpu=GpuTelemetry(gpus=(one,))))
    assert text.splitlines()[1] == "GPU: H100"
    assert groups(text) == {
        "use": "SM 30 %, utilization 50 %", "memory": "peak 40.0 of 80.0 GiB", "power": "mean 200 W"
    }  # fmt: skip
    two = gpu(1, util=(20.0, 20.0, 20.0), memory=(GIB, 2 * GIB, GIB))
    text = record_text(record(gpu=GpuTelemetry(gpus=(gpu(0, util=(50.0,), memory=(40 * GIB,)), two))))
    assert text.splitlines()[1] == "GPUs: 2 x H100"
    assert groups(text) == {"use": "utilization 20 to 50 %", "memory": "peak 2.0 to 40.0 of 80.0 GiB"}
    many = GpuTelemetry(
        gpus=tuple(gpu(i) for i in range(64)),
        util=GpuBand(mean=(30.0, 50.0), low=(0.0, 0.0), high=(90.0, 100.0)),
        memory=GpuBand(mean=(GIB, GIB), low=(GIB, GIB), high=(2 * GIB, 3 * GIB)),
    )
    text = record_text(record(gpu=many))
    assert text.splitlines()[1] == "GPUs: 64 x H100"
    assert groups(text) == {"use": "utilization 40 %", "memory": "peak 3.0 of 80.0 GiB"}


def test_record_text_leaves_out_unknown_gpu_values() -> None:
    blind = gpu(0, memory_total=None, util=(None, None), memory=())
    lines = record_text(record(gpu=GpuTelemetry(gpus=(blind,), note="GPU 0 fell off\nthe bus"))).splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:]] == [["GPU:", "H100"], ["note", "GPU 0 fell off the bus"]]
    nothing = dict.fromkeys(("memory_peak", "util_mean", "util_p95", "idle_share", "energy_wh", "first_use"))
    lines = record_text(record(summary={"gpus": [summed(0, **nothing)]})).splitlines()
    assert lines[1:] == ["GPU: H100"]


def test_zeros_are_left_out_except_of_use() -> None:
    zeros = {"util_mean": 0.0, "sm_activity_mean": 0.0, "tensor_activity_mean": 0.0, "energy_wh": 0.0}
    zeros |= {"throttled_power_s": 0.0, "ecc_correctable": 0, "power_mean": 0.0, "torch_reserved_peak": 0}
    found = dict(figure_groups({}, {"gpus": [summed(0, **zeros)]}))
    assert found == {"use": ["SM 0 %", "utilization 0 %"], "memory": ["peak 40.0 of 80.0 GiB"]}


def test_record_text_without_gpu_has_no_gpu_line() -> None:
    assert record_text(record(gpu=GpuTelemetry(note="No NVIDIA driver."))) == "local/digits-k3f9  running"


def test_record_text_of_ended_run_shows_gpu_summary() -> None:
    hint = "The data loader is likely\nsingle-threaded."
    more = {"gpus": (gpu(0), gpu(1)), "note": ""}
    shares = {"sm_activity_mean": 62.0, "tensor_activity_mean": 31.0, "power_mean": 412.0, "throttled_power_s": 12.0}
    summary = {"gpus": [summed(0), summed(1, util_mean=80.0, energy_wh=700.0, **shares)], "hint": hint}
    text = record_text(record(state="completed", done=True, gpu=GpuTelemetry(**more), summary=summary))  # type: ignore[arg-type]
    assert text.splitlines()[1] == "GPUs: 2 x H100"
    assert groups(text) == {
        "use": "SM 62 %, tensor 31 %, utilization 71 to 80 %",
        "memory": "peak 40.0 of 80.0 GiB",
        "power": "mean 412 W, energy 1.18 kWh, throttled 12 s (power limit)",
    }
    assert text.splitlines()[-1] == "hint: The data loader is likely single-threaded."
    missing = {"gpus": [summed(0)]}  # a sum over some of them would be no sum
    assert "energy" not in record_text(record(gpu=GpuTelemetry(**more), summary=missing))  # type: ignore[arg-type]


def test_record_text_of_idle_gpu_begins_with_warning() -> None:
    truth = GpuTruth(verdict="not used", detail="GPU 0 had 0 % for 60 s.", cause="A CPU-only wheel?")
    lines = record_text(record(truth=truth, metrics={})).splitlines()
    assert lines[1].startswith("GPU IDLE: GPU 0 had 0 % for 60 s.; ") and lines[1].endswith("A CPU-only wheel?")
    reason = "GPU 0 had 0 % for 60 s. A CPU-only wheel?"
    stopped = record_text(record(truth=truth, metrics={}, state="failed", reason="gpu-unused", error=reason))
    assert stopped.count("A CPU-only wheel") == 1
    for verdict in ("", "used", "cannot tell"):
        assert len(record_text(record(truth=GpuTruth(verdict=verdict, detail="x"))).splitlines()) == 1


def test_record_text_shows_allocator_errors_and_throughput() -> None:
    errors = {"xids": "79, 45", "ecc_correctable": 3, "rows_remapped": 1}
    one = summed(0, torch_allocated_peak=30 * 1024, torch_reserved_peak=36 * 1024, **errors)
    rate = {"samples_per_second": MetricSeries(step=(1,), value=(412.0,), last=412.0, n=1)}
    text = record_text(record(summary={"gpus": [one]}, metrics=rate))
    for part in ("allocated 30.0 GiB, reserved 36.0 GiB (PyTorch)", "412 samples/s", "Xid 79 and 45", "1 replaced"):
        assert part in text, part
    assert "PyTorch" not in record_text(record(summary={"gpus": [summed(0)]}))


@pytest.mark.parametrize(
    ("sources", "is_estimated"),
    [(("counter", "counter"), False), (("power", "power"), True), (("power", "counter"), True), (("", ""), False)],
)
def test_gpu_energy_of_power_samples_is_estimated(sources: tuple[str, str], is_estimated: bool) -> None:
    summary = {"gpus": [summed(k, energy_source=source) for k, source in enumerate(sources)]}
    (energy,) = (text for group in figure_groups({}, summary) for text in group.texts if "Wh" in text)
    assert ("estimated" in energy) == is_estimated
