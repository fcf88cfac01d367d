from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from jupyter_amltrain.loop import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


async def _where() -> str:
    return threading.current_thread().name


def test_call_runs_on_loop_thread_and_returns_value(loop: LoopThread) -> None:
    assert loop.call(_where()) == "test-loop"


def test_check_off_loop_raises(loop: LoopThread) -> None:
    with pytest.raises(RuntimeError, match="must run on test-loop"):
        loop.check()

    async def inside() -> None:
        loop.check()

    loop.call(inside())


def test_call_from_loop_is_refused(loop: LoopThread) -> None:
    async def inside() -> None:
        loop.call(_where())

    with pytest.raises(RuntimeError, match="deadlock"):
        loop.call(inside())


def test_call_timeout_cancels_coroutine(loop: LoopThread) -> None:
    canceled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            canceled.set()
            raise

    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        loop.call(forever(), 0.05)
    assert canceled.wait(60)


def test_call_passes_timeout_error_of_coroutine(loop: LoopThread) -> None:
    async def fails() -> None:
        raise asyncio.TimeoutError("mine")

    with pytest.raises((TimeoutError, asyncio.TimeoutError), match="mine"):
        loop.call(fails(), 10)


def test_call_is_interruptible(loop: LoopThread) -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        loop.call(asyncio.sleep(1000), None)
    assert loop.call(_where()) == "test-loop"


def test_offload_runs_off_loop(loop: LoopThread) -> None:
    async def go() -> tuple[str, str]:
        return await _where(), await loop.offload(lambda: threading.current_thread().name)

    here, there = loop.call(go())
    assert here == "test-loop" and there.startswith("amltrain-offload")


def test_failed_background_task_is_logged_by_name(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("broken inside")

    async def go() -> None:
        task = loop.start(fails(), "the failing one")
        await asyncio.wait([task])

    with caplog.at_level(logging.ERROR):
        loop.call(go())
        loop.call(asyncio.sleep(0))
    assert "the failing one" in caplog.text and "broken inside" in caplog.text


def test_background_task_has_fresh_context(loop: LoopThread) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("parent", default="none")
    variable.set("cell 1")

    async def read() -> str:
        return variable.get()

    assert loop.call(read()) == "none"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loop_after_fork_is_new(loop: LoopThread) -> None:
    assert loop.call(_where()) == "test-loop"
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if loop.call(_where(), 30) == "test-loop" else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
