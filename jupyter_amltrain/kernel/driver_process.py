"""Process of a driver: a supervised run without a slot, which submits other runs by a controller of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from jupyter_amltrain.agent.protocol import CANCEL, JOB, MARK
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.kernel.session import close, controller
from jupyter_amltrain.kernel.target_file import LOCAL
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunHandle, make_handle, split_handle


@dataclass(frozen=True)
class DriverJob:
    """The job of a driver, and what it submits other jobs with.

    Attributes
    ----------
    folder
        The folder of its run.
    parent_id
        The MLflow run of its run; empty without one.
    environ
        Environment of the jobs on this machine; also has the values of their secrets.
    """

    kernel: Controller
    folder: Path
    spec: JobSpec
    handle: RunHandle
    parent_id: str
    environ: Mapping[str, str]

    @classmethod
    def read(cls, kernel: Controller, folder: Path, environ: Mapping[str, str]) -> DriverJob:
        """Read the job of the run in `folder`. Blocks on the disk."""
        job = msgspec.json.decode((folder / JOB).read_bytes())
        spec = msgspec.convert(job["spec"], JobSpec)
        handle = make_handle(spec.driver_target or LOCAL.name, str(job["run"]))
        parent_id = str((job.get("tracking") or {}).get("run_id") or "")
        return cls(kernel, folder, spec, handle, parent_id, dict(environ))

    @property
    def secrets(self) -> dict[str, str]:
        """Values of the secrets that the jobs may name."""
        return {name: self.environ[name] for name in self.spec.secrets if name in self.environ}

    async def submit(self, spec: JobSpec, handle: RunHandle) -> None:
        """Submit a job as the run `handle`, and wait until its target has it; so it can be repeated."""
        target, run_id = split_handle(handle)
        await self.kernel.jobs.submit(spec, target, self.environ, self.secrets, run_id)
        await self.kernel.accepted(handle)


class RunDriver(Protocol):
    """A driver. Loop thread only."""

    handle: RunHandle  #: of its own run

    async def run(self) -> int:
        """Drive to the end, from where an earlier process has ended; return the exit code."""

    def stop(self) -> None:
        """Cancel the runs and end, because the driver's run was canceled."""


def drive(create: Callable[[DriverJob], RunDriver]) -> None:
    """Drive the run that this process is the job of, and exit.

    Parameters
    ----------
    create
        Returns the driver of a job.
    """
    run_id = os.environ[MARK].rpartition(":")[0]
    folder = Path(os.environ["AML_OUTPUT_DIR"]).parent
    kernel = controller()

    async def make() -> RunDriver:
        return create(DriverJob.read(kernel, folder, os.environ))

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
