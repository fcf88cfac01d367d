"""Background event loop of a process, and the calls by which other threads use it.

Only this thread reads and changes runs, series, targets, connections and tasks. Other threads use
:meth:`LoopThread.post` or :meth:`LoopThread.call`; blocking code runs through :meth:`LoopThread.offload`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from jupyter_amltrain.errors import NoAnswer

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Interval at which `call` wakes, so that Ctrl-C reaches a waiting main thread.
CALL_INTERVAL_S = 0.5


class LoopThread:
    """A daemon thread that runs one asyncio event loop.

    The thread is started at first use, and started again at the first use after a
    ``fork`` (threads do not survive a fork).
    """

    def __init__(self, name: str = "amltrain-loop") -> None:
        self._name = name
        self._guard = threading.Lock()
        self._pid = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is not None and self._pid == os.getpid():
            return loop
        with self._guard:
            if self._loop is None or self._pid != os.getpid():
                loop = asyncio.new_event_loop()
                self._tasks = set()
                self._pool = concurrent.futures.ThreadPoolExecutor(8, "amltrain-offload")
                # A fresh context: ipykernel keeps the parent message in context
                # variables, and a copy would assign all later messages to the first cell.
                self._thread = threading.Thread(
                    target=contextvars.Context().run,
                    args=(self._serve, loop),
                    name=self._name,
                    daemon=True,
                )
                self._loop, self._pid = loop, os.getpid()
                self._thread.start()
            assert self._loop is not None
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    @property
    def on_loop(self) -> bool:
        """Whether the caller runs on the loop thread."""
        return threading.current_thread() is self._thread and self._pid == os.getpid()

    def check(self) -> None:
        """Raise ``RuntimeError`` unless the caller runs on the loop thread."""
        if not self.on_loop:
            raise RuntimeError(f"must run on {self._name}, not on {threading.current_thread().name}")

    def post(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `coro` on the loop from any thread and return immediately."""
        loop = self._running()
        # A fresh context for the same reason as above: run_coroutine_threadsafe
        # copies the caller's.
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, coro, loop)

    def call(self, coro: Coroutine[Any, Any, T], timeout: float | None = 30.0) -> T:
        """Run `coro` on the loop and wait for its result; Ctrl-C interrupts the waiting.

        Parameters
        ----------
        timeout
            Seconds; ``None`` waits without a limit.

        Raises
        ------
        RuntimeError
            When called from the loop thread, where it would deadlock.
        NoAnswer
            When `timeout` has passed; the coroutine is canceled.
        """
        if self.on_loop:
            coro.close()
            raise RuntimeError("call() on the loop thread would deadlock; await instead")
        future = self.post(coro)
        left = timeout
        try:
            while True:
                wait = CALL_INTERVAL_S if left is None else min(CALL_INTERVAL_S, max(left, 0.0))
                try:
                    return future.result(wait)
                except concurrent.futures.TimeoutError:
                    if future.done():  # the coroutine's own timeout, or a result of the last moment
                        return future.result()
                    if left is not None:
                        left -= wait
                        if left <= 0:
                            reason = f"No answer within {timeout:g} s."
                            raise NoAnswer(reason, hint="See which target is silent: %aml_compute") from None
        except BaseException:  # Ctrl-C too: the coroutine must not outlive its caller's wait
            future.cancel()
            raise

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        """Run blocking `fn(*args)` on a pool thread and return its result. Arguments must be immutable."""
        self.check()
        return await asyncio.get_running_loop().run_in_executor(self._pool, fn, *args)

    def start(self, coro: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a named background task; keeps a reference to the task and logs its exception."""
        self.check()
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    def close(self, timeout: float = 5.0) -> None:
        """Cancel all tasks and stop the thread (tests and interpreter exit)."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._pid != os.getpid():
            return

        async def stop() -> None:
            own = asyncio.current_task()
            rest = [t for t in asyncio.all_tasks() if t is not own]
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=timeout) if rest else None

        self.call(stop(), timeout + 1)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout)
        if not thread.is_alive():
            loop.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._loop = self._thread = self._pool = None


class TokenBucket:
    """A token bucket: `rate` tokens a second, at most `burst` of them."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), time.monotonic()

    def due(self) -> float:
        """Return the seconds until a token is available, without taking it."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._tokens) / self._rate)

    def wait(self) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        pause = self.due()
        if pause == 0:
            self._tokens -= 1
        return pause
