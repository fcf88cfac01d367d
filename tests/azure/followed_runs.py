"""A run that is followed through something bad, and how it is after."""

from __future__ import annotations

import re
from typing import Any

from tests.azure.notebook_session import NotebookSession, until_log

LINES = 30


def start_run(desk: NotebookSession, name: str, target: str = "cpu", lines: int = LINES) -> Any:
    """A run that writes a line ten times a second, as soon as its first one is here."""
    text = f"import time\nfor i in range({lines}):\n    print('line', i, flush=True)\n    time.sleep(0.1)"
    desk.good(f"%%aml_submit --name {name} --target {target} --as run\n{text}")
    run = desk.shell.user_ns["run"]
    until_log(run, "line 1\n")
    return run


def assert_complete(run: Any, lines: int = LINES) -> None:
    """Its log byte by byte, its ticks without gap or repeat, and the mirror as it is at the service."""
    run.wait(60)
    assert run.state == "completed" and run.run.reachable
    log = re.sub(r"^amltrain: .*\n", "", run.logs(), flags=re.M)  # the agent says that its token is refused
    assert log == "".join(f"line {i}\n" for i in range(lines))
    seq = run.telemetry()["seq"].tolist()
    assert len(seq) >= lines / 20 and seq == list(range(len(seq)))


def service_request(op: str, **payload: Any) -> Any:
    """What the Azure process answers."""
    from jupyter_amltrain import api
    from jupyter_amltrain.azure.client import client_of

    c = api.controller()

    async def ask() -> Any:
        return await client_of(c.loop, c.root).request(op, {"workspace": "lab", **payload})

    return c.loop.call(ask(), 60)
