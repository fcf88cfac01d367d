"""The kernel's side of the Azure process (:mod:`.process.serve`): one for each loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_amltrain import child_process, errors, frames
from jupyter_amltrain.backends.azureml import environ
from jupyter_amltrain.child_process import Inlet
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.state import StateRoot


class Unanswered(TargetUnreachable):
    """The process said nothing for too long: what it was asked to do may have been done."""


class Ended(Unanswered):
    """It ended in the middle."""


class _Waiting:
    """A request without an answer yet."""

    def __init__(self, future: asyncio.Future[Any], event: Callable[[dict[str, Any]], None]) -> None:
        self.future = future
        self.event = event


class Link:
    """Starts the process at the first request and again after a crash. Use it from one loop.

    Parameters
    ----------
    root
        The state root; what the process says goes to its ``logs/azure.txt``.
    """

    def __init__(self, root: StateRoot) -> None:
        self._root = root
        self._log = root.logs / "azure.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._inlet: Inlet | None = None
        self._owner = -1
        self._sent: dict[str, str] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._turn = asyncio.Lock()
        self._next = 0
        self._closed = False

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
        progress: Callable[[str], None] | None = None,
        signin: Callable[[dict[str, Any]], None] | None = None,
        timeout: float = 120.0,
    ) -> Any:
        """Have one operation done; many may be under way. Cancelling it asks the process to stop it.

        Parameters
        ----------
        op
            A key of :data:`.process.ops.OPS`.
        payload
            Its keywords, plain data.
        progress
            Takes a sentence on how far it is, on the loop.
        signin
            Takes what a person must do to sign in: ``{"text", "url", "code"}``.
        timeout
            Seconds without an answer and without news.

        Raises
        ------
        AmlTrainError
            Of the class that the operation raised.
        TargetUnreachable
            The process ended, or there was no answer. The next request starts a new one.
        """
        if self._closed:
            raise TargetUnreachable("The connection to Azure has been closed.", hint="Restart the kernel.")
        loop = asyncio.get_running_loop()
        self._next += 1
        number = self._next
        news = asyncio.Event()

        def event(fields: dict[str, Any]) -> None:
            news.set()
            if fields.get("kind") == "progress":
                if progress is not None:
                    progress(str(fields.get("text", "")))
            elif signin is not None:
                signin(fields)

        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[number] = _Waiting(future, event)
        answered = False
        try:
            async with self._turn:
                await self._send({"id": number, "op": op, "payload": dict(payload)}, op)
            while True:
                news.clear()
                done, _ = await asyncio.wait({future}, timeout=timeout)
                if done:
                    break
                if not news.is_set():
                    raise Unanswered(f"Azure gave no answer to {op} within {timeout:g} s.", hint="Try again.")
            answered = True
            return self._result(op, future.result())
        finally:
            self._waiting.pop(number, None)
            if not answered:
                if future.done() and not future.cancelled():
                    future.exception()
                self._cancel(number)

    def _result(self, op: str, reply: dict[str, Any]) -> Any:
        if "error" not in reply:
            return reply["result"]
        kind, message, hint = (str(reply["error"].get(key, "")) for key in ("type", "message", "hint"))
        found = errors.of_name(kind)
        if found is not None:
            raise found(message, hint=hint)
        if kind == "Cancelled":
            raise AmlTrainError(message)
        raise AmlTrainError(f"{op} failed by a fault of ours: {kind}: {message.rstrip('.')}.", hint=f"See {self._log}")

    async def _send(self, frame: dict[str, Any], op: str) -> None:
        loop = asyncio.get_running_loop()
        if self.pid is None or self._owner != os.getpid():
            self._start(loop)
        data = b""
        now = environ.read()
        if now != self._sent:
            data, self._sent = frames.pack({"environ": environ.changes(self._sent, now)}), now
        data += frames.pack(frame)
        assert self._inlet is not None
        try:
            # A submit may be megabytes, and the process still starts: not on the loop.
            await loop.run_in_executor(None, self._inlet.write, data)
        except (OSError, ValueError):
            pass  # its end is seen by the reader, which tells every waiting request

    def _cancel(self, number: int) -> None:
        process, inlet = self._process, self._inlet
        if process is not None and inlet is not None and process.poll() is None:
            # it waits while a large request fills the pipe: not on the loop
            threading.Thread(target=inlet.write_quietly, args=(frames.pack({"cancel": number}),), daemon=True).start()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._drop()
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > 1 << 20:
                os.replace(self._log, self._log.with_suffix(".1.txt"))
        self._sent = environ.read()
        module = "jupyter_amltrain.backends.azureml.process"
        process = child_process.start(module, str(self._root.path), log=self._log, env=environ.at_start())
        self._process, self._inlet, self._owner = process, Inlet(process), os.getpid()
        threading.Thread(target=self._listen, args=(process, loop), name="amltrain-azure-link", daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        """A thread of its own: pipes on the loop need another kind of pipe on Windows."""
        assert process.stdout is not None
        take = process.stdout.read
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while True:
                    loop.call_soon_threadsafe(self._take, frames.read(take))
            except (OSError, EOFError, ValueError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2.0)
                loop.call_soon_threadsafe(self._ended, process)

    def _take(self, frame: dict[str, Any]) -> None:
        waiting = self._waiting.get(frame.get("id", -1))
        if waiting is None:
            return
        if "event" in frame:
            waiting.event(frame["event"])
        elif not waiting.future.done():
            waiting.future.set_result(frame)

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        if process is not self._process:
            return
        code = process.poll()
        ending = "" if code is None else f" ({child_process.ending(code)})"
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(
                    Ended(
                        f"The process that talks to Azure ended{ending}.",
                        hint=f"The next request starts it again. See {self._log}",
                    )
                )
        self._drop()

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner == os.getpid() and process.poll() is None:
            process.kill()
            process.wait()
        if self._inlet is not None:
            self._inlet.close()
        with contextlib.suppress(OSError):
            if process.stdout is not None:
                process.stdout.close()

    def forget(self) -> None:
        """In a forked child: the process is the parent's, and our copy of its input would keep it alive."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    async def close(self) -> None:
        """End the process. What the service was asked to do goes on there."""
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        loop = asyncio.get_running_loop()
        if self._inlet is not None:
            await loop.run_in_executor(None, self._inlet.close)
        try:
            await loop.run_in_executor(None, process.wait, 1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_links: weakref.WeakKeyDictionary[LoopThread, Link] = weakref.WeakKeyDictionary()


def link_of(loop: LoopThread, root: StateRoot) -> Link:
    """The link of a loop; the process is started by the first request."""
    loop.check()
    if loop not in _links:
        _links[loop] = Link(root)
    return _links[loop]


async def close_of(loop: LoopThread) -> None:
    """Close the link of a loop, if it has one."""
    link = _links.pop(loop, None)
    if link is not None:
        await link.close()


def _after_fork() -> None:
    for link in list(_links.values()):
        link.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
