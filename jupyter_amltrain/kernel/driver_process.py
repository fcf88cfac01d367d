"""Process of a driver: a supervised run without a slot, which submits other runs by a controller of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from jupyter_amltrain.agent.protocol import CANCEL, MARK
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.session import close, controller
from jupyter_amltrain.schema.run import RunHandle, split_handle


class RunDriver(Protocol):
    """A driver. Loop thread only."""

    handle: RunHandle  #: of its own run

    async def run(self) -> int:
        """Drive to the end, from where an earlier process has ended; return the exit code."""

    def stop(self) -> None:
        """Cancel the runs and end, because the driver's run was canceled."""


def drive(create: Callable[[Controller, Path, Mapping[str, str]], RunDriver]) -> None:
    """Drive the run that this process is the job of, and exit.

    Parameters
    ----------
    create
        Returns the driver; gets the controller, the folder of the run, and the environment of the runs on this machine,
        which also has the values of their secrets.
    """
    run_id = os.environ[MARK].rpartition(":")[0]
    folder = Path(os.environ["AML_OUTPUT_DIR"]).parent
    kernel = controller()

    async def make() -> RunDriver:
        return create(kernel, folder, os.environ)

    driver = kernel.loop.call(make())
    if split_handle(driver.handle)[1] != run_id:
        raise SystemExit(f"{folder} is not the folder of {run_id}.")

    def on_sigterm(*_: object) -> None:
        if (folder / CANCEL).exists():
            kernel.loop.post(_stop(driver))
        else:  # the machine goes away, or the agent: the runs go on, and the next attempt follows them
            os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_sigterm)
    if (folder / CANCEL).exists():  # canceled before this handler was there
        driver.stop()
    code = kernel.loop.call(driver.run(), None)
    close()
    sys.exit(code)


async def _stop(driver: RunDriver) -> None:
    await asyncio.sleep(0)
    driver.stop()
