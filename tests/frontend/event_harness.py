"""The events of one controller with fake targets, entered from a test's thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.frontend.clients import Subscribe
from jupyter_amltrain.frontend.events import EventPublisher
from jupyter_amltrain.frontend.protocol import Changes, Event, StateSnapshot
from jupyter_amltrain.schema.job import JobSpec
from tests.helpers import DEADLINE, api_of, until

TARGETS = {
    "endless": {"running": 600.0, "period": 0.1, "gpus": 4},
    "wide": {"running": 600.0, "period": 0.1, "gpus": 64},
    "two": {"running": 600.0, "period": 0.1, "gpus": 2, "nodes": 2},
    "quick": {"queued": 0.0, "running": 0.1},
    "bad": {"queued": 0.0, "running": 0.05, "exit_code": 3},
    "far": {"unreachable": True},
}


class EventHarness:
    """The events of one controller, entered from a test's thread."""

    def __init__(self, api: Any) -> None:
        self.api, self.controller = api, api.controller()
        self.sent: dict[str, list[tuple[float, Event, Sequence[bytes]]]] = {}
        self.busy = False
        self.events = EventPublisher(self.controller, lambda: self.busy, self._send)

    def _send(self, comm: str, event: Event, buffers: Sequence[bytes]) -> None:
        self.sent.setdefault(comm, []).append((time.monotonic(), event, buffers))

    def ask(self, comm: str = "c", **wants: Any) -> Any:
        wants.setdefault("seq", len(self.sent.get(comm, ())) - 1)
        return self.call(self.events.subscribe(Subscribe(comm=comm, **wants)))

    def call(self, coro: Any) -> Any:
        return self.controller.loop.call(coro, DEADLINE)

    def on(self, fn: Callable[[], Any]) -> Any:
        async def go() -> Any:
            return fn()

        return self.call(go())

    def heard(self, kind: type[Any], comm: str = "c") -> list[Any]:
        return [event for _, event, _ in self.sent.get(comm, ()) if isinstance(event, kind)]

    def open(self, comm: str = "c", **wants: Any) -> StateSnapshot:
        assert self.ask(comm, seq=-1, **wants).snapshot
        return until(lambda: self.heard(StateSnapshot, comm), "a snapshot")[-1]

    def rows(self, comm: str = "c") -> dict[str, Any]:
        """Rows as a page has them now."""
        found: dict[str, Any] = {}
        for _, event, _ in list(self.sent.get(comm, ())):
            if isinstance(event, StateSnapshot):
                found = {row.handle: row for row in event.runs}
            elif isinstance(event, Changes):
                found |= {row.handle: row for row in event.runs}
                for handle in event.gone:
                    found.pop(handle)
        return found

    def submit(self, target: str, name: str = "story") -> str:
        handle: str = self.call(self.controller.jobs.submit(JobSpec(name=name, script="pass"), target))
        self.call(self.controller.accepted(handle))
        return handle


@pytest.fixture
def house(tmp_path: Path) -> Iterator[EventHarness]:
    with api_of(tmp_path) as api:
        rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in TARGETS.items()}
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        (home / "targets.json").write_text(json.dumps({"schema": 1, "current": "endless", "targets": rows}))
        house = EventHarness(api)
        yield house
        house.on(house.events.close)
