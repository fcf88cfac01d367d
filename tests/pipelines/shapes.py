"""Pipelines of tests, and what must be true of each after its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from jupyter_amltrain.pipelines.functions import step
from jupyter_amltrain.pipelines.pipeline_event import END, START, PipelineEvent
from jupyter_amltrain.pipelines.steps import StepDefinition

from ..helpers import until


def diamond(*, right: str = "max(data)", far: str = "", pause: float = 0.0) -> list[StepDefinition]:
    """Four steps: ``left`` and ``right`` take what ``prep`` makes, ``join`` takes what both make.

    Parameters
    ----------
    right
        Expression of its value.
    far
        Target of ``right``.
    pause
        Seconds that each takes.
    """
    wait = f"import time; time.sleep({pause})\n" if pause else ""
    return [
        step("prep", f"{wait}data = [3, 1, 2]", out=["data"], gpus=0),
        step("left", f"{wait}low = min(data)", needs=["data"], out=["low"], gpus=0),
        step("right", f"{wait}high = {right}", needs=["data"], out=["high"], target=far, gpus=0),
        step("join", f"{wait}width = high - low", needs=["low", "high"], out=["width"], gpus=0),
    ]


def journal(run: Any) -> list[PipelineEvent]:
    """Events of a pipeline's journal."""
    path = Path(run.run.folder) / "pipeline.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=PipelineEvent) for line in lines]


def ran(run: Any) -> set[str]:
    """Steps that had a run of their own."""
    return {event.step for event in journal(run) if event.op == START}


def check_whole(api: Any, run: Any, steps: Iterable[str], targets: Iterable[str] = ("local",)) -> None:
    """No step is lost and none is doubled: each has one end, and at most one run."""
    events = journal(run)
    ends = Counter(event.step for event in events if event.op == END)
    starts = {event.step: event.run_id for event in events if event.op == START}
    assert ends == Counter(steps) and len(starts) == sum(event.op == START for event in events)
    reused = {event.step for event in events if event.op == END and event.reused}
    assert reused | set(starts) == set(steps) and not reused & set(starts)
    own = [one for target in targets for one in api.runs(target) if one.spec.parent == run.handle]
    assert sorted(one.run_id for one in own) == sorted(starts.values())


def driver_of(run: Any) -> psutil.Process:
    """Process of a pipeline's driver."""

    def find() -> psutil.Process | None:
        for process in psutil.process_iter():
            try:
                is_own = process.environ().get("AMLTRAIN_RUN", "").startswith(f"{run.run_id}:")
                if is_own and any("aml_pipeline_driver" in word for word in process.cmdline()):
                    return process
            except (psutil.Error, OSError):
                continue
        return None

    return until(find, "the driver")
