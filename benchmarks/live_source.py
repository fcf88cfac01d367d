"""In a notebook's kernel: a run whose ticks follow the clock, shown by us; the same charts by plain bqplot."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests import telemetry_files as files

POINTS = 600
#: Series of each GPU in the charts that we draw, one chart a row.
CHARTS = (("util", "peak"), ("memory",), ("power",))


def play(gpus: int, history: int = 3600, goes_on: bool = True) -> None:
    """Display a run with `history` ticks behind it that goes on with one a second."""
    from jupyter_amltrain.kernel.session import controller
    from jupyter_amltrain.kernel.watcher import needs_frame
    from jupyter_amltrain.output.mime import show
    from jupyter_amltrain.run import TrackedRun
    from jupyter_amltrain.schema.job import JobSpec
    from jupyter_amltrain.schema.run import Phase, Run, RunState, RunStatus, make_handle

    home, start = controller(), time.time() - history
    with tempfile.TemporaryDirectory() as folder:
        files.write_node(
            Path(folder), gpus=gpus, seconds=history + 900 * goes_on, start=start, minutes=False, summary=False
        )
        lines = (Path(folder) / "telemetry" / "node-0.jsonl").read_bytes().splitlines(keepends=True)
    past = 2 * history // 3 if not goes_on else history
    phases = (Phase(name="running", start=start),)
    run = Run(
        handle=make_handle("local", "play-22222"),
        spec=JobSpec(name="play"),
        status=RunStatus(state=RunState.RUNNING, phases=phases),
        created=start,
    )

    async def begin() -> None:
        home.backend("local")
        home.store.put(run)
        entry = home.entry(run.handle)
        entry.telemetry.feed(0, b"".join(lines[:past]))
        if goes_on:
            home.loop.start(beat(entry), "ticks")

    async def beat(entry: Any) -> None:
        for line in lines[past:]:
            if line.startswith(b"["):
                await asyncio.sleep(max(0.0, json.loads(line)[1] - time.time()))
            if entry.telemetry.feed(0, line) and needs_frame(entry, {"telemetry"}):
                home.store.touch(run.handle)

    home.loop.call(begin())
    show(TrackedRun(run.handle))


def feed() -> Any:
    """The feed of the dashboard that the page has opened."""
    from ipywidgets.widgets.widget import _instances

    return next(widget for widget in _instances.values() if type(widget).__name__ == "StreamFeed")


def plain(gpus: int, charts: int = len(CHARTS)) -> None:
    """Display the same figures as plain bqplot lines, whose arrays a thread resends each second."""
    import bqplot
    import ipywidgets
    import numpy as np
    from IPython.display import display

    now = np.arange(POINTS) + time.time() - POINTS
    xscale, marks, figures = bqplot.DateScale(), [], []
    for fields in CHARTS[:charts]:
        columns = [files.GPU.index(field) for field in fields]
        y = np.array([[files.busy(gpu, s)[column] for s in range(POINTS)] for column in columns for gpu in range(gpus)])
        scales = {"x": xscale, "y": bqplot.LinearScale(min=0)}
        mark = bqplot.Lines(x=_dates(now), y=y.astype(float), scales=scales, stroke_width=1.6)
        axes = [bqplot.Axis(scale=xscale), bqplot.Axis(scale=scales["y"], orientation="vertical")]
        layout = ipywidgets.Layout(height="200px", width="auto", min_width="0")
        figures.append(bqplot.Figure(title=fields[0], marks=[mark], axes=axes, layout=layout))
        marks.append(mark)
    grid = ipywidgets.Layout(grid_template_columns="repeat(auto-fit, minmax(330px, 1fr))", width="100%")
    display(ipywidgets.GridBox(figures, layout=grid))

    def resend() -> None:
        x = now
        while True:
            time.sleep(1.0)
            x = x + 1
            for mark in marks:
                with mark.hold_sync():
                    mark.x, mark.y = _dates(x), np.roll(mark.y, -1, axis=1)

    threading.Thread(target=resend, daemon=True).start()


def _dates(seconds: Any) -> Any:
    return (seconds * 1000).astype("datetime64[ms]")
