"""Colors of everything drawn in Python, distinguishable with color blindness."""

from __future__ import annotations

INK, SOFT, GRID, SHADE = "#1f2933", "#66727f", "#e4e8ec", "#eef1f4"
BLUE, TEAL = "#1967a8", "#0f8a7a"
#: Alert color and its light background.
RED, RED_GROUND = "#b3261e", "#fdecea"

#: One color for each of up to eight GPUs, readable on white and on black: the Okabe-Ito palette, with violet and
#: gray instead of yellow and black. ``labextension/style`` has the same colors.
GPUS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#8a8a8a")

#: Utilization of 0 to 100 percent (five samples of Matplotlib's cividis): dark is idle.
HEAT = ("#00224e", "#434e6c", "#7d7c78", "#bcaf6f", "#fee838")

#: Colors of a sweep's trials from the worst to the best; ``labextension/style`` has the same for light pages.
TRIALS = (
    "#f6d2a9", "#f3bb92", "#f0a27f", "#e98775", "#d66d79", "#b95582", "#944185", "#6a2f7f", "#3c1f6b",
)  # fmt: skip
#: The best trial of a sweep, and trials that were stopped.
BEST, STOPPED = "#0b7a4b", "#8a8a8a"

STATES = {
    "completed": "#1a7f43",
    "failed": "#c0392b",
    "lost": "#c0392b",
    "canceled": "#8a6d1a",
    "running": "#1967a8",
    "finalizing": "#1967a8",
}
