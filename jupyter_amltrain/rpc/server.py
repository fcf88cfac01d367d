"""Server side of the RPC: reads requests, runs operations and sends replies.

Request ``{"id", "op", "payload"}``; reply ``{"id", "result"}`` or ``{"id", "error": {"type", "subject", "message",
"hint", "code", "field", "details"}}``; before it any number of ``{"id", "event": {"kind", ...}}``. ``{"cancel": id}``
requests that an operation stop, ``{"environ": {name: text or None}}`` changes the process' environment. Output that
libraries print goes to standard error. The kernel's side is :mod:`jupyter_amltrain.rpc.client`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.rpc import framing

log = logging.getLogger("amltrain.rpc")

_thread = threading.local()


class Cancelled(BaseException):
    """The caller canceled the operation. Not an ``Exception``, so that library code does not swallow it."""


class Call:
    """A running operation: reports progress and checks for cancellation.

    Parameters
    ----------
    number
        The request's ``id``.
    send
        Sends a message to the kernel.
    """

    def __init__(self, number: int, send: Callable[[dict[str, Any]], None]) -> None:
        self._number = number
        self._send = send
        self._cancel = threading.Event()
        self._last = ""

    def progress(self, text: str) -> None:
        """Report progress in one sentence; repeated sentences are sent once."""
        if text != self._last:
            self._last = text
            self.event("progress", text=text)

    def event(self, kind: str, **fields: Any) -> None:
        """Send an event, which must not contain secrets."""
        self._send({"id": self._number, "event": {"kind": kind, **fields}})

    def is_canceled(self) -> bool:
        """Return whether the caller canceled the operation."""
        return self._cancel.is_set()

    def check(self) -> None:
        """Raise :class:`Cancelled` if the caller canceled the operation."""
        if self._cancel.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep; raise :class:`Cancelled` as soon as the caller cancels the operation."""
        if self._cancel.wait(seconds):
            raise Cancelled

    def cancel(self) -> None:
        """Request that the operation stop."""
        self._cancel.set()


def current_call() -> Call | None:
    """Return the operation that this thread is running."""
    call: Call | None = getattr(_thread, "call", None)
    return call


@contextlib.contextmanager
def working_for(call: Call | None) -> Iterator[None]:
    """Run this thread on behalf of `call`, so that canceling it interrupts waits between retries."""
    previous = current_call()
    _thread.call = call
    try:
        yield
    finally:
        _thread.call = previous


def resolve_operation(operations: Mapping[str, str], op: str) -> Callable[..., Any]:
    """Import the function of an operation.

    Raises
    ------
    ValueError
        The table has no such operation.
    """
    if op not in operations:
        raise ValueError(f"unknown operation {op!r}")
    module, _, name = operations[op].partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


class RpcServer:
    """Serves the requests of one kernel.

    Parameters
    ----------
    source, sink
        Descriptors to read frames from and to write frames to.
    run
        Runs one operation: takes its call, name and payload, returns plain data.
    threads
        Number of concurrent operations; with 1 they run in the order of the requests.
    make_call
        Creates the call object of a request; default :class:`Call`.
    explain
        Translates a library's exception to an ``AmlTrainError``; returns ``None`` for a bug.
    redact
        Removes secrets from a text.
    """

    def __init__(
        self,
        source: int,
        sink: int,
        run: Callable[[Any, str, dict[str, Any]], Any],
        *,
        threads: int = 1,
        make_call: Callable[[int, Callable[[dict[str, Any]], None]], Call] = Call,
        explain: Callable[[BaseException], AmlTrainError | None] = lambda error: None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._source, self._sink = source, sink
        self._run, self._make_call = run, make_call
        self._explain, self._redact = explain, redact
        self._write_lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._pool = ThreadPoolExecutor(threads, "amltrain-rpc")

    def serve(self) -> None:
        """Serve until the input ends; running and queued operations continue."""
        while True:
            try:
                frame = framing.read(partial(os.read, self._source))
            except EOFError:
                return
            if "environ" in frame:
                _update_environment(frame["environ"])
            elif "cancel" in frame:
                if (call := self._calls.get(frame["cancel"])) is not None:
                    call.cancel()
            else:
                number = frame["id"]
                call = self._calls[number] = self._make_call(number, self._send)
                self._pool.submit(self._answer, call, number, frame["op"], frame.get("payload") or {})

    def finish(self) -> None:
        """Wait until every operation has finished."""
        self._pool.shutdown()

    def _answer(self, call: Call, number: int, op: str, payload: dict[str, Any]) -> None:
        started_at = time.monotonic()
        try:
            with working_for(call):
                call.check()
                frame = framing.pack({"id": number, "result": self._run(call, op, payload)})
            framing.unpack_length(frame[:4])
        except Cancelled:
            frame = framing.pack({"id": number, "error": {"type": "Cancelled", "message": f"{op} was canceled."}})
        except (Exception, SystemExit) as error:  # the edge of a request: its caller gets every error
            frame = framing.pack({"id": number, "error": self._failure(op, error)})
        finally:
            self._calls.pop(number, None)
        log.debug("%s took %.2f s", op, time.monotonic() - started_at)
        self._write(frame)

    def _failure(self, op: str, error: BaseException) -> dict[str, Any]:
        translated = error if isinstance(error, AmlTrainError) else self._explain(error)
        if translated is not None:
            log.info("%s: %s: %s", op, type(translated).__name__, translated)
            return {
                "type": type(translated).__name__,
                "subject": self._redact(translated.subject),
                "message": self._redact(translated.reason),
                "hint": self._redact(translated.hint),
                "code": translated.code,
                "field": translated.field,
                "details": self._redacted(translated.details),
            }
        log.error("%s failed", op, exc_info=error)  # a bug: the traceback is in the log
        lines = self._redact(str(error)).strip().splitlines()
        return {"type": type(error).__name__, "message": lines[0] if lines else repr(error)}

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, Mapping):
            return {str(key): self._redacted(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._redacted(part) for part in value]
        return value

    def _send(self, message: dict[str, Any]) -> None:
        self._write(framing.pack(message))

    def _write(self, frame: bytes) -> None:
        with self._write_lock:
            try:
                framing.write(partial(os.write, self._sink), frame)
            except OSError:
                pass  # the kernel has ended; its requests are still completed


def _update_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def own_process() -> tuple[int, int]:
    """Prepare this process as a server: ignore Ctrl-C, and return its private input and output.

    Ctrl-C in a terminal reaches the whole process group; the kernel cancels operations itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return framing.own_standard_pipes()
