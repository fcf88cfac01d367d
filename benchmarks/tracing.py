"""What Chromium's main thread did: a trace of it, as long tasks and whose they are."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page

CATEGORIES = ("devtools.timeline", "toplevel", "disabled-by-default-devtools.timeline")
#: Steps of drawing and of memory.
STEPS = frozenset({"Layout", "UpdateLayoutTree", "Paint", "PrePaint", "MajorGC", "MinorGC"})
#: Part of the addresses of our scripts.
OURS = "extensions/jupyter-amltrain/"


@dataclass(frozen=True)
class Task:
    """One task; milliseconds on the clock, milliseconds of CPU, and milliseconds of each script or step in it."""

    wall: float
    cpu: float
    parts: dict[str, float]

    @property
    def ours(self) -> bool:
        """Whether any of our own scripts ran in the task."""
        return any(OURS in part for part in self.parts)

    def __str__(self) -> str:
        longest = sorted(self.parts.items(), key=lambda part: -part[1])[:4]
        return f"{self.wall:.0f} ms (CPU {self.cpu:.0f}): " + ", ".join(f"{n} {ms:.0f}" for n, ms in longest)


@dataclass(frozen=True)
class Trace:
    """All tasks of the page's main thread in a stretch of time (seconds)."""

    seconds: float
    tasks: list[Task]

    @property
    def cpu(self) -> float:
        """Share of the main thread that was in use, percent."""
        return sum(task.cpu for task in self.tasks) / 10 / self.seconds

    def long(self, limit: float = 50.0) -> list[Task]:
        """Tasks above `limit` milliseconds, the longest first."""
        return sorted((task for task in self.tasks if task.wall > limit), key=lambda task: -task.wall)


def start(browser: Browser, page: Page) -> None:
    """Begin to trace."""
    browser.start_tracing(page=page, categories=list(CATEGORIES))


def stop(browser: Browser, seconds: float) -> Trace:
    """End it."""
    return read(json.loads(browser.stop_tracing())["traceEvents"], seconds)


def read(events: list[dict[str, Any]], seconds: float) -> Trace:
    """The busiest renderer's main thread: the others have no page in view."""
    names = [event for event in events if event["name"] == "thread_name"]
    mains = {(e["pid"], e["tid"]) for e in names if e["args"]["name"] == "CrRendererMain"}
    by_thread: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        thread = (event.get("pid"), event.get("tid"))
        if event.get("ph") == "X" and thread in mains:
            by_thread[thread].append(event)
    busiest = max(by_thread.values(), key=lambda found: sum(e["dur"] for e in found if e["name"] == "RunTask"))
    busiest.sort(key=lambda event: (event["ts"], -event["dur"]))
    tasks, end, parts, begin = [], 0.0, Counter[str](), None
    for event in [*busiest, {"name": "RunTask", "ts": float("inf"), "dur": 0}]:
        if event["name"] in ("RunTask", "ThreadControllerImpl::RunTask") and event["ts"] >= end:
            if begin is not None:
                tasks.append(Task(begin["dur"] / 1000, begin.get("tdur", begin["dur"]) / 1000, dict(parts)))
            begin, end, parts = event, event["ts"] + event["dur"], Counter()
        elif event["ts"] < end:
            name = part_of(event)
            if name:
                parts[name] += event["dur"] / 1000
    return Trace(seconds, tasks)


def part_of(event: dict[str, Any]) -> str:
    """A script by its address, a step of drawing by its name; empty for what only holds others."""
    data = event.get("args", {}).get("data") or event.get("args", {}).get("beginData") or {}
    if event["name"] in ("FunctionCall", "EvaluateScript"):
        return str(data.get("url", "")).partition("?")[0] or "script of the benchmark"
    return event["name"] if event["name"] in STEPS else ""
