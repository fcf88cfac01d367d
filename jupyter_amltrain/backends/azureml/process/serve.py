"""Frames in, frames out: many operations at once, with progress, and each can be cancelled.

Frames are those of :mod:`jupyter_amltrain.frames`. Requests ``{"id", "op", "payload"}`` are answered in any
order by ``{"id", "result"}`` or ``{"id", "error": {"type", "message", "hint"}}``; before that come
``{"id", "event": {"kind": "progress" | "sign-in", "text", ...}}``. ``{"cancel": id}`` asks an operation to
stop, ``{"environ": {name: text or None}}`` brings the kernel's environment up to date. The process ends with
its input, at once: whatever the service was asked to do goes on there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain import frames
from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import ops
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Cloud

log = logging.getLogger("amltrain.azure")

#: Operations at the same time; most of their time they wait for the service.
THREADS = 16

_here = threading.local()


class Cancelled(BaseException):
    """Who asked for the operation does not want it any more. Not an ``Exception``: nothing may swallow it."""


class Call:
    """What an operation has of its caller.

    Attributes
    ----------
    cloud
        The workspaces and their clients.
    root
        The state root.
    """

    def __init__(self, cloud: Cloud, root: Path, number: int, say: Any) -> None:
        self.cloud = cloud
        self.root = root
        self._number = number
        self._say = say
        self._over = threading.Event()
        self._last = ""

    def progress(self, text: str) -> None:
        """Tell how far it is, one sentence; the same one twice is sent once."""
        if text != self._last:
            self._last = text
            self.event("progress", text=text)

    def event(self, kind: str, **fields: Any) -> None:
        """Send any event; never a secret."""
        self._say({"id": self._number, "event": {"kind": kind, **fields}})

    def cancelled(self) -> bool:
        """Whether nobody wants it any more."""
        return self._over.is_set()

    def check(self) -> None:
        """Raise :class:`Cancelled` when nobody wants it any more."""
        if self._over.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep; raises :class:`Cancelled` as soon as nobody wants it any more."""
        if self._over.wait(seconds):
            raise Cancelled

    def cancel(self) -> None:
        """Ask it to stop."""
        self._over.set()


def current() -> Call | None:
    """The operation that this thread works for."""
    found: Call | None = getattr(_here, "call", None)
    return found


@contextlib.contextmanager
def working_for(call: Call | None) -> Iterator[None]:
    """Let this thread work for `call`: its waits between retries end with it."""
    before = current()
    _here.call = call
    try:
        yield
    finally:
        _here.call = before


class Server:
    """Answers the frames of one kernel."""

    def __init__(self, source: int, sink: int, root: Path) -> None:
        self._source, self._sink, self._root = source, sink, root
        self._writing = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._pool = ThreadPoolExecutor(THREADS, "amltrain-azure")
        self._cloud: Cloud | None = None
        self._making = threading.Lock()

    def serve(self) -> None:
        """Until the input ends."""
        while True:
            try:
                frame = frames.read(partial(os.read, self._source))
            except EOFError:
                return
            if "environ" in frame:
                _take(frame["environ"])
            elif "cancel" in frame:
                if (call := self._calls.get(frame["cancel"])) is not None:
                    call.cancel()
            else:
                number = frame["id"]
                # the cloud is made by the thread that first needs it: its packages take a second to import
                call = self._calls[number] = Call(_Later(self), self._root, number, self._say)  # type: ignore[arg-type]
                self._pool.submit(self._answer, call, number, frame["op"], frame.get("payload") or {})

    def cloud(self) -> Cloud:
        """The one of this process."""
        with self._making:
            if self._cloud is None:
                from jupyter_amltrain.backends.azureml.process.cloud import Cloud

                self._cloud = Cloud(self._root)
            return self._cloud

    def _answer(self, call: Call, number: int, op: str, payload: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": number}
        began = time.monotonic()
        try:
            with working_for(call):
                call.check()
                reply["result"] = ops.function(op)(call, **payload)
            frame = frames.pack(reply)
            frames.unpack_length(frame[:4])
        except Cancelled:
            frame = frames.pack(
                {"id": number, "error": {"type": "Cancelled", "message": f"{op} was cancelled.", "hint": ""}}
            )
        except (Exception, SystemExit) as error:
            frame = frames.pack({"id": number, "error": _failure(op, error)})
        finally:
            self._calls.pop(number, None)
        log.debug("%s took %.2f s", op, time.monotonic() - began)
        self._write(frame)

    def _say(self, message: dict[str, Any]) -> None:
        self._write(frames.pack(message))

    def _write(self, frame: bytes) -> None:
        with self._writing:
            try:
                frames.write(partial(os.write, self._sink), frame)
            except OSError:
                pass  # the kernel is gone, and we go with it in a moment


class _Later:
    """The cloud at its first use."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server.cloud(), name)


def _failure(op: str, error: BaseException) -> dict[str, str]:
    if isinstance(error, AmlTrainError):
        log.info("%s: %s: %s", op, type(error).__name__, error)
        return {
            "type": type(error).__name__,
            "message": faults.redacted(error.message),
            "hint": faults.redacted(error.hint),
        }
    plain = faults.of_exception(error)
    if plain is not None:
        return _failure(op, plain)
    log.error("%s failed", op, exc_info=error)  # a bug: the whole story is in the log
    lines = faults.redacted(str(error)).strip().splitlines()
    return {"type": type(error).__name__, "message": lines[0] if lines else repr(error), "hint": ""}


def _take(environ: dict[str, str | None]) -> None:
    for name, value in environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Redacting(logging.Formatter):
    """No token and no signed address gets into the log, whoever writes it."""

    def format(self, record: logging.LogRecord) -> str:
        return faults.redacted(super().format(record))


def log_to(stream: Any) -> None:
    """Write the log of this process to `stream`; Azure's own loggers are silent."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    log.setLevel(os.environ.get("AMLTRAIN_AZURE_LOG", "INFO"))
    for name in ("azure", "msal", "msrest", "urllib3", "requests"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def main() -> None:
    """Entry of the process."""
    # Ctrl-C in a terminal reaches the whole group; the kernel cancels what it wants to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = frames.own_standard_pipes()
    log_to(sys.stderr)
    Server(source, sink, Path(sys.argv[1])).serve()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)  # threads that wait for the service must not hold us
