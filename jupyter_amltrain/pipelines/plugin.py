"""What this folder adds to the package, for its registry of plug-ins."""

from __future__ import annotations

from jupyter_amltrain.plugins import BackendKind

_HERE = "jupyter_amltrain.pipelines"

KIND = BackendKind(
    targets="",
    backend="",
    parts=(
        ("commands.step", f"{_HERE}.commands:STEP_COMMANDS"),
        ("commands.pipeline", f"{_HERE}.commands:PIPELINE_COMMANDS"),
        ("functions", f"{_HERE}.functions:FUNCTIONS"),
        ("job_of_file", f"{_HERE}.pipeline_job:driver_of_file"),
        ("record_parts", f"{_HERE}.graph_part:PART"),
    ),
)
