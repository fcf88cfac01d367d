"""A dashboard as a value: what it refuses, and what it is where there are no charts; its words beside the GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.gpu_record import gpu_record
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.output.dashboard import Dashboard, host_charts
from jupyter_amltrain.output.layout import layout_of
from jupyter_amltrain.output.mime import View
from jupyter_amltrain.output.tables import live_table, table_html
from jupyter_amltrain.schema.record import GpuTelemetry
from tests.output.test_feed import entry_of, lines_of


class Run:
    """A run that can be watched."""

    handle = "local/r-22222"

    def record(self) -> Any:
        return record_of(entry_of())


@pytest.mark.parametrize("window", ["10m", -1, float("nan"), float("inf"), None, True])
def test_view_invalid_window_is_refused(window: Any) -> None:
    with pytest.raises(CommandError, match="window="):
        View(Run(), window)


def test_view_without_kernel_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    View(Run()).show()
    assert "local/r-22222  running" in capsys.readouterr().out


def sampled(folder: Path, gpus: int = 2) -> tuple[Entry, Dashboard, GpuTelemetry]:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(folder, gpus, 10)))
    layout, part = layout_of(entry), gpu_record(entry.telemetry, False)
    assert layout is not None and part is not None
    return entry, Dashboard(layout, tuple(f"m{number}" for number in range(13))), part


@pytest.mark.parametrize("gpus", [0, 2, 16])
def test_table_needs_no_series(tmp_path: Path, gpus: int) -> None:
    entry, _, whole = sampled(tmp_path, gpus)
    part = gpu_record(entry.telemetry, False, series=False)
    assert part is not None and not part.t
    assert table_html(part) == table_html(whole) and (part.note, part.gpus == ()) == (whole.note, not gpus)


@pytest.mark.parametrize(("nodes", "bands"), [(1, 0), (8, 0), (9, 2)])
def test_host_charts_of_many_machines_are_bands(tmp_path: Path, nodes: int, bands: int) -> None:
    entry, lines = entry_of(), b"".join(lines_of(tmp_path, 1, 10))
    for node in range(nodes):
        entry.telemetry.feed(node, lines)
    layout = layout_of(entry)
    assert layout is not None
    specs = [
        spec for chart in host_charts(layout, Dashboard(layout).x) for spec in chart.specs if spec["kind"] != "span"
    ]
    assert [spec["field"] for spec in specs if spec["kind"] == "band"] == ["host.cpu", "host.memory"][:bands]
    assert len(specs) == (bands or 2 * nodes)


@pytest.mark.parametrize("gpus", [2, 16])
def test_dashboard_legend_shows_notes_and_extra_metrics(tmp_path: Path, gpus: int) -> None:
    _, dashboard, _ = sampled(tmp_path, gpus)
    assert "metrics" not in dashboard.legend.value
    dashboard.show_note("GPU 1 fell off the <bus>", 13)
    assert "GPU 1 fell off the &lt;bus&gt;" in dashboard.legend.value
    assert "12 of 13 metrics" in dashboard.legend.value
    dashboard.show_note("", 12)
    assert "bus" not in dashboard.legend.value and "metrics" not in dashboard.legend.value


def test_live_table_with_new_readings_keeps_its_key(tmp_path: Path) -> None:
    _, _, part = sampled(tmp_path)
    now = {"util": 93.0, "memory": 30 << 30, "throttle": "power cap"}
    first = live_table(msgspec.structs.replace(part, now=(now, now)))
    later = live_table(msgspec.structs.replace(part, now=({**now, "util": 4.0, "throttle": "", "power": 9.0}, now)))
    assert first.key == later.key and first.html != later.html
    assert (93.0 in first.values, 4.0 in later.values) == (True, True)
    assert (first.words, later.words) == (("power cap", "power cap"), ("nothing", "power cap"))
    assert live_table(msgspec.structs.replace(part, now=({**now, "pcie_rx": 1.0}, now))).key != first.key
    text = re.sub(r' data-[a-z]+="[^"]*"', "", first.html)
    assert text == table_html(msgspec.structs.replace(part, now=(now, now)))


def test_monitor_table_has_no_run_memory(tmp_path: Path) -> None:
    _, _, part = sampled(tmp_path)
    part = msgspec.structs.replace(part, now=({"mine": 0, "others": 3 << 20}, {"mine": 0, "others": None}))
    assert "this run" in table_html(part)
    alone = table_html(part, run=False)
    assert "this run" not in alone and "others" not in alone
    assert ">3.0 MiB</td>" in alone


def test_mig_instance_name_contains_gpu() -> None:
    assert [gpu_name({"index": index}) for index in (0, 7, 100, 203)] == [
        "GPU 0",
        "GPU 7",
        "GPU 0 MIG 0",
        "GPU 1 MIG 3",
    ]
    assert gpu_name({"index": 100, "mig": False}) == "GPU 100"
    assert gpu_name({"index": 100, "mig": True}) == "GPU 0 MIG 0"  # of an earlier version
    assert gpu_name({"index": 1300012, "mig": True, "parent": 129, "instance": 12}) == "GPU 129 MIG 12"
