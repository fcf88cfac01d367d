"""The sheet that a saved picture is drawn on, and its texts."""

from __future__ import annotations

import math
from typing import Any

from jupyter_amltrain.agent.plain_text import without_codes
from jupyter_amltrain.output.palette import GRID, SOFT

#: CSS pixels: width of a picture, and its margin.
WIDTH, MARGIN = 760, 14


class Sheet:
    """A Matplotlib figure of :data:`WIDTH` x `height` CSS pixels, at `scale` pixels per CSS pixel."""

    def __init__(self, height: float, scale: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.height = height
        self.figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=100 * scale, facecolor="white")
        self.canvas: Any = FigureCanvasAgg(self.figure)

    def text(
        self, x: float, y: float, text: str, size: float = 7.5, color: str = SOFT, **more: Any
    ) -> tuple[Any, float]:
        """Draw a line of text centered vertically at `y`; returns the artist and the right end (x)."""
        drawn = self.figure.text(
            x / WIDTH, 1 - y / self.height, text, size=size, color=color, va="center", parse_math=False, **more
        )
        box = drawn.get_window_extent(self.canvas.get_renderer())
        return drawn, float(box.x1 / self.figure.bbox.width * WIDTH)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Add axes over a rectangle whose top left corner is (`x`, `y`)."""
        box = (x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(box)

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Draw a filled rectangle."""
        from matplotlib.patches import Rectangle

        corner = (x / WIDTH, 1 - (y + height) / self.height)
        self.figure.add_artist(
            Rectangle(corner, width / WIDTH, height / self.height, facecolor=color, edgecolor="none")
        )


def style_axes(axes: Any) -> None:
    """Draw axes as thin lines without a frame."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=6.5, length=0, pad=4)


def number(value: Any) -> float:
    """Return `value` as a float; NaN if it is not a finite number."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def clip(text: str, length: int) -> str:
    """Truncate to `length` characters and replace non-printable ones by spaces."""
    text = without_codes(text)
    return text if len(text) <= length else text[: length - 1] + "…"
