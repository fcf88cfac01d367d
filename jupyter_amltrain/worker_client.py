"""The kernel's side of the worker process (:mod:`jupyter_amltrain.worker`)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from jupyter_amltrain import child_process, errors, frames
from jupyter_amltrain.child_process import Inlet
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
        self._inlet: Inlet | None = None
        self._outlet: asyncio.ReadTransport | None = None
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
            found = errors.of_name(kind)
            if found is not None:
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
        inlet, reader = self._inlet, self._reader
        if self._closed or inlet is None or reader is None:  # let go of while it started: a command line is over
            self._let_go()
            raise WorkerError("The worker process has been closed.")
        self._next += 1
        frame = frames.pack({"id": self._next, "op": op, "payload": payload})
        # The process reads as soon as it is idle, and only then do we write; even so a
        # request of a few hundred kB must not block the loop while Python starts.
        await asyncio.get_running_loop().run_in_executor(None, inlet.write, frame)
        length = frames.unpack_length(await reader.readexactly(4))
        reply: dict[str, Any] = msgspec.msgpack.decode(await reader.readexactly(length))
        if reply.get("id") != self._next:
            raise ValueError("an answer to another request")
        return reply

    async def _start(self) -> None:
        # Popen and a pipe of the loop, not asyncio's subprocesses: those want a child
        # watcher, which in older Pythons belongs to the main thread's loop.
        self._kill()
        process = child_process.start("jupyter_amltrain.worker", log=self._log, env=_environment())
        self._process, self._inlet = process, Inlet(process)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=frames.MAX_FRAME)
        self._reader = reader
        self._outlet, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)

    async def _reap(self) -> int | None:
        """Exit code after its pipe broke: a moment passes between the two."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.get_running_loop().run_in_executor(None, process.wait, 2.0)
        return self._kill()

    def _kill(self) -> int | None:
        """Make sure that the process is gone; its exit code."""
        process, inlet = self._let_go()
        if process is None or inlet is None:
            return None
        code = process.poll()
        if code is None:
            process.kill()
            process.wait()
        # last: a write that still hangs in its thread ends with the process, not on a
        # descriptor that means something else by now
        inlet.close()
        return code

    def _let_go(self) -> tuple[subprocess.Popen[bytes] | None, Inlet | None]:
        """The process and its input, which are ours no more; nobody reads its answers."""
        process, inlet = self._process, self._inlet
        if self._outlet is not None:
            self._outlet.close()
        self._process = self._inlet = self._outlet = None
        return process, inlet

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
        busy = self._turn is not None and self._turn.locked()
        process, inlet = self._let_go()
        if process is None or inlet is None:
            return
        for op, payload in last:
            inlet.write_quietly(frames.pack({"id": 0, "op": op, "payload": payload}))
        inlet.close()
        if last or busy:  # it has seconds of work left: an import of MLflow alone takes that long
            return
        with contextlib.suppress(subprocess.TimeoutExpired):  # an idle one is gone in milliseconds
            await asyncio.get_running_loop().run_in_executor(None, process.wait, 0.3)


def _environment() -> dict[str, str]:
    """MLflow in the worker opens the project's store and nothing else."""
    return {
        name: value for name, value in child_process.environment().items() if not name.startswith("MLFLOW_TRACKING_")
    }


def _ending(code: int | None) -> str:
    return "its answer was unreadable" if code is None else child_process.ending(code)
