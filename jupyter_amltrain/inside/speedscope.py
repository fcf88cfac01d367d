"""The stacks of a run as a file of https://www.speedscope.app: a profile for each thread, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jupyter_amltrain.inside.line_files import ProcessLines
from jupyter_amltrain.inside.line_report import LineReader

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope_of(processes: Iterable[ProcessLines], reader: LineReader, name: str) -> dict[str, Any]:
    """Return the content of the file; within a window of the samples the longest stacks come first."""
    frames: dict[tuple[str, int, str], int] = {}
    rows: list[dict[str, Any]] = []

    def number(file: str, line: int, function: str, text: str) -> int:
        key = (file, line, function)
        if key not in frames:
            frames[key] = len(rows)
            shown = f"{function}:{line}" + (f"  {text}" if text else "")
            rows.append({"name": shown, "file": file or "cell", "line": line})
        return frames[key]

    profiles = []
    for process in processes:
        stacks: dict[int, list[int]] = {0: []}
        for at, node in process.nodes.items():
            own = (reader.file(node.file), reader.line(node.file, node.line), node.function)
            stacks[at] = [*stacks[node.parent], number(*own, reader.text(node.file, node.line))]
        for thread in sorted({sample.thread for window in process.windows for sample in window.samples}):
            samples, weights = [], []
            for window in process.windows:
                found = [sample for sample in window.samples if sample.thread == thread]
                for sample in sorted(found, key=lambda one: -one.wall):
                    samples.append(stacks[sample.node])
                    weights.append(round(sample.wall, 3))
            title = [f"rank {process.rank}", process.name, process.threads.get(thread, "other threads")]
            profiles.append(
                {
                    "type": "sampled",
                    "name": " ".join(filter(None, title)),
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": round(sum(weights), 3),
                    "samples": samples,
                    "weights": weights,
                }
            )
    return {"$schema": SCHEMA, "name": name, "exporter": "jupyter-amltrain", "shared": {"frames": rows},
            "profiles": profiles}  # fmt: skip
