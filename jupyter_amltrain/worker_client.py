"""The kernel's side of the worker process (:mod:`jupyter_amltrain.worker`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain import errors, worker
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.state import StateRoot


class WorkerError(AmlTrainError):
    """The worker process died, hung, or failed with a bug.

    Attributes
    ----------
    kind
        Name of the exception in the worker.
    """

    def __init__(self, message: str, *, kind: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class Worker:
    """Starts the worker at the first request and again after a crash.

    Use it from one event loop. Requests are answered in the order asked: the process
    does one thing at a time, so that only one writes the MLflow store.

    Parameters
    ----------
    root
        The state root; the process's standard error goes to its ``logs/worker.txt``.
    """

    def __init__(self, root: StateRoot) -> None:
        self._log = root.logs / "worker.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._pipe: asyncio.ReadTransport | None = None
        self._turn: asyncio.Lock | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    async def request(self, op: str, payload: dict[str, Any], timeout: float = 600.0) -> Any:
        """Have one operation done.

        Parameters
        ----------
        op
            A key of :data:`jupyter_amltrain.worker.OPS`, or ``"ping"``.
        payload
            Keyword arguments of the operation; plain data.
        timeout
            Seconds until the worker is taken for hung and killed.

        Returns
        -------
        dict or bytes
            What the operation returned.

        Raises
        ------
        WorkerError
            The process ended or hung in this request (the next one starts a new
            process), or the operation raised: then `kind` is the exception's name.
        AmlTrainError
            The operation raised one of ours, of the same class.
        """
        # Shielded: a caller that gives up must not stop an import half-way, and its
        # answer must not be taken for that of the next request.
        task = asyncio.get_running_loop().create_task(self._answered(op, payload, timeout))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        reply = await asyncio.shield(task)
        if "error" in reply:
            kind, message = reply["error"]["type"], reply["error"]["message"]
            found = getattr(errors, kind, None)
            if isinstance(found, type) and issubclass(found, AmlTrainError):
                raise found(message)
            raise WorkerError(message, kind=kind)
        return reply["result"]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    async def _answered(self, op: str, payload: dict[str, Any], timeout: float) -> dict[str, Any]:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            if self._closed:
                raise WorkerError("The worker process has been closed.")
            try:
                return await asyncio.wait_for(self._exchange(op, payload), timeout)
            except asyncio.TimeoutError:
                self._kill()
                raise WorkerError(
                    f"The worker process did not finish {op!r} within {timeout:g} s.",
                    kind="TimeoutError",
                    hint=f"See {self._log}",
                ) from None
            except (OSError, EOFError, ValueError) as error:
                code = await self._reap()
                raise WorkerError(
                    f"The worker process ended during {op!r} ({_ending(code)}).",
                    kind=type(error).__name__,
                    hint=f"It is started again by the next request. See {self._log}",
                ) from error

    async def _exchange(self, op: str, payload: dict[str, Any]) -> dict[str, Any]:
        if self.pid is None:
            await self._start()
        assert self._process is not None and self._reader is not None
        self._next += 1
        frame = worker.pack({"id": self._next, "op": op, "payload": payload})
        stdin = self._process.stdin
        assert stdin is not None
        # The process reads as soon as it is idle, and only then do we write; even so a
        # request of a few hundred kB must not block the loop while Python starts.
        await asyncio.get_running_loop().run_in_executor(None, _write, stdin.fileno(), frame)
        length = worker.unpack_length(await self._reader.readexactly(4))
        reply: dict[str, Any] = msgspec.msgpack.decode(await self._reader.readexactly(length))
        if reply.get("id") != self._next:
            raise ValueError("an answer to another request")
        return reply

    async def _start(self) -> None:
        # Popen and a pipe of the loop, not asyncio's subprocesses: those want a child
        # watcher, which in older Pythons belongs to the main thread's loop.
        self._kill()
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_amltrain.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=_environment(),
                start_new_session=True,
            )
        finally:
            os.close(log)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=worker.MAX_FRAME)
        self._reader = reader
        self._pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)

    async def _reap(self) -> int | None:
        """Exit code after its pipe broke: a moment passes between the two."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.get_running_loop().run_in_executor(None, process.wait, 2.0)
        return self._kill()

    def _kill(self) -> int | None:
        """Make sure that the process is gone; its exit code."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is None:
            return None
        code = process.poll()
        if code is None:
            process.kill()
            process.wait()
        # last: a write that still hangs in its thread ends with the process, not on a
        # descriptor that means something else by now
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        return code

    async def close(self, last: Sequence[tuple[str, dict[str, Any]]] = ()) -> None:
        """Let go of the process: it finishes what it does, then `last`, and ends by itself.

        Parameters
        ----------
        last
            Operations and payloads whose answers nobody waits for.
        """
        if last and self.pid is None and not self._closed:
            await self._start()
        self._closed = True
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            for op, payload in last:
                _write(process.stdin.fileno(), worker.pack({"id": 0, "op": op, "payload": payload}))
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # an idle one is gone in milliseconds
            await asyncio.get_running_loop().run_in_executor(None, process.wait, 0.3)


def _environment() -> dict[str, str]:
    """Ours, so that the worker finds this package also where it is not installed."""
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parent.parent)
    known = env.get("PYTHONPATH")
    env["PYTHONPATH"] = root + os.pathsep + known if known else root
    # MLflow in the worker opens the project's store and nothing else.
    for name in [name for name in env if name.startswith("MLFLOW_TRACKING_")]:
        del env[name]
    return env


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _ending(code: int | None) -> str:
    if code is None:
        return "its answer was unreadable"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
