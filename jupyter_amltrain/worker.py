"""The one process that imports MLflow and Matplotlib, so that the kernel need not.

``python -m jupyter_amltrain.worker``: reads requests from standard input and answers on
standard output, one after the other: a frame is four bytes big-endian length and
msgpack. Request ``{"id", "op", "payload"}``; answer ``{"id", "result"}`` or
``{"id", "error": {"type", "message"}}``. Ends when its input does. What a library
prints goes to standard error. The kernel's side is :mod:`jupyter_amltrain.worker_client`.
"""

from __future__ import annotations

import importlib
import os
import signal
import struct
import sys
import traceback
from typing import Any

import msgspec

#: Longest frame, bytes; a longer length is a broken stream.
MAX_FRAME = 64 << 20

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

_LENGTH = struct.Struct(">I")


def pack(message: dict[str, Any]) -> bytes:
    """One frame."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def unpack_length(head: bytes) -> int:
    """Length of the body from the four bytes before it.

    Raises
    ------
    ValueError
        It is not a frame of ours.
    """
    length = int(_LENGTH.unpack(head)[0])
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return length


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


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def serve(source: int, sink: int) -> None:
    """Answer frames from descriptor `source` on descriptor `sink` until it ends."""
    while True:
        try:
            request = msgspec.msgpack.decode(_read(source, unpack_length(_read(source, 4))))
        except EOFError:
            return
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            reply["result"] = answer(request["op"], request.get("payload") or {})
            frame = pack(reply)
        except (Exception, SystemExit) as error:
            reply.pop("result", None)
            reply["error"] = _failure(error)
            frame = pack(reply)
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(sink, view) :]
        except BrokenPipeError:
            pass  # the kernel is gone; what it asked for before is done all the same


def main() -> None:
    """Entry of the process."""
    # Ctrl-C in a terminal reaches the whole group; an import must not stop for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    # from here on nobody else reads our requests or writes between our answers
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    serve(source, sink)


if __name__ == "__main__":
    main()
