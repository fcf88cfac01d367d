"""Runs in the kernel: plays a run without starting one, so that the page alone is tested.

``play`` displays a record and pushes updates from a thread as the product does; the control channel
answers `hello`, `run` and `cancel` by the same protocol.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from ipykernel.kernelbase import Kernel
from IPython import get_ipython
from IPython.display import display, update_display

from jupyter_amltrain.frontend import protocol

MIME = "application/vnd.amltrain.run+json"
HANDLE = "local/played-1"
runs: dict[str, dict[str, Any]] = {}
#: What pages have asked for.
operations: list[str] = []
pushing = threading.Event()


def record(state: str = "running", steps: int = 1) -> dict[str, Any]:
    done = state in ("completed", "canceled")
    start = 1_000.0
    return {
        "schema": 1,
        "handle": HANDLE,
        "name": "played",
        "target": "local",
        "state": state,
        "done": done,
        "seen_at": time.time(),
        "phases": [{"name": "running", "start": start, "end": start + 5, "seconds": 5.0}],
        "metrics": {
            "loss": {"step": list(range(steps)), "value": [1 / (i + 1) for i in range(steps)], "last": 0, "n": steps}
        },
        "log": {"tail": "".join(f"step {i}\n" for i in range(steps)), "bytes": 7 * steps, "path": "/tmp/log.txt"},
    }


def bundle(found: dict[str, Any]) -> dict[str, Any]:
    return {MIME: found, "text/plain": f"{found['handle']}: {found['state']}"}


def play(push: bool = True) -> None:
    """Display the run; with `push` a thread updates it until it ends or `pushing` is cleared."""
    runs[HANDLE] = record()
    display(bundle(runs[HANDLE]), raw=True, display_id="played")
    pushing.set()

    def go() -> None:
        steps = 1
        while pushing.wait(0.1) and not runs[HANDLE]["done"]:
            time.sleep(0.25)
            steps += 1
            if not runs[HANDLE]["done"]:
                runs[HANDLE] = record(steps=steps)
            update_display(bundle(runs[HANDLE]), raw=True, display_id="played")

    if push:
        threading.Thread(target=go, daemon=True).start()


def finish(state: str = "completed") -> None:
    """The run ends."""
    runs[HANDLE] = record(state, steps=10)


async def handle(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    content = parent["content"]
    reply: dict[str, Any] = {"version": protocol.VERSION, "ok": True}
    op, wanted = content["op"], content.get("handle")
    operations.append(op)
    if op == "hello":
        reply.update(package="0", kernel_busy=False)
    elif wanted not in runs:
        reply = {"version": protocol.VERSION, "ok": False, "error": f"No run {wanted!r}. Type: %aml_runs list"}
    elif op == "run":
        if not runs[wanted]["done"]:
            runs[wanted] = {**runs[wanted], "seen_at": time.time()}
        reply["record"] = runs[wanted]
    elif op == "cancel":
        finish("canceled")
        reply["accepted"] = True
    kernel = get_ipython().kernel
    kernel.session.send(stream, "amltrain_reply", reply, parent=parent, ident=ident)


def install() -> None:
    kernel = Kernel.instance()
    kernel.control_handlers["amltrain_request"] = handle
    marker = SimpleNamespace(comm_id="amltrain_request", target_name="amltrain_request")
    kernel.comm_manager.register_comm(marker)  # by which a page finds the extension
