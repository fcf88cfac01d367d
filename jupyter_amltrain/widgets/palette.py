"""Colours of all that is drawn in Python, chosen to stay apart for colour-blind eyes."""

from __future__ import annotations

INK, SOFT, GRID, SHADE = "#1f2933", "#66727f", "#e4e8ec", "#eef1f4"
BLUE, TEAL = "#1967a8", "#0f8a7a"
#: Loud, and its light ground.
RED, RED_GROUND = "#b3261e", "#fdecea"

#: One for each of up to eight GPUs: Okabe and Ito's, with two of Tol's for their yellow and black.
GPUS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#332288", "#8c8c2c")

#: Utilization of 0 to 100 percent (Matplotlib's cividis at five places): dark is idle.
HEAT = ("#00224e", "#434e6c", "#7d7c78", "#bcaf6f", "#fee838")

STATES = {
    "completed": "#1a7f43",
    "failed": "#c0392b",
    "lost": "#c0392b",
    "canceled": "#8a6d1a",
    "running": "#1967a8",
    "finalizing": "#1967a8",
}
