"""A notebook stays small whatever its runs were."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from jupyter_amltrain.kernel.display_forms import Forms
from jupyter_amltrain.kernel.observers import RecordPicture
from jupyter_amltrain.kernel.pictures import pictures_of
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.output.mime import bundle_of
from jupyter_amltrain.output.picture import draw
from jupyter_amltrain.tracking.thumbnails import Thumbnail
from tests import telemetry_files as files
from tests.output.test_feed import entry_of


@pytest.mark.thorough
def test_notebook_of_day_with_64_gpus_and_pictures_is_small(tmp_path: Path) -> None:
    """Record, text and picture of two nodes with 32 GPUs each, 24 hours long, with metrics, pictures and tables."""
    entry = entry_of()
    for node in (0, 1):
        files.write_node(tmp_path, node, gpus=32, seconds=86_400, period=10.0, minutes=False, summary=False)
        entry.telemetry.feed(node, (tmp_path / "telemetry" / f"node-{node}.jsonl").read_bytes())
    for number in range(11):
        metric = entry.metrics.metrics.setdefault(f"metric {number}", Metric())
        for i in range(20_000):
            metric.append(i, float(i), 1 / (1 + i + number))
    entry.log.feed(b"epoch\n" * 10_000, 60_000)
    rows = [{"path": f"pictures/{number}.png", "size": 1, "modified": 1.0} for number in range(50)]
    entry.pictures.found = pictures_of(rows)
    worst = Thumbnail(title="t" * 200, large="l" * 12_050, small="s" * 4_300)  # as 9 kB and 3.2 kB in base64
    entry.pictures.drawn = {(str(row["path"]), 1, 1.0): worst for row in rows}
    entry.displays.listed = tuple(range(50))
    entry.displays.forms = {n: Forms(chars=23_000, data={"text/html": "h" * 23_000}) for n in range(50)}
    record = record_of(entry)
    assert len(record.pictures) == 12 and len(msgspec.json.encode(record)) < 200_000
    drawn = draw(msgspec.to_builtins(record))
    bundle, metadata = bundle_of(record, RecordPicture(**drawn))
    assert len(json.dumps([bundle, metadata])) < 400_000  # of the megabyte that a notebook may take
