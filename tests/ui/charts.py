"""What the page has drawn, read back from its pixels: bqplot's paths turned into values."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

PATHS = """figure => {
    const area = figure.querySelector('.plotarea_background');
    const size = area.getBoundingClientRect();
    return {
        width: size.width, height: size.height,
        lines: [...figure.querySelectorAll('path.line')].map(path => ({
            d: path.getAttribute('d') || '',
            color: getComputedStyle(path).stroke,
            opacity: Number(getComputedStyle(path).opacity),
        })),
    };
}"""


def figure(where: Locator, title: str) -> Locator:
    """The bqplot figure of this title."""
    return (
        where.locator(".jp-AmlRun-figure").filter(has=where.page.locator(".jp-AmlRun-chartTitle", has_text=title)).first
    )


def values(drawn: dict[str, Any], path: str, top: float) -> list[float]:
    """Values of a path whose axis goes from 0 to `top`."""
    points = re.findall(r"[ML](-?[\d.e-]+),(-?[\d.e-]+)", path)
    return [(1 - float(y) / drawn["height"]) * top for _, y in points]


def lines(where: Locator, title: str, top: float) -> list[tuple[str, float, list[float]]]:
    """Colour, opacity and values of every line of a figure that can be seen: the shade of a phase has none."""
    drawn = figure(where, title).evaluate(PATHS)
    found = [(line["color"], line["opacity"], values(drawn, line["d"], top)) for line in drawn["lines"]]
    return [line for line in found if line[1] > 0 and line[2]]


def ticks(folder: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """Header and ticks of a run's first node; a line that is being written does not count."""
    header, rows = {}, []
    for line in (folder / "telemetry" / "node-0.jsonl").read_text().split("\n")[:-1]:
        value = json.loads(line)
        if isinstance(value, list):
            rows.append(value)
        elif "columns" in value:
            header = value
    return header, rows


def column(folder: Path, gpu: int, name: str) -> list[float]:
    """One column of one GPU, tick by tick."""
    header, rows = ticks(folder)
    width = len(header["gpu_columns"])
    at = len(header["columns"]) + gpu * width + header["gpu_columns"].index(name)
    return [row[at] for row in rows]


class Script:
    """The file of curves that every process of the fake driver follows from its next start on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def play(self, gpus: int, curve: Any, seconds: int = 600, step: float = 1.0) -> float:
        """Let `curve(gpu, second)` give utilization, memory (MiB) and power (W) from now on."""
        epoch = time.time()
        rows = [f"epoch {epoch:.3f}"]
        for gpu in range(gpus):
            for i in range(int(seconds / step)):
                util, memory, power = curve(gpu, i * step)
                rows.append(f"{gpu} {i * step:.2f} {util:.0f} {memory:.0f} {power:.0f}")
        temporary = self.path.with_suffix(".new")
        temporary.write_text("\n".join(rows) + "\n")
        temporary.replace(self.path)
        return epoch


def frames(page: Page) -> Any:
    """Count the messages that kernels send on comms from now on; read with ``page.evaluate('amlFrames')``."""
    return page.evaluate(
        """() => {
            window.amlFrames = 0;
            const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            kernel.iopubMessage.connect((_, message) => {
                if (message.header.msg_type === 'comm_msg' && message.buffers && message.buffers.length) {
                    window.amlFrames += 1;
                }
            });
        }"""
    )
