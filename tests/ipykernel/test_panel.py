"""The panel's events in a real kernel: they come while a cell runs, and leave no trace in its cells."""

from __future__ import annotations

import contextlib
import json
import queue
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.frontend import protocol
from tests.helpers import kernel_of
from tests.past_runs import write_runs

from .harness import DEADLINE, Kernel

FAKES = {"wide": {"running": 600.0, "period": 0.1, "gpus": 64}, "quick": {"queued": 0.0, "running": 0.2}}


class Page:
    """A page's end: requests by control, events by IOPub."""

    def __init__(self, live: Kernel) -> None:
        self.live, self.client = live, live.client
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.at: dict[str, list[float]] = {}
        channel = self.client.iopub_channel
        take = channel.get_msg

        def recording(*args: Any, **kwargs: Any) -> Any:
            # Whoever reads: an execution drops the messages that are not its own.
            message = take(*args, **kwargs)
            self._record(message)
            return message

        channel.get_msg = recording

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer of the kernel; what a busy machine did not answer in time is requested again, as a page does."""
        end = time.monotonic() + DEADLINE
        while True:
            answer = self._asked_once(op, fields, end)
            if answer["ok"]:
                return answer
            assert answer["code"] == "request.timeout" and time.monotonic() < end, answer

    def _asked_once(self, op: str, fields: dict[str, Any], end: float) -> dict[str, Any]:
        message = self.client.session.msg("amltrain_request", {"version": protocol.VERSION, "op": op, **fields})
        self.client.control_channel.send(message)
        while time.monotonic() < end:
            try:
                reply = self.client.control_channel.get_msg(timeout=DEADLINE)
            except queue.Empty:
                self.live.dump()
                raise
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])
        raise AssertionError(op)

    def want(self, comm: str = "c", **wants: Any) -> dict[str, Any]:
        wants.setdefault("seq", len(self.events.get(comm, ())) - 1)
        return self.ask("events", comm=comm, **wants)

    def listen(self, seconds: float, done: Callable[[], Any] = lambda: False) -> None:
        """Take what comes until `done()` or for so long."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                self.client.get_iopub_msg(timeout=0.1)

    def _record(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "comm_msg" and "seq" in content["data"]:
            event = {**content["data"], "buffers": [bytes(b) for b in message["buffers"]]}
            self.events.setdefault(content["comm_id"], []).append(event)
            self.at.setdefault(content["comm_id"], []).append(time.monotonic())
        assert message["msg_type"] not in ("comm_open", "comm_close") or not content["comm_id"].startswith("c")

    def until(self, done: Callable[[], Any]) -> None:
        self.listen(DEADLINE, done)
        if not done():
            self.live.dump()
        assert done(), {comm: [e["type"] for e in events] for comm, events in self.events.items()}

    def kinds(self, comm: str = "c") -> list[str]:
        return [event["type"] for event in self.events.get(comm, ())]

    def rows(self, comm: str = "c") -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for event in self.events.get(comm, ()):
            if event["type"] in ("snapshot", "changes"):
                found = {} if event["type"] == "snapshot" else found
                found |= {row["name"]: row for row in event["runs"]}
        return found


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    rows = {name: {"kind": "fake", "name": name, **fields} for name, fields in FAKES.items()}
    (home / "targets.json").write_text(json.dumps({"schema": 1, "current": "local", "targets": rows}))
    with kernel_of(tmp_path) as live:
        yield Page(live)


def test_panel_while_cell_runs_shows_new_run(page: Page) -> None:
    page.want()
    page.until(lambda: "snapshot" in page.kinds())
    assert page.events["c"][0]["seq"] == 0 and page.events["c"][0]["current"] == "local"
    page.live.client.execute(
        "import jupyter_amltrain as aml, time\naml.submit('pass', target='quick', name='seen')\n"
        "x = 0\nwhile True: x += 1"
    )
    page.until(lambda: "seen" in page.rows())
    page.until(lambda: page.rows()["seen"]["state"] == "completed" and page.kinds().count("beat") >= 2)
    beats = [at for at, kind in zip(page.at["c"], page.kinds(), strict=True) if kind == "beat"]
    assert 1.0 < beats[1] - beats[0] < 6.0
    assert [event["seq"] for event in page.events["c"]] == list(range(len(page.events["c"])))
    page.live.manager.interrupt_kernel()


@pytest.mark.thorough
def test_panel_clients_get_same_gpus_and_hidden_gets_none(page: Page) -> None:
    for comm in ("c1", "c2"):
        page.want(comm)
    page.want("c3", shown="status")
    page.until(lambda: all("snapshot" in page.kinds(comm) for comm in ("c1", "c2", "c3")))
    page.live.run("%%aml_submit --target wide --name streaming --as run\npass")
    page.want("c1", gpus=page.live.run("print(run.handle)").stdout.strip())
    page.until(lambda: page.kinds("c1").count("gpus") >= 4)
    page.until(lambda: page.rows("c3").get("streaming", {}).get("started"))
    count = len(page.events["c3"])
    page.listen(3.0)
    assert len(page.events["c3"]) == count
    assert set(page.rows("c1")) == set(page.rows("c2")) == {"streaming"}
    gpus = [event for event in page.events["c1"] if event["type"] == "gpus"]
    assert gpus[0]["first"] and len(gpus[0]["labels"]) == 64
    times = []
    for event in gpus:
        (data,) = map(bytes, event["buffers"])
        _, n, _ = struct.unpack_from("<HHI", data)
        assert len(data) == 8 + n * (8 + 2 * 4 + 2 * 64)  # head; times, two values of the host, percents of 64 GPUs
        times.append(np.frombuffer(data[8 : 8 + 8 * n]))
    t = np.concatenate(times)
    assert (np.diff(t) > 0).all()


@pytest.mark.thorough
def test_panel_events_fire_no_hooks(page: Page) -> None:
    page.live.run(
        "fired = []\nip = get_ipython()\n"
        "for name in ('pre_execute', 'post_execute', 'pre_run_cell', 'post_run_cell'):\n"
        "    ip.events.register(name, lambda *info, name=name: fired.append(name))"
    )
    page.live.run("fired.clear()")
    page.want()
    page.until(lambda: "snapshot" in page.kinds())
    page.want(gpus="target:wide", looks=[], details=[])
    page.until(lambda: page.kinds().count("gpus") >= 2)
    page.want(shown="")
    text = page.live.run("print(fired)").stdout
    assert text == "['post_execute', 'post_run_cell', 'pre_execute', 'pre_run_cell']\n"


@pytest.mark.thorough
def test_panel_with_500_past_runs_gets_snapshot(page: Page, tmp_path: Path) -> None:
    write_runs(tmp_path / "home", 500, time.time(), gpus=1, seconds=5)
    page.want()
    page.until(lambda: len(page.rows()) and sum(len(e.get("runs", ())) for e in page.events["c"]) >= 500)
    assert page.events["c"][0]["type"] == "snapshot"


@pytest.mark.thorough
def test_panel_after_unload_is_silent_until_reload(page: Page) -> None:
    page.want(gpus="target:wide")
    page.until(lambda: page.kinds().count("gpus") >= 2)
    page.live.run("%unload_ext jupyter_amltrain")
    page.listen(1.0)
    count = len(page.events["c"])
    page.listen(2.0)
    assert len(page.events["c"]) == count
    page.live.run("%load_ext jupyter_amltrain")
    assert page.want()["snapshot"]
    page.until(lambda: page.kinds().count("snapshot") == 2)
    assert page.events["c"][-1]["seq"] == 0
