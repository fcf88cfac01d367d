"""A notebook stays small whatever its runs were."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from jupyter_amltrain.kernel.observers import Picture
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.output.mime import bundle_of
from jupyter_amltrain.output.picture import draw
from tests import telemetry_files as files
from tests.output.test_feed import entry_of


def test_notebook_of_day_with_64_gpus_is_small(tmp_path: Path) -> None:
    """Record, text and picture of two nodes with 32 GPUs each, 24 hours long, and eleven metrics."""
    entry = entry_of()
    for node in (0, 1):
        files.write_node(tmp_path, node, gpus=32, seconds=86_400, period=10.0, minutes=False, summary=False)
        entry.telemetry.feed(node, (tmp_path / "telemetry" / f"node-{node}.jsonl").read_bytes())
    for number in range(11):
        metric = entry.metrics.metrics.setdefault(f"metric {number}", Metric())
        for i in range(20_000):
            metric.append(i, float(i), 1 / (1 + i + number))
    entry.log.feed(b"epoch\n" * 10_000, 60_000)
    record = record_of(entry)
    drawn = draw(msgspec.to_builtins(record))
    bundle, metadata = bundle_of(record, Picture(**drawn))
    assert len(json.dumps([bundle, metadata])) < 400_000  # of the megabyte that a notebook may take
