"""Requests on the control channel of a real kernel: answered while it works, no trace in its cells."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.frontend import protocol

from ..helpers import kernel_of, until
from ..ipykernel.harness import DEADLINE, Kernel

BUSY = {
    "sleeping": "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.1)",
    "computing": "import os\nwhile not os.path.exists('gate'):\n    for i in range(10**5): pass",
}


class Panel:
    """What the front end's client does, over jupyter_client."""

    def __init__(self, live: Kernel, work: Path) -> None:
        self.live, self.client, self.work = live, live.client, work
        self.iopub: list[dict[str, Any]] = []

    def ask(self, version: Any = protocol.VERSION, **content: Any) -> dict[str, Any]:
        message = self.client.session.msg("amltrain_request", {"version": version, **content})
        self.client.control_channel.send(message)
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            reply = self.client.control_channel.get_msg(timeout=DEADLINE)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                assert reply["msg_type"] == "amltrain_reply"
                assert reply["content"]["version"] == protocol.VERSION
                self.last = message["header"]["msg_id"]
                return dict(reply["content"])
        raise AssertionError("no answer")

    def good(self, **content: Any) -> dict[str, Any]:
        answer = self.ask(**content)
        assert answer["ok"] is True, answer
        return answer

    def refused(self, **content: Any) -> str:
        answer = self.ask(**content)
        assert answer["ok"] is False and "\n" not in answer["error"]
        return str(answer["error"])

    def newest(self) -> str:
        """Handle of the newest run."""
        return self.live.run("print(get_ipython().run_line_magic('aml_runs', 'last').handle)").stdout.strip()

    def start(self, code: str) -> str:
        """Begin a cell; its message id, once the kernel is at it."""
        cell = str(self.client.execute(code))
        until(lambda: self.good(op="hello")["kernel_busy"])
        return cell

    def end(self, cell: str) -> None:
        """Let a busy cell go and wait for its reply."""
        (self.work / "gate").touch()
        end = time.monotonic() + DEADLINE
        while self.client.get_shell_msg(timeout=DEADLINE)["parent_header"]["msg_id"] != cell:
            assert time.monotonic() < end
        (self.work / "gate").unlink()
        self.listen(lambda m: m["parent_header"].get("msg_id") == cell and _state(m) == "idle")

    def listen(self, wanted: Any) -> dict[str, Any]:
        """Read IOPub until a message is `wanted`."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            message = self.client.get_iopub_msg(timeout=DEADLINE)
            self.iopub.append(message)
            if wanted(message):
                return dict(message)
        raise AssertionError("not seen on IOPub")


def _state(message: dict[str, Any]) -> Any:
    return message["content"].get("execution_state") if message["msg_type"] == "status" else None


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    folder = tmp_path_factory.mktemp("panel")
    with kernel_of(folder) as live:
        yield Panel(live, folder / "work")


@pytest.mark.thorough
def test_hello_before_first_use_imports_nothing_heavy(panel: Panel) -> None:
    from jupyter_amltrain import __version__

    answer = panel.good(op="hello")
    assert answer == {"package": __version__, "kernel_busy": False, "version": protocol.VERSION, "ok": True}
    loaded = panel.live.run("import sys; print('jupyter_amltrain.kernel.controller' in sys.modules)").stdout
    assert loaded == "False\n"


def test_run_and_cancel(panel: Panel) -> None:
    panel.live.run("%%aml_submit --name first --as run\nimport time\nprint('hello')\ntime.sleep(600)")
    handle = panel.newest()
    assert panel.good(op="run", handle=handle)["record"]["name"] == "first"
    until(lambda: panel.good(op="run", handle=handle)["record"]["log"]["tail"] == "hello\n")
    assert panel.good(op="run", handle=handle)["record"]["handle"] == handle
    assert not panel.ask(op="run", handle="last")["ok"]  # whole handles only
    answer = panel.good(op="cancel", handle=handle)
    assert answer["accepted"] is True and answer["state"] in ("preparing", "queued", "running")
    until(lambda: panel.good(op="run", handle=handle)["record"]["state"] == "canceled")
    assert panel.good(op="cancel", handle=handle)["state"] == "canceled"  # an ended one is left alone
    assert panel.good(op="run", handle=handle)["record"]["done"] is True


def test_request_unanswerable_gives_reason(panel: Panel) -> None:
    for version in (protocol.VERSION + 1, "1", None):
        answer = panel.ask(version=version, op="hello")
        assert (answer["ok"], answer["code"]) == (False, "request.version")
        assert answer["details"] == {"kernel": protocol.VERSION, "page": version}
    assert panel.ask(op="fly")["code"] == "request.invalid" and "fly" in panel.refused(op="fly")
    assert "handle" in panel.refused(op="run")
    assert "handle" in panel.refused(op="cancel", handle=3)
    # Names no other run: the request may come from a notebook of somebody else.
    assert "local/" not in panel.refused(op="run", handle="first-00000")
    assert "nobody" in panel.refused(op="cancel", handle="nobody/x")
    assert panel.good(op="hello")["ok"] is True


@pytest.mark.parametrize("work", BUSY)
def test_request_while_cell_runs_is_answered_and_busy_restored(panel: Panel, work: str) -> None:
    handle = panel.newest()
    cell = panel.start(BUSY[work])
    try:
        times = []
        for content in ({"op": "hello"}, {"op": "kinds"}, {"op": "run", "handle": handle}):
            start = time.monotonic()
            panel.good(**content)
            times.append(time.monotonic() - start)
            request_id = panel.last
            # The idle that follows our answer makes JupyterLab forget that a cell runs ...
            panel.listen(
                lambda m, request_id=request_id: m["parent_header"].get("msg_id") == request_id and _state(m) == "idle"
            )
            # ... and this repairs it, as a status of the running cell.
            panel.listen(lambda m: m["parent_header"].get("msg_id") == cell and _state(m) == "busy")
        assert max(times) < 5
    finally:
        panel.end(cell)
    until(lambda: panel.good(op="hello")["kernel_busy"] is False)


def test_cancel_request_while_cell_sleeps_cancels_run(panel: Panel) -> None:
    panel.live.run("%%aml_submit --name second\nimport time\ntime.sleep(600)")
    handle = panel.newest()
    cell = panel.start(BUSY["sleeping"])
    try:
        assert handle.startswith("local/second-")
        panel.good(op="cancel", handle=handle)
        until(lambda: panel.good(op="run", handle=handle)["record"]["state"] == "canceled")
        assert panel.good(op="hello")["kernel_busy"] is True
    finally:
        panel.end(cell)


def test_request_after_cell_does_not_report_busy(panel: Panel) -> None:
    panel.good(op="hello")
    request_id = panel.last
    panel.listen(lambda m: m["parent_header"].get("msg_id") == request_id and _state(m) == "idle")
    count = len(panel.iopub)
    panel.good(op="hello")
    request_id = panel.last
    panel.listen(lambda m: m["parent_header"].get("msg_id") == request_id and _state(m) == "idle")
    assert all(m["parent_header"].get("msg_id") == request_id for m in panel.iopub[count:])


def test_request_fires_no_hooks_and_leaves_no_history(panel: Panel) -> None:
    panel.live.run(
        "fired = []\nip = get_ipython()\n"
        "for name in ('pre_execute', 'post_execute', 'pre_run_cell', 'post_run_cell'):\n"
        "    ip.events.register(name, lambda *info, name=name: fired.append(name))\n"
        "before = ip.execution_count"
    )
    panel.live.run("fired.clear()")
    for _ in range(3):
        for content in ({"op": "hello"}, {"op": "kinds"}, {"op": "fly"}):
            panel.ask(**content)
    text = panel.live.run("import json; print(json.dumps([fired, ip.execution_count - before]))").stdout
    fired, cells = json.loads(text)
    # Of the cell before its end, of this one its beginning; the requests between left nothing.
    assert fired == ["post_execute", "post_run_cell", "pre_execute", "pre_run_cell"]
    assert cells == 2


@pytest.mark.thorough
def test_waiting_request_does_not_block_others(panel: Panel) -> None:
    panel.good(op="kinds")  # creates the handlers
    panel.live.run(
        "import asyncio\nfrom jupyter_amltrain.frontend.run_handlers import GetRun\n"
        "handlers = get_ipython().kernel.control_handlers['amltrain_request'].__self__._current[1].by_request\n"
        "stored = handlers[GetRun]\nhandlers[GetRun] = lambda request: asyncio.sleep(600)"
    )
    waiting = panel.client.session.msg("amltrain_request", {"version": protocol.VERSION, "op": "run", "handle": "x"})
    panel.client.control_channel.send(waiting)
    # Neither ours nor the kernel's own, interrupts among them, stand behind it.
    for kind, content in (("kernel_info_request", {}), ("amltrain_request", {"op": "kinds"})):
        message = panel.client.session.msg(kind, {"version": protocol.VERSION, **content} if content else {})
        panel.client.control_channel.send(message)
        reply = panel.client.control_channel.get_msg(timeout=DEADLINE)
        assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
    reply = panel.client.control_channel.get_msg(timeout=DEADLINE)
    assert reply["parent_header"]["msg_id"] == waiting["header"]["msg_id"]
    assert reply["content"]["code"] == "request.timeout"
    panel.live.run("handlers[GetRun] = stored")


def test_submit_form_has_notebook_defaults(panel: Panel) -> None:
    def defaults() -> dict[str, Any]:
        return {field["name"]: field["default"] for field in panel.good(op="kinds")["submit"]}

    assert defaults()["target"] is None and defaults()["timeout"] is None
    panel.live.run("%config AMLTrain.target = 'nobody'\n%config AMLTrain.timeout = '90m'")
    assert defaults()["target"] == "nobody" and defaults()["timeout"] == "90m"
    errors = panel.good(op="compose", cell="pass", values={})["errors"]
    assert "'nobody'" in errors["target"]
    assert not panel.good(op="compose", cell="pass", values={"target": "local"})["errors"]
    panel.live.run("%config AMLTrain.target = ''\n%config AMLTrain.timeout = ''")
    assert not panel.good(op="compose", cell="pass", values={})["errors"]


def test_request_after_unload_is_ignored_until_reload(panel: Panel) -> None:
    panel.live.run("%unload_ext jupyter_amltrain")
    message = panel.client.session.msg("amltrain_request", {"version": protocol.VERSION, "op": "hello"})
    panel.client.control_channel.send(message)
    # The channel is in order: when this is answered, ours would have been.
    info = panel.client.session.msg("kernel_info_request", {})
    panel.client.control_channel.send(info)
    reply = panel.client.control_channel.get_msg(timeout=DEADLINE)
    assert reply["parent_header"]["msg_id"] == info["header"]["msg_id"]
    panel.live.run("%load_ext jupyter_amltrain")
    assert panel.good(op="hello")["kernel_busy"] is False


def test_load_by_page_without_cell_is_not_busy(panel: Panel) -> None:
    panel.live.run("%unload_ext jupyter_amltrain")
    panel.client.execute("%load_ext jupyter_amltrain", silent=True, store_history=False, reply=True, timeout=DEADLINE)
    until(lambda: panel.ask(op="hello")["kernel_busy"] is False)
