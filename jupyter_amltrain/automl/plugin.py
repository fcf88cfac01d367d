"""What this folder adds to the package, for its registry of plug-ins."""

from __future__ import annotations

from jupyter_amltrain.plugins import BackendKind

_HERE = "jupyter_amltrain.automl"

KIND = BackendKind(
    targets="",
    backend="",
    parts=(
        ("commands.automl", f"{_HERE}.commands:COMMANDS"),
        ("functions", f"{_HERE}.functions:FUNCTIONS"),
        ("job_of_file", f"{_HERE}.file:search_on_machine"),
    ),
)
