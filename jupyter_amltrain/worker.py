"""The one process that imports MLflow and Matplotlib, so that the kernel need not.

``python -m jupyter_amltrain.worker``: reads requests from standard input and answers on
standard output, one after the other (:mod:`jupyter_amltrain.frames`). Request
``{"id", "op", "payload"}``; answer ``{"id", "result"}`` or
``{"id", "error": {"type", "message"}}``. Ends when its input does. What a library
prints goes to standard error. The kernel's side is :mod:`jupyter_amltrain.worker_client`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from functools import partial
from typing import Any

from jupyter_amltrain import frames

#: Operation -> "module:function", imported at first use. Names, not imports: layers
#: above this one (the picture) are reached without depending on them.
OPS = {
    "warm": "jupyter_amltrain.tracking:warm",
    "import_run": "jupyter_amltrain.tracking:import_run",
    "model_register": "jupyter_amltrain.tracking.models:register",
    "model_list": "jupyter_amltrain.tracking.models:list_models",
    "model_download": "jupyter_amltrain.tracking.models:download",
    "ui_start": "jupyter_amltrain.tracking:start_ui",
    "ui_stop": "jupyter_amltrain.tracking:stop_ui",
    "picture": "jupyter_amltrain.widgets.picture:draw",
}


def answer(op: str, payload: dict[str, Any]) -> Any:
    """Do one operation; its payload is the function's keywords."""
    if op == "ping":
        return {"pid": os.getpid(), "python": sys.version.split()[0]}
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}")
    module, _, function = OPS[op].partition(":")
    return getattr(importlib.import_module(module), function)(**payload)


def _failure(error: BaseException) -> dict[str, str]:
    from jupyter_amltrain.errors import AmlTrainError

    if not isinstance(error, AmlTrainError):
        traceback.print_exc()  # a bug: the whole story is in the worker's log
    lines = str(error).strip().splitlines()
    return {"type": type(error).__name__, "message": lines[0] if lines else repr(error)}


def serve(source: int, sink: int) -> None:
    """Answer frames from descriptor `source` on descriptor `sink` until it ends."""
    while True:
        try:
            request = frames.read(partial(os.read, source))
        except EOFError:
            return
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            reply["result"] = answer(request["op"], request.get("payload") or {})
            frame = frames.pack(reply)
        except (Exception, SystemExit) as error:
            reply.pop("result", None)
            reply["error"] = _failure(error)
            frame = frames.pack(reply)
        try:
            frames.write(partial(os.write, sink), frame)
        except BrokenPipeError:
            pass  # the kernel is gone; what it asked for before is done all the same


def main() -> None:
    """Entry of the process."""
    # Ctrl-C in a terminal reaches the whole group; an import must not stop for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(*frames.own_standard_pipes())


if __name__ == "__main__":
    main()
