"""The kernel's side of a helper process: starts it, sends requests, starts it again after its death.

The process' side is :mod:`jupyter_amltrain.rpc.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain import errors
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.rpc import child_process, framing
from jupyter_amltrain.rpc.child_process import FrameWriter

#: A log that is longer is put aside when the process starts, bytes.
MAX_LOG_BYTES = 1 << 20
#: An idle process ends within milliseconds of its input; one that works is left to itself, or killed, after that.
EXIT_TIMEOUT_S = 0.3


class RpcError(Exception):
    """A request had no answer of its operation. Whoever uses a client says it in words of its own."""


class RpcClosed(RpcError):
    """The client has been closed."""


class RpcTimeout(RpcError):
    """The process sent neither an answer nor an event for too long."""


class RpcEnded(RpcError):
    """The process ended during the request; the next request starts a new one.

    Attributes
    ----------
    ending
        How, in words; empty when that is not known.
    """

    def __init__(self, code: int | None) -> None:
        self.ending = "" if code is None else child_process.ending(code)
        super().__init__(self.ending)


class RpcCancelled(RpcError):
    """The operation was canceled."""


class RpcFault(RpcError):
    """The operation raised an exception that is none of ours: a bug, whose traceback is in the log.

    Attributes
    ----------
    kind
        Name of the exception's class.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Pending:
    """A request without an answer yet."""

    def __init__(self, future: asyncio.Future[Any], event: Callable[[dict[str, Any]], None]) -> None:
        self.future = future
        self.event = event


class RpcClient:
    """Requests to one helper process. Use it from one event loop.

    Parameters
    ----------
    module, arguments
        The process: a module that is run, and its arguments.
    log
        File that takes its standard error.
    environment
        Returns the environment that the process is started with.
    watched
        Returns the part of our environment whose changes the running process hears of, before each request.
    serial
        Whether requests wait for each other, in their order. Then one that its caller abandons is done all the same
        (a record half written helps nobody), and one that runs into its timeout ends the process. Else requests
        are under way together, and abandoning one cancels its operation.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        environment: Callable[[], Mapping[str, str]],
        watched: Callable[[], dict[str, str]] = dict,
        serial: bool = False,
    ) -> None:
        self._command = (module, *arguments)
        self.log = log
        self._environment, self._watched, self._serial = environment, watched, serial
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: FrameWriter | None = None
        self._owner = -1
        self._sent: dict[str, str] = {}
        self._pending: dict[int, _Pending] = {}
        self._sending: asyncio.Lock | None = None
        self._turn: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next = 0
        self._closed = False
        _clients.add(self)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    async def request(
        self,
        op: str,
        payload: Mapping[str, Any],
        *,
        event: Callable[[dict[str, Any]], None] = lambda fields: None,
        timeout: float,
    ) -> Any:
        """Run one operation in the process.

        Parameters
        ----------
        op, payload
            Its name, and its keywords as plain data.
        event
            Takes what the operation reports meanwhile, on the loop.
        timeout
            Seconds without an answer and without an event.

        Raises
        ------
        AmlTrainError
            As the operation raised it: class, message, hint, code, field and details.
        RpcError
            There was no such answer.
        """
        if not self._serial:
            return await self._exchange(op, payload, event, timeout)
        task = asyncio.get_running_loop().create_task(self._in_turn(op, payload, event, timeout))
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return await asyncio.shield(task)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone

    async def _in_turn(self, op: str, payload: Mapping[str, Any], event: Any, timeout: float) -> Any:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            try:
                return await self._exchange(op, payload, event, timeout)
            except RpcTimeout:
                self._kill()
                raise

    async def _exchange(self, op: str, payload: Mapping[str, Any], event: Any, timeout: float) -> Any:
        if self._closed:
            raise RpcClosed
        self._next += 1
        number, news = self._next, asyncio.Event()

        def take_event(fields: dict[str, Any]) -> None:
            news.set()
            event(fields)

        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(future, take_event)
        try:
            await self._send({"id": number, "op": op, "payload": dict(payload)})
            while True:
                news.clear()
                done, _ = await asyncio.wait({future}, timeout=timeout)
                if done:
                    break
                if not news.is_set():
                    raise RpcTimeout
            return _result_of(future.result())
        finally:
            self._pending.pop(number, None)
            if not future.done():
                self._cancel(number)
            elif not future.cancelled():
                future.exception()

    async def _send(self, message: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        if self._sending is None:
            self._sending = asyncio.Lock()
        async with self._sending:
            if self._closed:
                raise RpcClosed
            if self.pid is None or self._owner != os.getpid():
                self._start(loop)
            data = b""
            now = self._watched()
            if now != self._sent:
                data, self._sent = framing.pack({"environ": _changes(self._sent, now)}), now
            data += framing.pack(message)
            assert self._writer is not None
            try:
                # A request may be megabytes, and the process may still be starting: not on the loop.
                await loop.run_in_executor(None, self._writer.write, data)
            except (OSError, ValueError):
                pass  # the reader sees that the process has ended, and fails every request

    def _cancel(self, number: int) -> None:
        writer = self._writer
        if self.pid is not None and writer is not None:
            # waits while a large request fills the pipe: not on the loop
            frame = framing.pack({"cancel": number})
            threading.Thread(target=writer.write_quietly, args=(frame,), daemon=True).start()

    # ---- the process

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._kill()
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.replace(self.log, self.log.with_suffix(".1.txt"))
        self._sent = self._watched()
        process = child_process.start(*self._command, log=self.log, env=self._environment())
        self._process, self._writer, self._owner = process, FrameWriter(process), os.getpid()
        threading.Thread(target=self._listen, args=(process, loop), name="amltrain-rpc", daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """Read answers, in a thread of its own: pipes on the loop need another kind of pipe on Windows."""
        assert process.stdout is not None
        read = process.stdout.read
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while True:
                    loop.call_soon_threadsafe(self._receive, framing.read(read))
            except (OSError, EOFError, ValueError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2.0)
                loop.call_soon_threadsafe(self._ended, process)

    def _receive(self, message: dict[str, Any]) -> None:
        pending = self._pending.get(message.get("id", -1))
        if pending is None:
            return
        if "event" in message:
            pending.event(message["event"])
        elif not pending.future.done():
            pending.future.set_result(message)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        if process is self._process:
            self._fail_pending(RpcEnded(process.poll()))
            self._kill()

    def _fail_pending(self, error: RpcError) -> None:
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(error)

    def _release(self) -> tuple[subprocess.Popen[bytes] | None, FrameWriter | None]:
        process, writer = self._process, self._writer
        self._process = self._writer = None
        return process, writer

    def _kill(self) -> None:
        process, writer = self._release()
        if process is None:
            return
        if self._owner == os.getpid() and process.poll() is None:
            process.kill()
            process.wait()
        if writer is not None:
            writer.close()
        with contextlib.suppress(OSError):
            if process.stdout is not None:
                process.stdout.close()

    def forget(self) -> None:
        """In a forked child: close our copy of the input, which would keep the parent's process alive."""
        process, _ = self._release()
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    async def close(self, last: Sequence[tuple[str, dict[str, Any]]] = (), *, kill_after: float | None = None) -> None:
        """Let go of the process: it finishes what it is doing, then `last`, and ends.

        Parameters
        ----------
        last
            Operations and payloads whose answers nobody waits for.
        kill_after
            Seconds after which it is killed; ``None`` lets it finish.
        """
        loop = asyncio.get_running_loop()
        if last and self.pid is None and not self._closed:
            self._start(loop)
        self._closed = True
        busy = bool(self._pending)
        self._fail_pending(RpcEnded(None))  # what was sent may still happen
        process, writer = self._release()
        if process is None or writer is None:
            return
        frames = b"".join(framing.pack({"id": 0, "op": op, "payload": payload}) for op, payload in last)

        def finish() -> None:
            if frames:
                writer.write_quietly(frames)
            writer.close()

        await loop.run_in_executor(None, finish)
        if kill_after is None and (last or busy):  # it has seconds of work left: an import of MLflow takes that long
            return
        try:
            await loop.run_in_executor(None, process.wait, EXIT_TIMEOUT_S if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            if kill_after is not None:
                process.kill()
                process.wait()


def _result_of(reply: dict[str, Any]) -> Any:
    if "error" not in reply:
        return reply["result"]
    fields = reply["error"]
    kind, message = str(fields.get("type", "")), str(fields.get("message", ""))
    known = errors.of_name(kind)
    if known is None:
        raise RpcCancelled(message) if kind == "Cancelled" else RpcFault(kind, message)
    error: AmlTrainError = known(message, hint=str(fields.get("hint", "")))
    error.about(str(fields.get("subject", "")))
    error.code, error.field = str(fields.get("code", "")), str(fields.get("field", ""))
    error.details = dict(fields.get("details") or {})
    raise error


def _changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """What a process that knows `before` must be told; ``None`` removes a name."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())


_clients: weakref.WeakSet[RpcClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
