"""The GPUs' part of a record: honest about what is unknown, small at any size."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from jupyter_amltrain.kernel.gpu_record import POINTS, gpu_record, throttle_text
from jupyter_amltrain.kernel.run_charts import HEAT_GPUS
from jupyter_amltrain.kernel.telemetry import MIB, RunTelemetry
from tests import telemetry_files as files


def telemetry_of(folder: Path, nodes: int = 1) -> RunTelemetry:
    telemetry = RunTelemetry()
    for node in range(nodes):
        telemetry.feed(node, (folder / "telemetry" / f"node-{node}.jsonl").read_bytes())
    return telemetry


@pytest.mark.parametrize("gpus", [1, 8])
def test_gpu_record_of_short_run_has_every_sample(gpus: int, tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=gpus, seconds=100)
    part = gpu_record(telemetry_of(tmp_path), False)
    assert part is not None and len(part.gpus) == gpus and part.util is None
    assert (part.heat is not None) == (gpus >= HEAT_GPUS)
    assert part.t == tuple(files.START + s for s in range(100))
    for gpu in (0, gpus - 1):
        series = part.gpus[gpu]
        assert list(series.util) == [files.busy(gpu, s)[0] for s in range(100)]
        assert list(series.peak) == [files.busy(gpu, s)[1] for s in range(100)]
        assert list(series.memory) == [files.busy(gpu, s)[2] * MIB for s in range(100)]
        assert series.memory_total == files.SIZE * MIB and series.power_limit == files.LIMIT
    assert part.source == "agent, every 1 s" and part.now[0]["temperature"] == files.busy(0, 99)[4]


def test_gpu_record_of_64_gpus_has_band_and_heat_map(tmp_path: Path) -> None:
    for node in (0, 1):
        files.write_node(tmp_path, node, gpus=32, seconds=2000)
    part = gpu_record(telemetry_of(tmp_path, 2), True)
    assert part is not None and len(part.gpus) == 64 and not part.gpus[0].util
    assert part.util is not None and part.heat is not None and len(part.t) <= POINTS
    assert part.heat.labels[0] == "0:0" and part.heat.labels[-1] == "1:31"
    assert len(part.heat.cells) == 2 * 64 * part.heat.columns
    tops = [value for value in part.util.high if value is not None]
    assert max(tops) == 100 and all(v is not None for v in part.util.mean)
    assert len(json.dumps(msgspec.to_builtins(part))) < 60_000


@pytest.mark.thorough
def test_gpu_record_of_day_is_not_larger_than_of_hour(tmp_path: Path) -> None:
    sizes = []
    for seconds in (3600, 86_400):
        files.write_node(tmp_path, gpus=8, seconds=seconds, minutes=False, summary=False)
        sizes.append(len(json.dumps(msgspec.to_builtins(gpu_record(telemetry_of(tmp_path), True)))))
    assert sizes[1] < 1.1 * sizes[0] and sizes[1] < 60_000


def test_gpu_record_unknown_value_is_none(tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=1, seconds=10, curve=lambda g, s: (None, None, 100, None, None, None))
    part = gpu_record(telemetry_of(tmp_path), False)
    assert part is not None
    assert set(part.gpus[0].util) == {None} and set(part.gpus[0].power) == {None}
    assert part.gpus[0].memory[0] == 100 * MIB
    assert part.now[0]["temperature"] is None and part.now[0]["mine"] is None and part.now[0]["throttle"] == ""


def test_gpu_record_without_gpu_has_note(tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=0, seconds=3, note="no NVIDIA driver (libnvidia-ml.so.1 is not here)")
    part = gpu_record(telemetry_of(tmp_path), False)
    assert part is not None and not part.gpus and "no NVIDIA driver" in part.note


@pytest.mark.parametrize("ticks", [100, 2000])
@pytest.mark.parametrize("gpus", [1, 9])
def test_gpu_record_after_clock_set_back_has_no_gaps(gpus: int, ticks: int, tmp_path: Path) -> None:
    """A machine that starts with a wrong clock is put right once the network is there."""
    files.write_node(tmp_path, gpus=gpus, seconds=ticks, curve=lambda gpu, s: (100 * s // ticks, 100, 1, 1, 1, 1))
    head, *lines = (tmp_path / "telemetry" / "node-0.jsonl").read_text().splitlines()
    samples = [line for line in map(json.loads, lines) if isinstance(line, list)]
    rows = [[seq, t - 3600 if 2 * seq >= ticks else t, *values] for seq, t, *values in samples]
    telemetry = RunTelemetry()
    telemetry.feed(0, "\n".join([head, *map(json.dumps, rows), ""]).encode())
    part = gpu_record(telemetry, False)
    assert part is not None
    util = (part.util.mean if part.util else None) or part.gpus[0].util
    assert None not in util and list(util) == sorted(util) and util[-1] > 95
    assert list(part.t) == sorted(part.t)
    assert telemetry.last_t is not None and 0.7 * ticks < telemetry.last_t - part.t[0] <= ticks


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, ""),
        (1, ""),
        (2, "app clocks"),
        (0x44, "power cap, hw thermal"),
        (0x1000, "0x1000"),
        (0x204, "power cap, 0x200"),
    ],
)
def test_throttle_text_names_every_reason(mask: int, words: str) -> None:
    assert throttle_text(mask) == words
