"""Client side of the RPC: starts a helper process, sends requests, and restarts the process after it has ended.

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

#: A larger log (bytes) is rotated when the process starts.
MAX_LOG_BYTES = 1 << 20
#: An idle process ends within milliseconds of its input. After this timeout a busy one is left running or killed.
EXIT_TIMEOUT_S = 0.3
#: Seconds in which a process that has nothing to do must end.
REST_TIMEOUT_S = 30.0


class RpcError(Exception):
    """A request got no reply from its operation. Callers translate it into a message for the user."""


class RpcClosed(RpcError):
    """The client has been closed."""


class RpcTimeout(RpcError):
    """The process sent neither a reply nor an event within the timeout."""


class RpcEnded(RpcError):
    """The process ended during the request; the next request starts a new one.

    Attributes
    ----------
    ending
        Description of how it ended; empty when unknown.
    """

    def __init__(self, code: int | None) -> None:
        self.ending = "" if code is None else child_process.ending(code)
        super().__init__(self.ending)


class RpcCancelled(RpcError):
    """The operation was canceled."""


class RpcFault(RpcError):
    """The operation raised an unexpected exception: a bug, whose traceback is in the log.

    Attributes
    ----------
    kind
        Name of the exception's class.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Pending:
    """A request that waits for its reply."""

    def __init__(self, future: asyncio.Future[Any], event: Callable[[dict[str, Any]], None]) -> None:
        self.future = future
        self.event = event


class RpcClient:
    """Client of one helper process. Use it from one event loop.

    Parameters
    ----------
    module, arguments
        Module that the process runs, and its arguments.
    log
        File for the standard error of the process.
    environment
        Returns the environment to start the process with.
    watched
        Returns the environment variables whose changes are sent to the running process before each request.
    serial
        Whether requests run one after the other. Then a request that its caller abandons is still completed (a
        record must not stay half written), and a timeout kills the process. Otherwise requests run concurrently,
        and abandoning one cancels its operation.
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
        self._sent_environ: dict[str, str] = {}
        self._pending: dict[int, _Pending] = {}
        self._send_lock: asyncio.Lock | None = None
        self._serial_lock: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_id = 0
        self._closed = False
        _clients.add(self)

    @property
    def pid(self) -> int | None:
        """Process id while the process runs."""
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
            Name of the operation, and its keywords as plain data.
        event
            Receives the events of the operation, on the loop.
        timeout
            Maximum seconds without a reply or an event.

        Raises
        ------
        AmlTrainError
            The operation failed; class, message, hint, code, field and details are preserved.
        RpcError
            The operation sent no reply.
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
            task.exception()  # retrieved, because the caller may have been canceled

    async def _in_turn(self, op: str, payload: Mapping[str, Any], event: Any, timeout: float) -> Any:
        if self._serial_lock is None:
            self._serial_lock = asyncio.Lock()
        async with self._serial_lock:
            try:
                return await self._exchange(op, payload, event, timeout)
            except RpcTimeout:
                self._kill()
                raise

    async def _exchange(self, op: str, payload: Mapping[str, Any], event: Any, timeout: float) -> Any:
        if self._closed:
            raise RpcClosed
        self._last_id += 1
        number, event_seen = self._last_id, asyncio.Event()

        def take_event(fields: dict[str, Any]) -> None:
            event_seen.set()
            event(fields)

        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(future, take_event)
        try:
            await self._send({"id": number, "op": op, "payload": dict(payload)})
            while True:
                event_seen.clear()
                done, _ = await asyncio.wait({future}, timeout=timeout)
                if done:
                    break
                if not event_seen.is_set():
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
        if self._send_lock is None:
            self._send_lock = asyncio.Lock()
        async with self._send_lock:
            if self._closed:
                raise RpcClosed
            if self.pid is None or self._owner != os.getpid():
                self._start(loop)
            data = b""
            watched = self._watched()
            if watched != self._sent_environ:
                data, self._sent_environ = framing.pack({"environ": _changes(self._sent_environ, watched)}), watched
            data += framing.pack(message)
            assert self._writer is not None
            try:
                # A request may be megabytes, and the process may still be starting, so do not write on the loop.
                await loop.run_in_executor(None, self._writer.write, data)
            except (OSError, ValueError):
                pass  # the reader thread notices that the process has ended, and fails every request

    def _cancel(self, number: int) -> None:
        writer = self._writer
        if self.pid is not None and writer is not None:
            # blocks while a large request fills the pipe, so do not write on the loop
            frame = framing.pack({"cancel": number})
            threading.Thread(target=writer.write_quietly, args=(frame,), daemon=True).start()

    # ---- the process

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._kill()
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.replace(self.log, self.log.with_suffix(".1.txt"))
        self._sent_environ = self._watched()
        process = child_process.start(*self._command, log=self.log, env=self._environment())
        self._process, self._writer, self._owner = process, FrameWriter(process), os.getpid()
        threading.Thread(target=self._listen, args=(process, loop), name="amltrain-rpc", daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """Read replies in a separate thread: asyncio needs another kind of pipe on Windows."""
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

    async def rest(self) -> bool:
        """End the process if it has nothing to do; the next request starts a new one. Returns whether it has ended."""
        locks = (self._send_lock, self._serial_lock)
        if self._closed or self._pending or any(lock is not None and lock.locked() for lock in locks):
            return False
        process, writer = self._release()
        if process is None or writer is None:
            return False

        def end() -> None:
            writer.close()
            try:
                process.wait(REST_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(OSError):
                if process.stdout is not None:
                    process.stdout.close()

        await asyncio.get_running_loop().run_in_executor(None, end)
        return True

    def forget(self) -> None:
        """Close this process' copy of the input in a forked child; it would keep the helper of the parent alive."""
        process, _ = self._release()
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    async def close(self, last: Sequence[tuple[str, dict[str, Any]]] = (), *, kill_after: float | None = None) -> None:
        """Release the process: it finishes its operations, runs `last`, and ends.

        Parameters
        ----------
        last
            Operations and payloads to run without waiting for a reply.
        kill_after
            Seconds after which the process is killed; ``None`` lets it finish.
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
        if kill_after is None and (last or busy):  # importing MLflow alone takes seconds
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
    error_class = errors.error_class(kind)
    if error_class is None:
        raise RpcCancelled(message) if kind == "Cancelled" else RpcFault(kind, message)
    error: AmlTrainError = error_class(message, hint=str(fields.get("hint", "")))
    error.about(str(fields.get("subject", "")))
    error.code, error.field = str(fields.get("code", "")), str(fields.get("field", ""))
    error.details = dict(fields.get("details") or {})
    raise error


def _changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """Return the changes that turn `before` into `now`; ``None`` removes a variable."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())


_clients: weakref.WeakSet[RpcClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
