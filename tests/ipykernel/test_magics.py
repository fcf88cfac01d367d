"""What only a real kernel shows: frames, `Out`, interrupts, the control channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.frontend import protocol
from jupyter_amltrain.schema.record import RECORD_MIME

from .harness import DEADLINE, Kernel, kernel


@pytest.fixture
def live(environ: dict[str, str], tmp_path: Path) -> Iterator[Kernel]:
    with kernel(environ, tmp_path / "work") as started:
        started.run("%load_ext jupyter_amltrain")
        yield started


def ask(live: Kernel, **content: Any) -> dict[str, Any]:
    session, channel = live.client.session, live.client.control_channel
    message = session.msg("amltrain_request", {"version": protocol.VERSION, **content})
    channel.send(message)
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        reply = channel.get_msg(timeout=DEADLINE)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return dict(reply["content"])
    raise AssertionError("no answer")


def test_submit_cell_shows_one_output_and_run_value(live: Kernel) -> None:
    cell = live.run("%%aml_submit --name digits\nprint('hi')")
    first = [d for d in cell.displays if "execution_count" not in d and RECORD_MIME in d["data"]]
    assert len(first) >= 1 and not [d for d in cell.displays if "execution_count" in d]
    ids = {d["transient"]["display_id"] for d in first}
    assert len(ids) == 1 and first[0]["data"][RECORD_MIME]["handle"].startswith("local/digits-")
    # `_` of that cell is still the run; naming it later shows it.
    shown = live.run("_.wait(60)")
    assert RECORD_MIME in shown.displays[-1]["data"] and "execution_count" in shown.displays[-1]
    quiet = live.run("run = %aml_runs last\nrun.handle")
    (value,) = [d for d in quiet.displays if "execution_count" in d]  # an update of the run may come after it
    assert value["data"]["text/plain"].startswith("'local/digits-")
    again = live.run("run")
    assert len(again.displays) == 1 and RECORD_MIME in again.displays[0]["data"]


@pytest.mark.thorough
def test_kernel_interrupt_ends_wait_only(live: Kernel, tmp_path: Path) -> None:
    source = "import os, time\nopen('started', 'w').close()\nwhile not os.path.exists('gate'): time.sleep(0.02)\nn = 3"
    started = tmp_path / "work" / "started"

    def interrupt() -> None:
        deadline = time.monotonic() + DEADLINE
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        live.manager.interrupt_kernel()

    thread = threading.Thread(target=interrupt)
    thread.start()
    cell = live.run(f"%%aml_submit --wait --out n --as run\n{source}", check=False)
    thread.join()
    assert cell.error is not None and cell.error["ename"] == "RunError"
    assert "is still running" in cell.error["evalue"] and "%aml_runs cancel local/" in cell.error["evalue"]
    assert cell.error["traceback"] == [f"RunError: {cell.error['evalue']}"]
    (tmp_path / "work" / "gate").touch()
    live.run("run.wait(60);")
    assert live.run("print(n)").stdout.splitlines()[-1] == "3"


def test_control_channel_answers_before_use_and_while_cell_runs(live: Kernel) -> None:
    hello = ask(live, op="hello")
    assert hello["ok"] is True and hello["kernel_busy"] is False
    live.run("%%aml_submit --as run\nimport time; time.sleep(600)")
    handle = live.run("print(run.handle)").stdout.strip()
    live.client.execute("print('waits'); run.wait()")
    deadline = time.monotonic() + DEADLINE
    while not ask(live, op="hello")["kernel_busy"]:
        assert time.monotonic() < deadline
    assert ask(live, op="cancel", handle=handle)["accepted"] is True
    while ask(live, op="run", handle=handle)["record"]["state"] != "canceled":
        assert time.monotonic() < deadline


def test_control_channel_first_request_while_cell_runs_is_answered(live: Kernel, tmp_path: Path) -> None:
    live.client.execute("import os, time\nwhile not os.path.exists('gate'): time.sleep(0.02)")
    deadline = time.monotonic() + DEADLINE
    while not ask(live, op="hello")["kernel_busy"]:
        assert time.monotonic() < deadline
    (tmp_path / "work" / "gate").touch()
    while ask(live, op="hello")["kernel_busy"]:
        assert time.monotonic() < deadline
